// SPDX-License-Identifier: Apache-2.0

package storeserver_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/storeserver"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/node/fetch"
	"github.com/slipway-project/slipway/internal/rpc"
)

// place is a control plane that serves a directory of blobs.
type place struct {
	at    netip.AddrPort
	pin   pin.Pin
	blobs string
}

func serve(t *testing.T, program string) place {
	t.Helper()
	cert, err := rpc.SelfSigned(certtest.Key(t), "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := place{blobs: t.TempDir(), pin: pin.OfCertificate(cert.Leaf)}
	if p.at, err = netip.ParseAddrPort(l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	s := storeserver.New(storeserver.Config{Blobs: p.blobs, Program: program, Certificate: func() (*tls.Certificate, error) { return cert, nil }})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return p
}

// add adds a blob under its digest, or under another name.
func (p place) add(t *testing.T, content []byte, as ...string) (digest string) {
	t.Helper()
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	if len(as) > 0 {
		name = as[0]
	}
	if err := os.WriteFile(filepath.Join(p.blobs, name), content, 0o644); err != nil {
		t.Fatal(err)
	}
	return "sha256:" + name
}

// to fetches into a new directory.
func to(t *testing.T, places ...place) (*fetch.Fetcher, string) {
	t.Helper()
	store := t.TempDir()
	return fetch.New(fetch.Config{
		Store: store, Log: slog.New(slog.DiscardHandler),
		Places: func() (all []netip.AddrPort, _ error) {
			for _, p := range places {
				all = append(all, p.at)
			}
			return all, nil
		},
		TLS: func(netip.Addr) (*tls.Config, error) {
			return rpc.ClientTLS(rpc.ClientOptions{Pin: places[0].pin}), nil
		},
	}), store
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func holds(t *testing.T, store, digest string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(store, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:")))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes (%v), want %d", len(got), err, len(want))
	}
	if left, _ := filepath.Glob(filepath.Join(store, "tmp", "*")); len(left) > 0 {
		t.Errorf("got leftover files %v", left)
	}
}

func TestFetch(t *testing.T) {
	t.Parallel()
	content := random(t, 3<<20)
	for name, part := range map[string][]byte{
		"nothing":                       nil,
		"a part":                        content[:1<<20],
		"all":                           content,
		"a part of another file":        bytes.Repeat([]byte("x"), 1000),
		"too much":                      append(bytes.Clone(content), 1, 2, 3),
		"another file of the same size": random(t, len(content)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, "")
			digest := p.add(t, content)
			f, store := to(t, p)
			if part != nil {
				if err := errors.Join(os.MkdirAll(filepath.Join(store, "tmp"), 0o755), os.WriteFile(filepath.Join(store, "tmp", strings.TrimPrefix(digest, "sha256:")+".part"), part, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			err := f.Fetch(t.Context(), digest)
			if part != nil && !bytes.HasPrefix(content, part) {
				if err == nil || !strings.Contains(err.Error(), "has the digest") {
					t.Errorf("after another file: got %v, want an error about the digest", err)
				}
				err = f.Fetch(t.Context(), digest) // and the next fetch starts over
			}
			if err != nil {
				t.Fatal(err)
			}
			holds(t, store, digest, content)
		})
	}
}

// A server with wrong content, an empty one and one of another cluster do no harm while another server is good.
func TestFetchBeside(t *testing.T) {
	t.Parallel()
	good, liar, empty := serve(t, ""), serve(t, ""), serve(t, "")
	content := random(t, 100_000)
	digest := good.add(t, content)
	liar.add(t, random(t, 100_000), strings.TrimPrefix(digest, "sha256:"))
	for range 5 { // the order is chance
		f, store := to(t, good, liar, empty)
		if err := f.Fetch(t.Context(), digest); err != nil {
			t.Fatal(err)
		}
		holds(t, store, digest, content)
	}
	f, store := to(t, empty, good)
	if err := f.Fetch(t.Context(), digest); err == nil || !strings.Contains(err.Error(), "server not trusted") || !strings.Contains(err.Error(), "404") {
		t.Errorf("fetched from another cluster: %v", err)
	}
	if _, err := os.Stat(filepath.Join(store, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a stranger's blob is in the store")
	}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	content := random(t, 5000)
	program := filepath.Join(t.TempDir(), "slipway")
	if err := os.WriteFile(program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	p := serve(t, program)
	sum := sha256.Sum256(content)
	f, store := to(t, p)
	if err := f.Fetch(t.Context(), "sha256:"+hex.EncodeToString(sum[:])); err != nil {
		t.Fatal(err)
	}
	holds(t, store, "sha256:"+hex.EncodeToString(sum[:]), content)
}

// Only blobs are served.
func TestOnlyBlobs(t *testing.T) {
	t.Parallel()
	p := serve(t, "")
	secret := filepath.Join(filepath.Dir(p.blobs), "secret")
	name := strings.Repeat("a", 64)
	if err := errors.Join(os.WriteFile(secret, []byte("s"), 0o600), os.Symlink(secret, filepath.Join(p.blobs, name)), os.Mkdir(filepath.Join(p.blobs, strings.Repeat("b", 64)), 0o755)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/": 404, "/sha256/": 404, "/sha256/../secret": 307, "/sha256/%2e%2e%2fsecret": 404, "/sha256/" + name: 404,
		"/sha256/" + strings.Repeat("b", 64): 404, "/sha256/" + strings.Repeat("C", 64): 404,
	} {
		if got := get(t, p, http.MethodGet, path); got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
	digest := p.add(t, []byte("blob"))
	for method, want := range map[string]int{http.MethodHead: 200, http.MethodPut: 405, http.MethodDelete: 405, http.MethodPost: 405} {
		if got := get(t, p, method, "/sha256/"+strings.TrimPrefix(digest, "sha256:")); got != want {
			t.Errorf("%s of a blob: %d, want %d", method, got, want)
		}
	}
}

func get(t *testing.T, p place, method, path string) int {
	t.Helper()
	wire := &http.Transport{TLSClientConfig: rpc.ClientTLS(rpc.ClientOptions{Pin: p.pin}), ForceAttemptHTTP2: true}
	defer wire.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.at.String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := wire.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// The requests of one address are limited.
func TestCrowd(t *testing.T) {
	t.Parallel()
	p := serve(t, "")
	digest := p.add(t, random(t, 32<<20))
	wire := &http.Transport{TLSClientConfig: rpc.ClientTLS(rpc.ClientOptions{Pin: p.pin}), ForceAttemptHTTP2: true}
	defer wire.CloseIdleConnections()
	var all []io.Closer
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	codes := map[int]int{}
	for range 12 { // bodies that are never read
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.at.String()+"/sha256/"+strings.TrimPrefix(digest, "sha256:"), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := wire.RoundTrip(r) //nolint:bodyclose // all are closed at the end
		if err != nil {
			t.Fatal(err)
		}
		codes[answer.StatusCode]++
		all = append(all, answer.Body)
	}
	if codes[200] != 8 || codes[429] != 4 {
		t.Errorf("answers %v, want 8 of 200 and 4 of 429", codes)
	}
}
