// SPDX-License-Identifier: Apache-2.0

package units_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/backend/units"
)

// Units that are not in the order stop last, a unit that fails to stop does not prevent the others from
// stopping, and names without a unit are ignored.
func TestSetStopAll(t *testing.T) {
	t.Parallel()
	type unit struct{ name string }
	var set units.Set[*unit]
	for _, name := range []string{"c", "b", "a"} {
		set.Put(name, &unit{name})
	}
	if u := set.GetOrNew("a", func() *unit { t.Error("created twice"); return nil }); u.name != "a" {
		t.Errorf("got %v", u)
	}
	broken := errors.New("does not stop")
	var stopped []string
	err := set.StopAll(t.Context(), []string{"c", "missing"}, func(u *unit, _ context.Context) error {
		stopped = append(stopped, u.name)
		if u.name == "c" {
			return broken
		}
		return nil
	})
	if diff := cmp.Diff([]string{"c", "a", "b"}, stopped); diff != "" || !errors.Is(err, broken) {
		t.Errorf("got %v, stopped (-want +got)\n%s", err, diff)
	}
	set.Delete("b", &unit{"b"}) // another unit of the same name
	set.Delete("a", set.Get("a"))
	if !slices.Equal(set.Names(), []string{"b", "c"}) || set.Get("a") != nil {
		t.Errorf("got %v", set.Names())
	}
}
