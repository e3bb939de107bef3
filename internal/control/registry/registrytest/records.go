// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/control/registry"
)

func create(t *testing.T, s registry.Store) {
	_, err := s.Get(t.Context(), "create", "a")
	wantErr(t, "get before", err, registry.ErrNotFound)
	made := put(t, s, registry.Item{Kind: "create", Name: "a", Data: []byte("1")})
	if made.Version == "" || made.Kind != "create" || made.Name != "a" || string(made.Data) != "1" {
		t.Errorf("created %+v", made)
	}
	got, err := s.Get(t.Context(), "create", "a")
	if diff := cmp.Diff(made, got); diff != "" || err != nil {
		t.Errorf("read back: %v\n%s", err, diff)
	}
	_, err = s.Put(t.Context(), registry.Item{Kind: "create", Name: "a", Data: []byte("2")})
	wantErr(t, "create again", err, registry.ErrExists)
	_, err = s.Get(t.Context(), "other-kind", "a")
	wantErr(t, "the same name of another kind", err, registry.ErrNotFound)
}

func swap(t *testing.T, s registry.Store) {
	first := put(t, s, registry.Item{Kind: "swap", Name: "a", Data: []byte("1")})
	second := first
	second.Data = []byte("2")
	second = put(t, s, second)
	if second.Version == first.Version {
		t.Error("two contents have one version")
	}
	stale := first
	stale.Data = []byte("3")
	_, err := s.Put(t.Context(), stale)
	wantErr(t, "put a stale version", err, registry.ErrConflict)
	if got, err := s.Get(t.Context(), "swap", "a"); err != nil || string(got.Data) != "2" || got.Version != second.Version {
		t.Errorf("after a conflict: got %+v, error %v", got, err)
	}
	if err := s.Delete(t.Context(), "swap", "a", second.Version); err != nil {
		t.Fatal(err)
	}
	_, err = s.Put(t.Context(), second)
	wantErr(t, "put what is gone", err, registry.ErrConflict)
	_, err = s.Get(t.Context(), "swap", "a")
	wantErr(t, "what is gone does not come back", err, registry.ErrNotFound)
	put(t, s, registry.Item{Kind: "swap", Name: "a", Data: []byte("4")})
	_, err = s.Put(t.Context(), second)
	wantErr(t, "put over a new life of the name", err, registry.ErrConflict)
}

func remove(t *testing.T, s registry.Store) {
	wantErr(t, "delete nothing", s.Delete(t.Context(), "delete", "a", ""), registry.ErrNotFound)
	first := put(t, s, registry.Item{Kind: "delete", Name: "a", Data: []byte("1")})
	second := first
	second.Data = []byte("2")
	put(t, s, second)
	wantErr(t, "delete a stale version", s.Delete(t.Context(), "delete", "a", first.Version), registry.ErrConflict)
	if _, err := s.Get(t.Context(), "delete", "a"); err != nil {
		t.Errorf("after a conflict: %v", err)
	}
	if err := s.Delete(t.Context(), "delete", "a", ""); err != nil {
		t.Errorf("delete any version: %v", err)
	}
	wantErr(t, "delete a version that is gone", s.Delete(t.Context(), "delete", "a", first.Version), registry.ErrNotFound)
}

func list(t *testing.T, s registry.Store) {
	if items, err := s.List(t.Context(), "list"); err != nil || len(items) != 0 {
		t.Errorf("an empty kind: %v, %v", items, err)
	}
	var want []registry.Item
	for _, name := range []string{"b", "a.x", "c-1"} {
		want = append(want, put(t, s, registry.Item{Kind: "list", Name: name, Data: []byte(name)}))
	}
	put(t, s, registry.Item{Kind: "list2", Name: "b"})
	want[0], want[1] = want[1], want[0]
	items, err := s.List(t.Context(), "list")
	if diff := cmp.Diff(want, items); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func names(t *testing.T, s registry.Store) {
	for _, bad := range [][2]string{
		{"", "a"},
		{"names", ""},
		{"names", "A"},
		{"names", "a/b"},
		{"names", ".."},
		{"names", "a..b"},
		{"names", "-a"},
		{"names", "a\n"},
		{"names", strings.Repeat("a", 201)},
		{"names.x", "a"},
		{"names/", "a"},
		{"Names", "a"},
	} {
		if _, err := s.Put(t.Context(), registry.Item{Kind: bad[0], Name: bad[1]}); err == nil {
			t.Errorf("put of %q: got no error", bad)
		}
		if _, err := s.Get(t.Context(), bad[0], bad[1]); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("get of %q: %v", bad, err)
		}
		if err := s.Delete(t.Context(), bad[0], bad[1], ""); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("delete of %q: %v", bad, err)
		}
	}
	put(t, s, registry.Item{Kind: "names", Name: strings.Repeat(strings.Repeat("a", 63)+".", 3) + "aaaaaaaa"})
}

func data(t *testing.T, s registry.Store) {
	for name, content := range map[string][]byte{"empty": {}, "binary": {0, 255, '\n', 0xc3}, "large": bytes.Repeat([]byte("0123456789abcdef"), 40_000)} {
		item := put(t, s, registry.Item{Kind: "data", Name: name, Data: content})
		got, err := s.Get(t.Context(), "data", name)
		if err != nil || !bytes.Equal(got.Data, content) {
			t.Errorf("%s: %d bytes came back as %d, %v", name, len(content), len(got.Data), err)
		}
		if len(content) > 0 {
			item.Data[0], got.Data[0] = 'x', 'y' // callers own their items
			if again, err := s.Get(t.Context(), "data", name); err != nil || !bytes.Equal(again.Data, content) {
				t.Errorf("%s: a caller changed the store's data", name)
			}
		}
	}
}
