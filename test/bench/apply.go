// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/test/bare"
)

// Apply has the times of slipway apply over SSH, for existing machines with systemd and an SSH server, but without slipway.
type Apply struct {
	Cold  []Timed `json:"cold"`  // the whole command on new machines; all nodes are Ready at its end
	Again []Timed `json:"again"` // the same command with nothing to do
}

// Three control planes and two workers.
const (
	farMains   = 3
	farWorkers = 2
	farCluster = "far" // in the operator's state directory
	// applyLimit is far longer than a round takes, even on a loaded host.
	applyLimit = 8 * time.Minute
)

// measureApply measures b.apply rounds of clusters of existing machines.
func (b *bench) measureApply(ctx context.Context) error {
	if b.apply == 0 {
		return nil
	}
	a := &Apply{}
	b.report.Apply = a
	for i := range b.apply {
		if err := b.round(ctx, applyLimit, func(ctx context.Context) error { return b.applyOnce(ctx, a) }); err != nil {
			return fmt.Errorf("apply, round %d: %w", i+1, err)
		}
	}
	return nil
}

// applyOnce boots machines without slipway and runs apply twice.
func (b *bench) applyOnce(ctx context.Context, a *Apply) error {
	home, err := os.MkdirTemp("", "slipway-bench-operator-")
	if err != nil {
		return fmt.Errorf("create operator's directory: %w", err)
	}
	defer os.RemoveAll(home)
	operator, err := bare.NewOperator(ctx, bare.Config{Home: home, Root: b.inventory.Dir.Root, Cluster: b.cluster, Binary: b.inventory.Exe})
	if err != nil {
		return err
	}
	addresses, err := b.bootBare(ctx, operator.Public)
	if err != nil {
		return err
	}
	file := operator.Path("cluster.yaml")
	if err := os.WriteFile(file, []byte(farSpec(addresses)), 0o600); err != nil {
		return fmt.Errorf("write spec: %w", err)
	}
	if err := b.quiet(ctx, "apply"); err != nil { // after the boot of five machines
		return err
	}
	if err := b.timed("apply, new machines", &a.Cold, func() (float64, error) {
		r := runLine(ctx, operator.Line("apply", "-f", file, "--yes", "--accept-new-host-keys")...)
		return r.elapsed.Seconds(), r.err
	}); err != nil {
		return err
	}
	if err := allReady(ctx, operator); err != nil {
		return err
	}
	return b.timed("apply, nothing to do", &a.Again, func() (float64, error) {
		r := runLine(ctx, operator.Line("apply", "-f", file)...) // without --yes it fails if there is something to do
		if r.err == nil && !strings.Contains(r.output, "nothing to do") {
			r.err = fmt.Errorf("apply again: want \"nothing to do\", got\n%s", r.output)
		}
		return r.elapsed.Seconds(), r.err
	})
}

// bootBare boots all machines at the same time and returns their addresses.
func (b *bench) bootBare(ctx context.Context, authorized string) ([]netip.Addr, error) {
	machines, err := machine.New(machine.Config{Root: b.inventory.Dir.Root, Runc: b.runc, Log: b.inventory.Log})
	if err != nil {
		return nil, err
	}
	unlock, err := machines.Lock(ctx, b.cluster, func(string) {})
	if err != nil {
		return nil, err
	}
	defer unlock()
	group, limited := errgroup.WithContext(ctx)
	for i := range farMains + farWorkers {
		group.Go(func() error {
			return bare.Boot(limited, machines, bare.Machine{
				Cluster: b.cluster, Name: fmt.Sprintf("%s-bare-%d", b.cluster, i), Index: i, Binary: b.inventory.Exe, Authorized: authorized,
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	list, err := machines.List(ctx, b.cluster)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, m := range list {
		out = append(out, m.Address)
	}
	return out, nil
}

// farSpec returns a spec of machines with these addresses, control planes first.
func farSpec(addresses []netip.Addr) string {
	var s strings.Builder
	fmt.Fprintf(&s, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  pools:\n", farCluster)
	for i, address := range addresses {
		switch i {
		case 0:
			s.WriteString("    - name: cp\n      roles: [control-plane]\n      machines:\n")
		case farMains:
			s.WriteString("    - name: w\n      roles: [worker]\n      machines:\n")
		}
		fmt.Fprintf(&s, "        - {name: n%d, address: %s}\n", i, address)
	}
	return s.String()
}

// allReady returns an error unless all nodes are Ready now.
func allReady(ctx context.Context, operator bare.Operator) error {
	r := runLine(ctx, operator.Line("kubectl", "--name", farCluster, "get", "nodes", "--no-headers")...)
	if r.err == nil && strings.Count(r.output, " Ready ") != farMains+farWorkers {
		r.err = errors.New("list nodes after apply: not all are Ready:\n" + r.output)
	}
	return r.err
}
