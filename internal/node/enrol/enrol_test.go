// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Package sim tests the enrolment of whole machines. These tests cover damaged and missing files.

// noNetwork fails the test if the cluster is dialed.
type noNetwork struct {
	HostNetwork
	t *testing.T
}

func (n noNetwork) Dialer(pin.Pin) joinclient.Dialer {
	n.t.Error("the cluster was dialed")
	return nil
}

func newConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	l, err := lock.Open(at("lock"))
	if err != nil {
		t.Fatal(err)
	}
	board := reconcile.NewBoard()
	agent, err := node.New(node.Config{PlanFile: at("plan"), Log: slog.New(slog.DiscardHandler), Board: board})
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Lock: l, Agent: agent, Board: board, Log: slog.New(slog.DiscardHandler), Network: HostNetwork{},
		Paths: Paths{Key: at("machine.key"), Secret: at("secret"), Request: at("request"), Target: at("target"), JoinCA: at("ca.crt"), Permit: at("permit"), Voter: at("voter")},
	}
}

func newEnrolment(t *testing.T, c Config) *Enrolment {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, b *reconcile.Board, ref string) reconcile.Status {
	t.Helper()
	all, _ := b.All()
	i := slices.IndexFunc(all, func(s reconcile.Status) bool { return s.Ref == ref })
	if i < 0 {
		t.Fatalf("got items %v, want one for %s", all, ref)
	}
	return all[i]
}

// TestTargetOfAnotherVersion: a target of an unknown schema is ignored and can be replaced.
func TestTargetOfAnotherVersion(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	must(t, durable.Save(c.Paths.Target, targetSchema+1, "x"))
	e := newEnrolment(t, c)
	ca := pin.Pin("sha256:" + strings.Repeat("0a", 32))
	must(t, e.Join(t.Context(), node.JoinTarget{Endpoints: []string{"192.0.2.1:9440"}, Pin: ca}))
	if target, _ := newEnrolment(t, c).joinTarget(); target == nil || target.Pin != ca {
		t.Errorf("got target %+v, want one with pin %s", target, ca)
	}
}

// TestTargetOfMember: a member that has lost its target accepts one of its own cluster, without the token. It does not replace a
// target that it has.
func TestTargetOfMember(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	ca := pin.Pin("sha256:" + strings.Repeat("0a", 32))
	must(t, c.Lock.Claim(lock.Join, "join-1"))
	must(t, c.Lock.Commit("join-1", ca.ClusterID(), "n1"))
	e := newEnrolment(t, c)
	for _, at := range []string{"192.0.2.1:9440", "192.0.2.2:9440"} {
		must(t, e.Join(t.Context(), node.JoinTarget{Endpoints: []string{at}, Pin: ca, Token: "secret"}))
	}
	target, _ := newEnrolment(t, c).joinTarget()
	if target == nil || target.Token != "" || !slices.Equal(target.Endpoints, []string{"192.0.2.1:9440"}) {
		t.Errorf("got target %+v, want the first endpoint and no token", target)
	}
	if err := e.Join(t.Context(), node.JoinTarget{Endpoints: []string{"192.0.2.1:9440"}, Pin: pin.Pin("sha256:" + strings.Repeat("0b", 32))}); err == nil {
		t.Error("join another cluster: got no error")
	}
}

// TestNewKeyIsNotRemoval: if the cluster refuses the machine's new key, the machine must not be wiped.
func TestNewKeyIsNotRemoval(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.Network = noNetwork{HostNetwork{}, t}
	must(t, c.Lock.Claim(lock.Join, "join-1"))
	must(t, c.Lock.Commit("join-1", "c1", "n1"))
	must(t, os.WriteFile(LostKey(c.Paths.Key), nil, 0o600))
	e := newEnrolment(t, c)
	err := e.Reset(t.Context(), "c1", false)
	if err == nil || !strings.Contains(err.Error(), "slipway node remove n1") {
		t.Errorf("reset: got %v, want a hint to run slipway node remove n1", err)
	}
	if s := c.Lock.State(); s.Phase != lock.Committed {
		t.Errorf("got lock %s, want committed", s)
	}
	e.reportNewKey(c.Lock.State())
	if s := status(t, c.Board, itemKey); s.Phase != reconcile.Failing || !strings.Contains(s.Who, "n1") {
		t.Errorf("got item %+v, want failing and a hint to approve n1", s)
	}
	generation := e.rosterGeneration(func() uint64 { return 7 })
	if got := generation(); got != 0 {
		t.Errorf("got generation %d, want 0", got)
	}
	e.acceptNewKey()
	if all, _ := c.Board.All(); len(all) != 0 || e.hasNewKey() || generation() != 7 {
		t.Errorf("after the key was accepted: got items %v, want none, no mark and generation 7", all)
	}
	must(t, os.WriteFile(LostKey(c.Paths.Key), nil, 0o600))
	must(t, e.deleteIdentity())
	if e.hasNewKey() {
		t.Error("the mark of the new key is left after deleteIdentity")
	}
}

// TestRevokeEtcdBootstrap: the bootstrap node's permit changes, those of other nodes stay as they are.
func TestRevokeEtcdBootstrap(t *testing.T) {
	t.Parallel()
	bootstrap := "ETCD_INITIAL_CLUSTER=n1=https://192.0.2.1:2380\nETCD_INITIAL_CLUSTER_STATE=new\n"
	revoked := strings.Replace(bootstrap, "=new", "=existing", 1)
	for name, tc := range map[string]struct{ have, want string }{
		"bootstrap node":   {bootstrap, revoked},
		"revoked before":   {revoked, revoked},
		"joined":           {revoked + "SLIPWAY_ETCD_MEMBER=1\n", revoked + "SLIPWAY_ETCD_MEMBER=1\n"},
		"without a permit": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConfig(t)
			if tc.have != "" {
				must(t, os.WriteFile(c.Paths.Permit, []byte(tc.have), 0o600))
			}
			newEnrolment(t, c).revokeEtcdBootstrap()
			got, err := os.ReadFile(c.Paths.Permit)
			if string(got) != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("got permit %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// TestUnreadableRequest: a claim whose request cannot be continued is reported.
func TestUnreadableRequest(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	must(t, c.Lock.Claim(lock.Init, "request-1"))
	must(t, durable.Save(c.Paths.Request, 99, "x"))
	must(t, newEnrolment(t, c).serveInit(t.Context()))
	if s := status(t, c.Board, itemLock); s.Phase != reconcile.Failing || !strings.Contains(s.Error, "request-1") || s.Who == "" {
		t.Errorf("got item %+v, want failing with request-1 and a hint", s)
	}
	if s := c.Lock.State(); s.Phase != lock.Claimed {
		t.Errorf("got lock %s, want claimed", s)
	}
}

// TestJoinCARestored: a missing join CA is reported, and the node continues when it is restored.
func TestJoinCARestored(t *testing.T) {
	t.Parallel()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate(t)})
	c := newConfig(t)
	e := newEnrolment(t, c)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		found := make(chan bool, 1)
		go func() { found <- e.waitForJoinCA(ctx) != nil }()
		synctest.Wait()
		if s := status(t, c.Board, itemRoster); s.Phase != reconcile.Failing || !strings.Contains(s.Error, c.Paths.JoinCA) {
			t.Errorf("got item %+v, want failing with the path of the join CA", s)
		}
		must(t, os.WriteFile(c.Paths.JoinCA, ca, 0o600))
		time.Sleep(2 * joinCAPoll)
		synctest.Wait()
		select {
		case ok := <-found:
			if !ok {
				t.Error("got no certificate")
			}
		default:
			t.Error("still waiting after the file was restored")
		}
	})
}

// TestReportEtcd: the item says what etcd waits for, who provides it and since when.
func TestReportEtcd(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	e := newEnrolment(t, c)
	since := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	e.reportEtcd(joinclient.Status{For: wait.For{What: "the etcd lease", Who: "n2, which is joining", Since: since}})
	if s := status(t, c.Board, itemEtcd); s.Phase != reconcile.Waiting || s.What != "the etcd lease" || s.Who != "n2, which is joining" || !s.Since.Equal(since) {
		t.Errorf("got item %+v", s)
	}
	c.Board.Reset()
	c.Board.Announce(plan.Plan{})
	e.Announce()
	if s := status(t, c.Board, itemEtcd); s.What != "the etcd lease" {
		t.Errorf("after a reset of the board: got item %+v", s)
	}
	e.reportEtcd(joinclient.Status{})
	if s := status(t, c.Board, itemEtcd); s.Phase == reconcile.Waiting {
		t.Errorf("after the wait: got item %+v, want another phase", s)
	}
}

func certificate(t *testing.T) []byte {
	t.Helper()
	pair, err := rpc.SelfSigned(certtest.Key(t), "join CA", time.Now())
	must(t, err)
	return pair.Certificate[0]
}
