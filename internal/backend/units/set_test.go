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

// Those that nobody has put in order stop last, one that does not stop keeps none from stopping, and nobody is asked for who is not there.
func TestSetStopAll(t *testing.T) {
	t.Parallel()
	type unit struct{ name string }
	var set units.Set[*unit]
	for _, name := range []string{"c", "b", "a"} {
		set.Put(name, &unit{name})
	}
	if u := set.GetOrNew("a", func() *unit { t.Error("made anew"); return nil }); u.name != "a" {
		t.Errorf("got %v", u)
	}
	deaf := errors.New("it does not stop")
	var stopped []string
	err := set.StopAll(t.Context(), []string{"c", "nobody"}, func(u *unit, _ context.Context) error {
		stopped = append(stopped, u.name)
		if u.name == "c" {
			return deaf
		}
		return nil
	})
	if diff := cmp.Diff([]string{"c", "a", "b"}, stopped); diff != "" || !errors.Is(err, deaf) {
		t.Errorf("%v, stopped (-want +got)\n%s", err, diff)
	}
	set.Forget("b", &unit{"b"}) // another one of that name
	set.Forget("a", set.Get("a"))
	if !slices.Equal(set.Names(), []string{"b", "c"}) || set.Get("a") != nil {
		t.Errorf("left %v", set.Names())
	}
}
