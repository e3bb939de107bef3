// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// node is a machine that is in, with its Sync running.
type node struct {
	*machine
	sync       *joinclient.Sync
	generation atomic.Uint64
	taken      atomic.Int64 // rosters
}

func (m *machine) stays(t *testing.T) *node {
	t.Helper()
	name := m.join(t).Ticket.Plan.Node
	n := &node{machine: m}
	s, err := joinclient.NewSync(joinclient.SyncConfig{
		Endpoints: func() []netip.AddrPort { return []netip.AddrPort{m.w.endpoint} }, Pin: m.w.pin, Key: m.key, Node: name, Slipway: "0.3.0",
		Generation: n.generation.Load, Roster: n.take, Log: slog.New(slog.DiscardHandler), Report: m.says, From: func() netip.Addr { return m.address },
	})
	if err != nil {
		t.Fatal(err)
	}
	n.sync = s
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return n
}

func (n *node) take(text []byte) error {
	var signed roster.Signed
	if err := json.Unmarshal(text, &signed); err != nil {
		return err
	}
	r, err := signed.Open(n.w.ca.Cert)
	if err != nil {
		return err
	}
	n.generation.Store(r.Generation)
	n.taken.Add(1)
	return nil
}

func TestSyncBringsEachRoster(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	n := worker(w).stays(t)
	for generation := uint64(1); generation <= 5; generation++ {
		testkit.Eventually(t, "the newest roster", func() bool { return n.generation.Load() == generation })
		w.rosters.publish(w.roster(generation + 1))
	}
	testkit.Eventually(t, "the last roster", func() bool { return n.generation.Load() == 6 })
	if n.taken.Load() != 6 {
		t.Errorf("%d rosters were sent for 6 generations", n.taken.Load())
	}
	w.rosters.publish(w.roster(3))                                                                                                         // a store that has gone back
	if _, err := n.sync.Renew(t.Context(), map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{}, certtest.Key(t))}); err != nil { // the stream is past it
		t.Fatal(err)
	}
	w.rosters.publish(w.roster(7))
	testkit.Eventually(t, "the roster after that", func() bool { return n.generation.Load() == 7 })
	if n.taken.Load() != 7 {
		t.Error("an older roster was sent")
	}
}

func TestSyncRenews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	n := worker(w).stays(t)
	key := certtest.Key(t)
	for range 2 { // the same request again, as after a lost answer
		certificates, err := n.sync.Renew(t.Context(), map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{}, key)})
		if err != nil || len(certificates["kubelet"]) == 0 {
			t.Fatalf("renew: %v, %v", certificates, err)
		}
	}
	_, err := n.sync.Renew(t.Context(), map[string][]byte{"apiserver": csr(t, x509.CertificateRequest{}, certtest.Key(t))})
	if err == nil {
		t.Error("a certificate that the plan does not want was signed")
	}
}

// A removed node's stream ends at once, not at its next message; other streams continue.
func TestSyncEndsWithTheRecord(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(t *testing.T, w *world){
		"removed": func(t *testing.T, w *world) {
			if err := w.registry.DeleteNode(t.Context(), "dev-worker-0"); err != nil {
				t.Fatal(err)
			}
		},
		"being removed": func(t *testing.T, w *world) {
			if _, err := w.registry.UpdateNode(t.Context(), "dev-worker-0", func(n *admission.Node) error { n.Removing = true; return nil }); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			m := worker(w)
			m.join(t)
			other := controlPlane(w)
			other.join(t)
			k, stays := m.sync(t).greeted(), other.sync(t)
			stays.sendHello(w.id, "dev-main-1")
			for _, s := range []*syncTalk{k, stays} {
				if _, err := s.stream.Recv(); err != nil { // its roster
					t.Fatal(err)
				}
			}
			remove(t, w)
			told := k.end()
			entries := w.audit()
			last := entries[len(entries)-1]
			if last.Reason != joinserver.Removed || last.Node != "dev-worker-0" {
				t.Errorf("audit: %s", last)
			}
			checkTold(t, told, "", last)
			if gone := status.Code(told) == codes.PermissionDenied; gone != (name == "removed") { // by that a reset knows that it may
				t.Errorf("the node was told %v", told)
			}
			w.rosters.publish(w.roster(2))
			if reply, err := stays.stream.Recv(); err != nil || len(reply.GetRoster()) == 0 {
				t.Errorf("the other node got %v, %v", reply, err)
			}
		})
	}
}

// The way into etcd: whose turn it is first, the permit, the promotion; also over the end of a stream.
func TestMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	n := controlPlane(w).stays(t)
	var turn, promote atomic.Bool
	w.members.set(func(record admission.Node, started bool) (membership.Progress, error) {
		switch {
		case record.Name != "dev-main-1":
			return membership.Progress{}, errors.New("another node asks")
		case !turn.Load():
			return membership.Progress{Wait: &wait.For{What: "the membership lease", Who: "dev-main-2, which joins"}}, nil
		case started && promote.Load():
			return membership.Progress{Promoted: true}, nil
		}
		return membership.Progress{Permit: []byte("ETCD_INITIAL_CLUSTER=x"), Discard: true}, nil
	})
	var started atomic.Bool
	var mu sync.Mutex
	var waited, permits []string
	done := make(chan error, 1)
	go func() {
		done <- n.sync.Member(t.Context(), joinclient.Member{
			Started: started.Load,
			Permit: func(content []byte, anew bool) error {
				mu.Lock()
				defer mu.Unlock()
				permits = append(permits, string(content))
				if !anew || !bytes.Contains(content, []byte("ETCD")) {
					return errors.New("an odd permit")
				}
				return nil
			},
			Waiting: func(s joinclient.Status) {
				mu.Lock()
				defer mu.Unlock()
				waited = append(waited, s.Who)
			},
		})
	}()
	count := func(list *[]string) int {
		mu.Lock()
		defer mu.Unlock()
		return len(*list)
	}
	testkit.Eventually(t, "a wait", func() bool { return count(&waited) == 1 })
	turn.Store(true)
	testkit.Eventually(t, "the permit", func() bool { return count(&permits) == 1 })
	started.Store(true)
	promote.Store(true)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if count(&permits) != 1 || waited[0] != "dev-main-2, which joins" {
		t.Errorf("waited for %q, permits %q", waited, permits)
	}
	asked := func() int {
		w.members.mu.Lock()
		defer w.members.mu.Unlock()
		return w.members.asked
	}
	before := asked()
	if err := n.sync.Member(t.Context(), joinclient.Member{Started: started.Load, Permit: func([]byte, bool) error { return errors.New("no") }}); err != nil {
		t.Errorf("after its promotion: %v", err)
	}
	if asked() != before {
		t.Error("etcd was asked again for a node that was promoted on this stream")
	}
}

// A permit that stays the same is sent once, however often etcd is asked. Kills the comparison in tellMember.
func TestPermitIsSentOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := controlPlane(w)
	m.join(t)
	asked := make(chan struct{}, 1000)
	w.members.set(func(admission.Node, bool) (membership.Progress, error) {
		asked <- struct{}{}
		return membership.Progress{Permit: []byte("x")}, nil
	})
	k := m.sync(t)
	k.sendHello(w.id, "dev-main-1").sendMember(false)
	for range 4 {
		<-asked
	}
	w.rosters.publish(w.roster(2))
	var got []string
	for len(got) < 3 {
		reply, err := k.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case reply.GetPermit() != nil:
			got = append(got, "permit")
		case reply.GetRoster() != nil:
			got = append(got, "roster")
		}
	}
	if want := []string{"roster", "permit", "roster"}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

// A node that falls silent loses the lease when another one asks for it.
func TestMemberFallsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := controlPlane(w)
	m.join(t)
	asked := make(chan struct{}, 1000)
	w.members.set(func(admission.Node, bool) (membership.Progress, error) {
		asked <- struct{}{}
		return membership.Progress{}, nil
	})
	k := m.sync(t)
	k.sendHello(w.id, "dev-main-1").sendMember(false)
	for range 3 { // asked again and again, while it said so lately
		<-asked
	}
	w.skew.Store(int64(11 * time.Second))
	for len(asked) > 0 { // from before
		<-asked
	}
	for late := 0; ; late++ { // what was on its way may still come
		select {
		case <-asked:
			if late > 3 {
				t.Fatal("it is still asked for")
			}
			continue
		case <-time.After(time.Second):
		}
		break
	}
	k.sendMember(false)
	<-asked // its word brings it back
}

// The list of records may be older than the record of a node that has just joined: the node keeps its stream. Kills the
// question to the record itself in stands.
func TestSyncWithAnOldList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := worker(w)
	m.join(t)
	w.forget(t)
	k := m.sync(t).greeted()
	for generation := uint64(1); generation <= 3; generation++ {
		w.rosters.publish(w.roster(generation))
		if reply, err := k.stream.Recv(); err != nil || len(reply.GetRoster()) == 0 {
			t.Fatalf("instead of roster %d: %v, %v; audit: %v", generation, reply, err, w.audit())
		}
	}
}
