// SPDX-License-Identifier: Apache-2.0

// Package registrytest has the conformance suite for stores of records, and a store in memory that can also inject faults. The suite
// runs on that store and on the Secrets of a real cluster. The package is for tests only, and tests nothing above the store.
//
// Read [Conformance] and [Memory].
//
//	registrytest.Conformance(t, func(t *testing.T) registry.Store { return registrytest.NewMemory() })
//	store.SetFault(func(registrytest.Op) registrytest.Fault { return registrytest.Fault{Lost: errPower} }) // the change is made, its answer is lost
package registrytest

import (
	"errors"
	"testing"

	"github.com/slipway-project/slipway/internal/control/registry"
)

// Conformance runs the suite. newStore may return the same store each time: each test uses other kinds.
func Conformance(t *testing.T, newStore func(t *testing.T) registry.Store) {
	for name, test := range map[string]func(*testing.T, registry.Store){
		"create":  create,
		"swap":    swap,
		"delete":  remove,
		"list":    list,
		"names":   names,
		"data":    data,
		"race":    race,
		"watch":   watch,
		"context": ended,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t))
		})
	}
}

func put(t *testing.T, s registry.Store, item registry.Item) registry.Item {
	t.Helper()
	out, err := s.Put(t.Context(), item)
	if err != nil {
		t.Fatalf("put %s %s: %v", item.Kind, item.Name, err)
	}
	return out
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}
