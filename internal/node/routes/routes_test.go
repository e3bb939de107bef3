// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/roster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func roster3(nodes ...string) roster.Roster {
	r := roster.Roster{Generation: 1}
	for _, n := range nodes {
		f := strings.Fields(n)
		r.Nodes = append(r.Nodes, roster.Node{Name: f[0], Address: netip.MustParseAddr(f[1]), PodCIDR: netip.MustParsePrefix(f[2])})
	}
	return r
}

func TestWanted(t *testing.T) {
	t.Parallel()
	const self = "a 10.89.0.10 10.244.0.0/24"
	good := map[string]string{"10.244.1.0/24": "10.89.0.11"}
	tests := map[string]struct {
		nodes       []string
		want        map[string]string
		wantProblem string
	}{
		"alone":                 {[]string{self}, nil, ""},
		"another":               {[]string{self, "b 10.89.0.11 10.244.1.0/24"}, good, ""},
		"self not in it":        {[]string{"b 10.89.0.11 10.244.1.0/24"}, good, ""},
		"everything":            {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 0.0.0.0/0"}, good, "is not a pod CIDR"},
		"not masked":            {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 10.244.2.7/24"}, good, "is not a pod CIDR"},
		"own pod CIDR":          {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 10.244.0.128/25"}, good, "overlap"},
		"own address":           {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.10 10.244.2.0/24"}, good, "is this node's address"},
		"contains a node":       {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 10.89.0.0/24"}, good, "contains the address"},
		"pod CIDR twice":        {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 10.244.1.0/24"}, good, "already belongs to"},
		"loopback":              {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c 127.0.0.1 10.244.2.0/24"}, good, "is not a node address"},
		"families":              {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c fd00::1 10.244.2.0/24"}, good, "different IP families"},
		"other family together": {[]string{self, "b 10.89.0.11 10.244.1.0/24", "c fd00::1 fd01::/64"}, map[string]string{"10.244.1.0/24": "10.89.0.11", "fd01::/64": "fd00::1"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := wanted("a", roster3(tt.nodes...))
			var texts map[string]string
			for p, a := range got {
				if texts == nil {
					texts = map[string]string{}
				}
				texts[p.String()] = a.String()
			}
			if diff := cmp.Diff(tt.want, texts); diff != "" {
				t.Error(diff)
			}
			if (err == nil) != (tt.wantProblem == "") || (err != nil && !strings.Contains(err.Error(), tt.wantProblem)) {
				t.Errorf("got problem %v, want %q", err, tt.wantProblem)
			}
		})
	}
}

// source returns a roster that the test changes.
type source struct {
	mu      sync.Mutex // guards the fields below
	r       roster.Roster
	err     error
	changed chan struct{}
}

func (s *source) Now() (roster.Roster, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r, s.changed, s.err
}

func (s *source) set(r roster.Roster, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r, s.err = r, err
	close(s.changed)
	s.changed = make(chan struct{})
}

// namespace is a network namespace with one interface, 10.89.0.10/24, and no other machine.
type namespace struct {
	ns netns.NsHandle
	h  *netlink.Handle
}

func newNamespace(t *testing.T) namespace {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("setting routes needs root, which tests must have under CI")
		}
		t.Skip("setting routes needs root")
	}
	made := make(chan netns.NsHandle, 1)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		ns, err := netns.Get()
		failed <- err
		made <- ns
	}()
	must(t, <-failed)
	ns := <-made
	h, err := netlink.NewHandleAt(ns)
	must(t, err)
	t.Cleanup(func() { h.Close(); ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}))
	far, err := h.LinkByName("far")
	must(t, err, h.LinkSetUp(far))
	link, err := h.LinkByName("eth0")
	must(t, err)
	must(t, h.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 89, 0, 10), Mask: net.CIDRMask(24, 32)}}), h.LinkSetUp(link))
	return namespace{ns, h}
}

// add adds a route that is not ours.
func (n namespace) add(t *testing.T, dst, via string) {
	t.Helper()
	_, to, err := net.ParseCIDR(dst)
	must(t, err, n.h.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)}))
}

// lines lists the routes with a gateway: "dst via gw proto".
func (n namespace) lines(t *testing.T) []string {
	t.Helper()
	all, err := n.h.RouteList(nil, netlink.FAMILY_V4)
	must(t, err)
	var out []string
	for _, r := range all {
		if r.Gw != nil {
			out = append(out, fmt.Sprintf("%s via %s proto %d", r.Dst, r.Gw, int(r.Protocol)))
		}
	}
	slices.Sort(out)
	return out
}

// keep runs Keep until the test ends. The function that it returns returns the last reported problem.
func (n namespace) keep(t *testing.T, s *source, every time.Duration) func() string {
	t.Helper()
	var mu sync.Mutex
	said := "nothing"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Keep(ctx, Config{
			Self: "a", Now: s.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Every: every,
			Netns: &n.ns, Say: func(text string) { mu.Lock(); defer mu.Unlock(); said = text },
		})
	}()
	t.Cleanup(func() { cancel(); must(t, <-done) })
	return func() string { mu.Lock(); defer mu.Unlock(); return said }
}

func (n namespace) await(t *testing.T, want ...string) {
	t.Helper()
	if want == nil {
		want = []string{}
	}
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if got = n.lines(t); slices.Equal(got, want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("routes (-want +got):\n%s", cmp.Diff(want, got))
		case <-tick.C:
		}
	}
}

func awaitProblem(t *testing.T, said func() string, part string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for text := said(); !strings.Contains(text, part) || (part == "" && text != ""); text = said() {
		select {
		case <-ctx.Done():
			t.Fatalf("got problem %q, want %q", said(), part)
		case <-tick.C:
		}
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	p := newNamespace(t)
	p.add(t, "10.99.0.0/24", "10.89.0.99")
	const theirs = "10.99.0.0/24 via 10.89.0.99 proto 3"
	s := &source{err: fs.ErrNotExist, changed: make(chan struct{})}
	said := p.keep(t, s, time.Hour)
	awaitProblem(t, said, "no roster")
	s.set(roster3("a 10.89.0.10 10.244.0.0/24", "b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 10.244.2.0/24"), nil)
	p.await(t, "10.244.1.0/24 via 10.89.0.11 proto 93", "10.244.2.0/24 via 10.89.0.12 proto 93", theirs)
	awaitProblem(t, said, "")
	s.set(roster3("a 10.89.0.10 10.244.0.0/24", "b 10.89.0.21 10.244.1.0/24", "d 10.89.0.13 10.244.3.0/24"), nil) // b has another address, c was removed
	p.await(t, "10.244.1.0/24 via 10.89.0.21 proto 93", "10.244.3.0/24 via 10.89.0.13 proto 93", theirs)
	s.set(roster.Roster{}, errors.New("disk broken")) // unknown is not the same as empty
	awaitProblem(t, said, "disk broken")
	p.await(t, "10.244.1.0/24 via 10.89.0.21 proto 93", "10.244.3.0/24 via 10.89.0.13 proto 93", theirs)
	s.set(roster3("a 10.89.0.10 10.244.0.0/24"), nil)
	p.await(t, theirs)
}

// TestConflictingRoute checks that a route that is not ours stays, is reported, and does not prevent other
// routes.
func TestConflictingRoute(t *testing.T) {
	t.Parallel()
	p := newNamespace(t)
	p.add(t, "10.244.1.0/24", "10.89.0.99")
	s := &source{r: roster3("b 10.89.0.11 10.244.1.0/24", "c 10.89.0.12 10.244.2.0/24", "d 10.77.0.1 10.244.3.0/24"), changed: make(chan struct{})}
	said := p.keep(t, s, time.Hour)
	awaitProblem(t, said, "slipway did not set")
	awaitProblem(t, said, "10.77.0.1 is not on a network")
	p.await(t, "10.244.1.0/24 via 10.89.0.99 proto 3", "10.244.2.0/24 via 10.89.0.12 proto 93")
}

// TestRepair checks that a route that was removed, by hand or by the kernel with an interface that went
// down, is set again at once and not at the next regular check.
func TestRepair(t *testing.T) {
	t.Parallel()
	p := newNamespace(t)
	s := &source{r: roster3("b 10.89.0.11 10.244.1.0/24"), changed: make(chan struct{})}
	said := p.keep(t, s, time.Hour)
	const ours = "10.244.1.0/24 via 10.89.0.11 proto 93"
	p.await(t, ours)
	awaitProblem(t, said, "")
	_, n, err := net.ParseCIDR("10.244.1.0/24")
	must(t, err, p.h.RouteDel(&netlink.Route{Dst: n}))
	p.await(t, ours)
	link, err := p.h.LinkByName("eth0")
	must(t, err, p.h.LinkSetDown(link))
	awaitProblem(t, said, "not on a network")
	p.await(t)
	must(t, p.h.LinkSetUp(link))
	p.await(t, ours)
	awaitProblem(t, said, "")
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
