// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/http"
)

// object is what bench wants to know of nodes and pods.
type object struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase      string
		Conditions []struct{ Type, Status string }
	}
}

func (o object) ready() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// follow calls each for every object as it is and whenever it changes, until each returns true.
func (a api) follow(ctx context.Context, path string, each func(object) (done bool)) error {
	return poll(ctx, step, func() bool { return a.watch(ctx, path+"?watch=1", each) })
}

// watch takes one answer to its end; the server may refuse while it starts, and may end it at any time.
func (a api) watch(ctx context.Context, path string, each func(object) bool) (done bool) {
	r, err := a.do(ctx, http.MethodGet, path, "")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return false
	}
	for dec := json.NewDecoder(r.Body); ; {
		var e struct {
			Type   string
			Object object
		}
		if dec.Decode(&e) != nil || e.Type == "ERROR" {
			return false
		}
		if each(e.Object) {
			return true
		}
	}
}
