// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/rpc"
)

func TestNewSecret(t *testing.T) {
	t.Parallel()
	secret, file := NewSecret()
	other, _ := NewSecret()
	if len(secret)*5 < 128 || secret == other || bytes.Contains(file, []byte(secret)) {
		t.Errorf("%d characters, the same twice: %v", len(secret), secret == other)
	}
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if hash, err := readSecret(path); err != nil || hash != sha256.Sum256([]byte(secret)) {
		t.Errorf("%x, %v", hash, err)
	}
}

// TestBadSecretFile: without a valid secret there is no server, and the error says what to do without quoting the file (TC-5). On a
// claimed machine the request continues, and all clients are refused.
func TestBadSecretFile(t *testing.T) {
	t.Parallel()
	empty := fmt.Sprintf(`{"hash":"%x"}`, sha256.Sum256(nil))
	tests := map[string]string{
		"missing": "-", "empty file": "", "no JSON": "canary-secret", "empty object": "{}", "empty hash": `{"hash":""}`, "short hash": `{"hash":"abcd"}`,
		"no hex": `{"hash":"` + strings.Repeat("x", 64) + `"}`, "zeros": `{"hash":"` + strings.Repeat("0", 64) + `"}`, "of nothing": empty,
		"the secret itself": `{"secret":"canary-secret"}`, "two values": empty + empty, "torn": empty[:40],
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			cfg := r.config(r.agent.dir, &testMachine{dir: r.agent.dir})
			write := func() error { return os.WriteFile(cfg.SecretFile, []byte(content), 0o600) }
			if content == "-" {
				write = func() error { return os.Remove(cfg.SecretFile) }
			}
			if err := write(); err != nil {
				t.Fatal(err)
			}
			_, err := New(cfg)
			if err == nil || !strings.Contains(err.Error(), "write a new secret file and restart the agent") || strings.Contains(err.Error(), "canary-secret") {
				t.Errorf("got error %v", err)
			}
			if err := cfg.Lock.Claim(lock.Init, idA); err != nil {
				t.Fatal(err)
			}
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if ok, _ := s.guard.check(t.Context(), netip.Addr{}, nil); ok {
				t.Error("an empty secret is accepted")
			}
			if err := s.Resume(t.Context()); err != nil || cfg.Lock.State().Phase != lock.Free {
				t.Errorf("got error %v, lock %s", err, cfg.Lock.State())
			}
		})
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret, request := filepath.Join(dir, "secret"), filepath.Join(dir, "request")
	for _, path := range []string{secret, request, request + ".prev"} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Forget(secret, request); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestWrongSecret: every call with a wrong secret, with none or with two is refused without a reason, and the server continues (TC-4).
func TestWrongSecret(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	refused := make(chan rpc.Refused, 100)
	r.tune = func(c *Config, _ *testMachine) { c.Audit = func(x rpc.Refused) { refused <- x } }
	a := r.begin()
	if _, err := r.client().Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(a.addr, rpc.ClientOptions{Pin: r.pin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	api := initv1.NewInitClient(conn)
	calls := map[string]func(ctx context.Context) error{
		"facts": func(ctx context.Context) error { _, err := api.Facts(ctx, &initv1.FactsRequest{}); return err },
		"init": func(ctx context.Context) error {
			_, err := api.Init(ctx, &initv1.InitRequest{Id: idB, Ticket: encoded(t, ticket("n2"))})
			return err
		},
		"watch": func(ctx context.Context) error {
			stream, err := api.Watch(ctx, &initv1.WatchRequest{Id: idA})
			if err != nil {
				return err
			}
			e, err := stream.Recv()
			if e != nil {
				t.Errorf("an unauthenticated client received %v", e)
			}
			return err
		},
		"no method": func(ctx context.Context) error {
			return conn.Invoke(ctx, "/slipway.init.v1.Init/Reset", &initv1.FactsRequest{}, &initv1.FactsReply{}, grpc.StaticMethod())
		},
	}
	secrets := map[string][]string{
		"none": nil, "empty": {secretHeader, ""}, "wrong": {secretHeader, "wrong"}, "right and wrong": {secretHeader, r.secret, secretHeader, "wrong"},
		"in another header": {"authorization", r.secret}, "half": {secretHeader, r.secret[:len(r.secret)/2]},
	}
	for call, do := range calls {
		for name, pairs := range secrets {
			a.guard.mu.Lock()
			clear(a.guard.wrong) // TestGuardDelays covers the delay
			a.guard.mu.Unlock()
			err := do(metadata.AppendToOutgoingContext(t.Context(), pairs...))
			text := status.Convert(err).Message()
			if status.Code(err) != codes.PermissionDenied || !strings.HasPrefix(text, "refused (id ") {
				t.Errorf("%s, %s: %v", call, name, err)
			}
			if heard := <-refused; !strings.Contains(text, heard.ID) || strings.Contains(heard.Reason, r.secret) {
				t.Errorf("%s, %s: %+v", call, name, heard)
			}
		}
	}
	if _, err := r.client().Watch(t.Context(), idA, nil); err != nil {
		t.Errorf("right secret: got %v", err)
	}
	_, err = r.clientWith(r.pin, "wrong").Watch(t.Context(), idA, nil)
	if err == nil || !strings.Contains(err.Error(), "the machine has a different init secret") || strings.Contains(err.Error(), r.secret) {
		t.Errorf("got error %v", err)
	}
}

func TestOldTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.begin()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12}
	conn, err := tls.Dial("tcp", a.addr, config)
	if err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 is accepted")
	}
	config.MaxVersion = tls.VersionTLS13
	if conn, err = tls.Dial("tcp", a.addr, config); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// TestNoSecretOnDisk: the secret is not on the disk, and only root can read the files.
func TestNoSecretOnDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.begin()
	if _, err := r.client().Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client().Watch(t.Context(), idA, nil); err != nil {
		t.Fatal(err)
	}
	err := fs.WalkDir(os.DirFS(a.dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		data, readErr := os.ReadFile(filepath.Join(a.dir, path))
		if bytes.Contains(data, []byte(r.secret)) || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: mode %v, or the secret is in it", path, info.Mode())
		}
		return errors.Join(err, readErr)
	})
	if err != nil {
		t.Error(err)
	}
	if bytes.Contains(r.log.all(), []byte("kubeconfig of")) {
		t.Error("the kubeconfig is in the log")
	}
}

// TestGuardDelays: each wrong secret increases the delay of its source. The right secret is accepted from every source.
func TestGuardDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(sha256.Sum256([]byte("right")), true)
		bad, good := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		want := []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond, 3200 * time.Millisecond, longestWait, longestWait}
		for i, wait := range want {
			before := time.Now()
			if ok, tries := g.check(t.Context(), bad, []byte("wrong")); ok || tries != i+1 || time.Since(before) != wait {
				t.Errorf("guess %d: got %v, %d after %s, want a delay of %s", i, ok, tries, time.Since(before), wait)
			}
		}
		took := func(from netip.Addr) time.Duration {
			before := time.Now()
			if ok, _ := g.check(t.Context(), from, []byte("right")); !ok {
				t.Errorf("%s: refused", from)
			}
			return time.Since(before)
		}
		if d := took(good); d != 0 {
			t.Errorf("another source: got a delay of %s, want none", d)
		}
		if d := took(bad); d != longestWait {
			t.Errorf("right secret after wrong ones: got a delay of %s", d)
		}
		if d := took(bad); d != 0 {
			t.Errorf("next call: got a delay of %s, want none", d)
		}
		g.check(t.Context(), bad, nil)
		time.Sleep(forgetAfter + 1)
		if d := took(bad); d != 0 {
			t.Errorf("after forgetAfter: got a delay of %s, want none", d)
		}
	})
}

// TestGuardIsBounded: thousands of guessing sources use limited memory and cannot lock out a client with the right secret, even at
// their own address.
func TestGuardIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(sha256.Sum256([]byte("right")), true)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		from := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
		for i := range 4000 {
			all.Go(func() {
				for range 3 {
					g.check(ctx, from(i), []byte("wrong"))
				}
			})
		}
		synctest.Wait()
		g.mu.Lock()
		if len(g.wrong) > maxSources || g.waiting > maxWaiting {
			t.Errorf("%d sources, %d waiting", len(g.wrong), g.waiting)
		}
		g.mu.Unlock()
		for i := range 4000 {
			before := time.Now()
			if ok, _ := g.check(t.Context(), from(i), []byte("right")); !ok || time.Since(before) > longestWait {
				t.Errorf("%d: %v after %s", i, ok, time.Since(before))
			}
		}
		cancel()
		all.Wait()
		if g.waiting != 0 {
			t.Errorf("%d waiting", g.waiting)
		}
		if ok, _ := g.check(t.Context(), from(1), nil); ok {
			t.Error("no secret: got ok")
		}
	})
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1": "2001:db8::/64", "fe80::1%eth0": "fe80::/64"} {
		if got := prefix(netip.MustParseAddr(in)); got.String() != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if prefix(netip.Addr{}).IsValid() {
		t.Error("no address has a prefix")
	}
}
