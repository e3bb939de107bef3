// SPDX-License-Identifier: Apache-2.0

package rosterfile

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
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

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	cert, key := certtest.CA(t, "join CA")
	return authority{cert, key}
}

func (a authority) id() string { return roster.ClusterID(roster.Pin(a.cert.RawSubjectPublicKeyInfo)) }

func (a authority) sign(t testing.TB, r roster.Roster) []byte {
	t.Helper()
	body, err := json.Marshal(r)
	must(t, err)
	digest := roster.Digest(body)
	signature, err := ecdsa.SignASN1(rand.Reader, a.key, digest[:])
	must(t, err)
	text, err := json.Marshal(roster.Signed{Body: body, Signature: signature})
	must(t, err)
	return text
}

func (a authority) roster(generation uint64, api ...string) roster.Roster {
	r := roster.Roster{Cluster: a.id(), Generation: generation}
	for _, s := range api {
		r.API = append(r.API, netip.MustParseAddrPort(s))
	}
	r.Join = r.API
	return r
}

func TestTake(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	const one, two = "10.0.0.1:6443", "10.0.0.2:6443"
	have := a.sign(t, a.roster(5, one))
	swapped := func() []byte { // the signature of one roster on another
		var x, y roster.Signed
		must(t, json.Unmarshal(have, &x), json.Unmarshal(a.sign(t, a.roster(6, two)), &y))
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
		"newer":                          {a.sign(t, a.roster(6, two)), true, ""},
		"much newer":                     {a.sign(t, a.roster(1000, two)), true, ""},
		"the same":                       {have, false, ""},
		"the same, signed again":         {a.sign(t, a.roster(5, one)), false, ""},
		"same generation, other content": {a.sign(t, a.roster(5, two)), false, "different roster of the same generation"},
		"older":                          {a.sign(t, a.roster(4, two)), false, "older"},
		"another cluster's":              {other.sign(t, other.roster(9, two)), false, "not signed"},
		"another cluster's id":           {a.sign(t, other.roster(9, two)), false, "it is of cluster"},
		"another's signature":            {other.sign(t, a.roster(9, two)), false, "not signed"},
		"another roster's signature":     {swapped(), false, "not signed"},
		"no endpoint":                    {a.sign(t, a.roster(9)), false, "no API server"},
		"empty":                          {nil, false, "decode"},
		"no JSON":                        {[]byte("roster"), false, "decode"},
		"more than a roster":             {[]byte(`{"body":"","signature":"","more":1}`), false, "decode"},
		"huge":                           {make([]byte, maxSize+1), false, "more than a roster may have"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "roster.json")
			f := Open(path, a.cert)
			if _, err := f.Read(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("before the first: %v", err)
			}
			changed, err := f.Take(have)
			if must(t, err); !changed {
				t.Error("the first changes nothing")
			}
			_, told, _ := f.Now()
			changed, err = f.Take(tt.text)
			if changed != tt.wantChanged || (err == nil) != (tt.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("changed %v, %v", changed, err)
			}
			if errors.Is(err, ErrOlder) != (name == "older") {
				t.Errorf("ErrOlder: %v", err)
			}
			want := have
			if tt.wantChanged {
				want = tt.text
			}
			if got, _ := os.ReadFile(path); string(got) != string(want) {
				t.Errorf("on the disk: %s", got)
			}
			select {
			case <-told:
				if !tt.wantChanged {
					t.Error("told of a change")
				}
			default:
				if tt.wantChanged {
					t.Error("not told of the change")
				}
			}
			if r, err := Load(path, a.cert); err != nil || r.Generation != f.Generation() {
				t.Errorf("on the disk %d, %v; in memory %d", r.Generation, err, f.Generation())
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}

// The next agent knows what the last one took.
func TestReopened(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "roster.json")
	f := Open(path, a.cert)
	_, err := f.Take(a.sign(t, a.roster(5, "10.0.0.1:6443")))
	must(t, err)
	again := Open(path, a.cert)
	if _, err := again.Take(a.sign(t, a.roster(4, "10.0.0.2:6443"))); !errors.Is(err, ErrOlder) {
		t.Errorf("older: %v", err)
	}
	if _, err := Open(path, newAuthority(t).cert).Read(); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read with another CA: %v", err)
	}
}

// A ticket may bring the first roster after the file was opened; it counts.
func TestBroughtByTicket(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "roster.json")
	f := Open(path, a.cert)
	must(t, os.WriteFile(path, a.sign(t, a.roster(5, "10.0.0.1:6443")), 0o600))
	if _, err := f.Take(a.sign(t, a.roster(4, "10.0.0.2:6443"))); !errors.Is(err, ErrOlder) {
		t.Errorf("older than the ticket's: %v", err)
	}
}

// A damaged file is never taken for a roster and never for none, and does not lock the node out for ever.
func TestDamaged(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "roster.json")
	sound := a.sign(t, a.roster(5, "10.0.0.1:6443"))
	for i := 0; i < len(sound); i += 7 {
		for name, damaged := range map[string][]byte{"truncated": sound[:i], "flipped": flip(sound, i)} {
			must(t, os.WriteFile(path, damaged, 0o600))
			f := Open(path, a.cert)
			r, err := f.Read()
			if err == nil && r.Generation != 5 { // a flipped bit may leave the JSON's meaning as it is
				t.Fatalf("%s at %d: %+v", name, i, r)
			}
			if errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%s at %d: taken for none", name, i)
			}
			if _, err := f.Take(a.sign(t, a.roster(6, "10.0.0.2:6443"))); err != nil {
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

// A disk that does not take it: the node goes on with what it has, and says so.
func TestDiskRefuses(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := filepath.Join(t.TempDir(), "gone")
	f := Open(filepath.Join(dir, "roster.json"), a.cert)
	if changed, err := f.Take(a.sign(t, a.roster(5, "10.0.0.1:6443"))); changed || err == nil {
		t.Errorf("changed %v, %v", changed, err)
	}
	if f.Generation() != 0 {
		t.Error("what is not on the disk is in use")
	}
	must(t, os.Mkdir(dir, 0o700))
	if changed, err := f.Take(a.sign(t, a.roster(5, "10.0.0.1:6443"))); !changed || err != nil {
		t.Errorf("again: changed %v, %v", changed, err)
	}
}

// Rosters that come on several streams in any order end at the newest.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	path := filepath.Join(t.TempDir(), "roster.json")
	f := Open(path, a.cert)
	var all sync.WaitGroup
	for i := range 50 {
		text := a.sign(t, a.roster(uint64(i+1), "10.0.0.1:6443"))
		all.Go(func() {
			if _, err := f.Take(text); err != nil && !errors.Is(err, ErrOlder) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r, err := Load(path, a.cert); err != nil || r.Generation != 50 {
		t.Errorf("%d, %v", r.Generation, err)
	}
}

// What a stranger sends is never taken and never a crash.
func FuzzTake(f *testing.F) {
	a := newAuthority(f)
	f.Add(a.sign(f, a.roster(0)))
	f.Add([]byte(`{"body":"e30=","signature":"MAA="}`))
	f.Add([]byte(`{"body":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := Open(filepath.Join(t.TempDir(), "roster.json"), a.cert)
		if changed, err := file.Take(text); changed || err == nil {
			t.Errorf("taken: %q", text)
		}
	})
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
