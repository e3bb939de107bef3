// SPDX-License-Identifier: Apache-2.0

package rosterfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/roster"
)

func rosterOf(a certtest.Authority, generation uint64, api ...string) roster.Roster {
	r := roster.Roster{Cluster: a.ClusterID(), Generation: generation}
	for _, s := range api {
		r.API = append(r.API, netip.MustParseAddrPort(s))
	}
	r.Join = r.API
	return r
}

func TestTake(t *testing.T) {
	t.Parallel()
	a, other := certtest.NewAuthority(t, "join CA"), certtest.NewAuthority(t, "join CA")
	const one, two = "10.0.0.1:6443", "10.0.0.2:6443"
	have := a.Roster(t, rosterOf(a, 5, one))
	swapped := func() []byte { // one roster with the signature of another
		var x, y roster.Signed
		must(t, json.Unmarshal(have, &x), json.Unmarshal(a.Roster(t, rosterOf(a, 6, two)), &y))
		x.Body = y.Body
		text, err := json.Marshal(x)
		must(t, err)
		return text
	}
	tests := map[string]struct {
		text        []byte
		wantChanged bool
		wantErr     string
	}{
		"newer":                          {a.Roster(t, rosterOf(a, 6, two)), true, ""},
		"much newer":                     {a.Roster(t, rosterOf(a, 1000, two)), true, ""},
		"the same":                       {have, false, ""},
		"the same, signed again":         {a.Roster(t, rosterOf(a, 5, one)), false, ""},
		"same generation, other content": {a.Roster(t, rosterOf(a, 5, two)), false, "different roster of the same generation"},
		"older":                          {a.Roster(t, rosterOf(a, 4, two)), false, "older"},
		"another cluster's":              {other.Roster(t, rosterOf(other, 9, two)), false, "not signed"},
		"another cluster's id":           {a.Roster(t, rosterOf(other, 9, two)), false, "it belongs to cluster"},
		"another's signature":            {other.Roster(t, rosterOf(a, 9, two)), false, "not signed"},
		"another roster's signature":     {swapped(), false, "not signed"},
		"no endpoint":                    {a.Roster(t, rosterOf(a, 9)), false, "no API server"},
		"empty":                          {nil, false, "decode"},
		"no JSON":                        {[]byte("roster"), false, "decode"},
		"more than a roster":             {[]byte(`{"body":"","signature":"","more":1}`), false, "decode"},
		"huge":                           {make([]byte, maxSize+1), false, "exceed the limit"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "roster.json")
			f := Open(path, a.Cert)
			if _, err := f.Read(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("before the first roster: got %v", err)
			}
			changed, err := f.Take(have)
			if must(t, err); !changed {
				t.Error("first roster: got changed=false, want true")
			}
			_, changes, _ := f.Now()
			changed, err = f.Take(tt.text)
			if changed != tt.wantChanged || (err == nil) != (tt.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("got changed=%v, %v", changed, err)
			}
			if errors.Is(err, ErrOlder) != (name == "older") {
				t.Errorf("got %v, want ErrOlder", err)
			}
			want := have
			if tt.wantChanged {
				want = tt.text
			}
			if got, _ := os.ReadFile(path); string(got) != string(want) {
				t.Errorf("file: got %s", got)
			}
			select {
			case <-changes:
				if !tt.wantChanged {
					t.Error("channel closed without a change")
				}
			default:
				if tt.wantChanged {
					t.Error("channel not closed after a change")
				}
			}
			if r, err := Load(path, a.Cert); err != nil || r.Generation != f.Generation() {
				t.Errorf("file: got generation %d, %v; in memory %d", r.Generation, err, f.Generation())
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("mode: got %v, %v", info.Mode(), err)
			}
		})
	}
}

// A restarted agent reads the roster that was taken before.
func TestReopened(t *testing.T) {
	t.Parallel()
	a := certtest.NewAuthority(t, "join CA")
	path := filepath.Join(t.TempDir(), "roster.json")
	f := Open(path, a.Cert)
	_, err := f.Take(a.Roster(t, rosterOf(a, 5, "10.0.0.1:6443")))
	must(t, err)
	again := Open(path, a.Cert)
	if _, err := again.Take(a.Roster(t, rosterOf(a, 4, "10.0.0.2:6443"))); !errors.Is(err, ErrOlder) {
		t.Errorf("older roster: got %v", err)
	}
	if _, err := Open(path, certtest.NewAuthority(t, "join CA").Cert).Read(); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another CA: got %v", err)
	}
}

// A roster file that is created after Open, as by a ticket, counts.
func TestCreatedAfterOpen(t *testing.T) {
	t.Parallel()
	a := certtest.NewAuthority(t, "join CA")
	path := filepath.Join(t.TempDir(), "roster.json")
	f := Open(path, a.Cert)
	must(t, os.WriteFile(path, a.Roster(t, rosterOf(a, 5, "10.0.0.1:6443")), 0o600))
	if _, err := f.Take(a.Roster(t, rosterOf(a, 4, "10.0.0.2:6443"))); !errors.Is(err, ErrOlder) {
		t.Errorf("older than the new file: got %v", err)
	}
}

// A damaged file is reported as neither a roster nor missing, and the next roster replaces it.
func TestDamaged(t *testing.T) {
	t.Parallel()
	a := certtest.NewAuthority(t, "join CA")
	path := filepath.Join(t.TempDir(), "roster.json")
	sound := a.Roster(t, rosterOf(a, 5, "10.0.0.1:6443"))
	for i := 0; i < len(sound); i += 7 {
		for name, damaged := range map[string][]byte{"truncated": sound[:i], "flipped": flip(sound, i)} {
			must(t, os.WriteFile(path, damaged, 0o600))
			f := Open(path, a.Cert)
			r, err := f.Read()
			if err == nil && r.Generation != 5 { // a flipped bit may not change the meaning of the JSON
				t.Fatalf("%s at %d: got %+v", name, i, r)
			}
			if errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%s at %d: got ErrNotExist", name, i)
			}
			if _, err := f.Take(a.Roster(t, rosterOf(a, 6, "10.0.0.2:6443"))); err != nil {
				t.Fatalf("%s at %d: %v", name, i, err)
			}
		}
	}
}

func flip(data []byte, i int) []byte {
	out := append([]byte(nil), data...)
	out[i] ^= 1
	return out
}

// If the write fails, the node keeps its roster and returns the error.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	a := certtest.NewAuthority(t, "join CA")
	dir := filepath.Join(t.TempDir(), "gone")
	f := Open(filepath.Join(dir, "roster.json"), a.Cert)
	if changed, err := f.Take(a.Roster(t, rosterOf(a, 5, "10.0.0.1:6443"))); changed || err == nil {
		t.Errorf("got changed=%v, %v", changed, err)
	}
	if f.Generation() != 0 {
		t.Error("the roster in memory is not on the disk")
	}
	must(t, os.Mkdir(dir, 0o700))
	if changed, err := f.Take(a.Roster(t, rosterOf(a, 5, "10.0.0.1:6443"))); !changed || err != nil {
		t.Errorf("second try: got changed=%v, %v", changed, err)
	}
}

// With concurrent rosters in any order, the newest one wins.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	a := certtest.NewAuthority(t, "join CA")
	path := filepath.Join(t.TempDir(), "roster.json")
	f := Open(path, a.Cert)
	var all sync.WaitGroup
	for i := range 50 {
		text := a.Roster(t, rosterOf(a, uint64(i+1), "10.0.0.1:6443"))
		all.Go(func() {
			if _, err := f.Take(text); err != nil && !errors.Is(err, ErrOlder) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r, err := Load(path, a.Cert); err != nil || r.Generation != 50 {
		t.Errorf("got %d, %v", r.Generation, err)
	}
}

// Unsigned input is never accepted and never causes a panic.
func FuzzTake(f *testing.F) {
	a := certtest.NewAuthority(f, "join CA")
	f.Add(a.Roster(f, rosterOf(a, 0)))
	f.Add([]byte(`{"body":"e30=","signature":"MAA="}`))
	f.Add([]byte(`{"body":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := Open(filepath.Join(t.TempDir(), "roster.json"), a.Cert)
		if changed, err := file.Take(text); changed || err == nil {
			t.Errorf("accepted: %q", text)
		}
	})
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
