// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
)

const writePath = "/api/v1/namespaces/default/configmaps"

// writeGap is the longest time without an acknowledged write when the machine is lost whose etcd leads. Afterwards it looks whether
// every acknowledged write is there.
func (b *bench) writeGap(ctx context.Context, s *Several) (float64, error) {
	leader, err := b.leads(ctx)
	if err != nil {
		return 0, err
	}
	a, err := b.through(b.worker(0))
	if err != nil {
		return 0, err
	}
	var acked []string
	n, prefix := 0, fmt.Sprintf("bench-%d-", len(s.Writes))
	w := newAsker(func(ctx context.Context) error {
		n++
		name := fmt.Sprint(prefix, n)
		body := fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q, "labels": {"bench": "write"}}, "data": {"value": "kept"}}`, name)
		if err := a.expect(ctx, http.MethodPost, writePath, body, http.StatusCreated); err != nil {
			return err
		}
		acked = append(acked, name)
		return nil
	})
	working, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.run(working) // nothing but the end of its context
	}()
	err = around(ctx, []*asker{w}, func() error { return b.lose(ctx, leader) })
	stop()
	<-ended
	if err != nil {
		return 0, err
	}
	missing, err := a.missing(ctx, acked)
	s.Acked, s.Missing = s.Acked+len(acked), s.Missing+missing
	return w.longest().Seconds(), err
}

// missing counts what is not there of what was acknowledged.
func (a api) missing(ctx context.Context, acked []string) (int, error) {
	r, err := a.do(ctx, http.MethodGet, writePath+"?labelSelector=bench%3Dwrite", "")
	if err != nil {
		return 0, fmt.Errorf("look for the acknowledged writes: %w", err)
	}
	var list struct{ Items []object }
	if err := errors.Join(json.NewDecoder(r.Body).Decode(&list), r.Body.Close()); err != nil {
		return 0, fmt.Errorf("look for the acknowledged writes: %w", err)
	}
	var there []string
	for _, o := range list.Items {
		there = append(there, o.Metadata.Name)
	}
	slices.Sort(there)
	gone := 0
	for _, name := range acked {
		if _, found := slices.BinarySearch(there, name); !found {
			gone++
		}
	}
	return gone, nil
}
