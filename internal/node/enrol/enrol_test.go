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

// What an enrolment does on a whole machine is told in the stories of package sim; here is what it says when a file is bad.

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
		Lock: l, Agent: agent, Board: board, Log: slog.New(slog.DiscardHandler),
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
		t.Fatalf("nothing is said of %s: %v", ref, all)
	}
	return all[i]
}

// A machine that runs a node needs no target, and one that has none can be told.
func TestTargetOfAnotherVersion(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	must(t, durable.Save(c.Paths.Target, targetSchema+1, "x"))
	e := newEnrolment(t, c)
	ca := pin.Pin("sha256:" + strings.Repeat("0a", 32))
	must(t, e.Join(t.Context(), node.JoinTarget{Endpoints: []string{"192.0.2.1:9440"}, Pin: ca}))
	if target, _ := newEnrolment(t, c).aim(); target == nil || target.Pin != ca {
		t.Errorf("the target is %+v", target)
	}
}

// A node that has lost where its cluster is can be told again; one that knows it keeps what it knows, and its token is not wanted.
func TestReminder(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	ca := pin.Pin("sha256:" + strings.Repeat("0a", 32))
	must(t, c.Lock.Claim(lock.Join, "join-1"))
	must(t, c.Lock.Commit("join-1", ca.ClusterID(), "n1"))
	e := newEnrolment(t, c)
	for _, at := range []string{"192.0.2.1:9440", "192.0.2.2:9440"} {
		must(t, e.Join(t.Context(), node.JoinTarget{Endpoints: []string{at}, Pin: ca, Token: "secret"}))
	}
	target, _ := newEnrolment(t, c).aim()
	if target == nil || target.Token != "" || !slices.Equal(target.Endpoints, []string{"192.0.2.1:9440"}) {
		t.Errorf("the target is %+v", target)
	}
	if err := e.Join(t.Context(), node.JoinTarget{Endpoints: []string{"192.0.2.1:9440"}, Pin: pin.Pin("sha256:" + strings.Repeat("0b", 32))}); err == nil {
		t.Error("it took a reminder of another cluster")
	}
}

// That the cluster does not know the machine's new key is no leave to clean the machine.
func TestNoResetByANewKey(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.Dial = func(pin.Pin) joinclient.Dialer {
		t.Error("the cluster was asked")
		return nil
	}
	must(t, c.Lock.Claim(lock.Join, "join-1"))
	must(t, c.Lock.Commit("join-1", "c1", "n1"))
	must(t, os.WriteFile(LostKey(c.Paths.Key), nil, 0o600))
	e := newEnrolment(t, c)
	err := e.Reset(t.Context(), "c1", false)
	if err == nil || !strings.Contains(err.Error(), "slipway node remove n1") {
		t.Errorf("the reset: %v", err)
	}
	if s := c.Lock.State(); s.Phase != lock.Committed {
		t.Errorf("the lock is %s", s)
	}
	e.sayLostKey(c.Lock.State())
	if s := status(t, c.Board, itemKey); s.Phase != reconcile.Failing || !strings.Contains(s.Who, "n1") {
		t.Errorf("said: %+v", s)
	}
	generation := e.unlessLost(func() uint64 { return 7 })
	if got := generation(); got != 0 {
		t.Errorf("it asks for rosters after %d", got)
	}
	e.knownAgain()
	if all, _ := c.Board.All(); len(all) != 0 || e.hasLostKey() || generation() != 7 {
		t.Errorf("once it is known: %v", all)
	}
	must(t, os.WriteFile(LostKey(c.Paths.Key), nil, 0o600))
	must(t, e.forget())
	if e.hasLostKey() {
		t.Error("the next machine has lost its key")
	}
}

// A founder's etcd begins a cluster once; whoever joins keeps its permit as it is.
func TestEtcdPermitIsSpent(t *testing.T) {
	t.Parallel()
	founder := "ETCD_INITIAL_CLUSTER=n1=https://192.0.2.1:2380\nETCD_INITIAL_CLUSTER_STATE=new\n"
	spent := strings.Replace(founder, "=new", "=existing", 1)
	for name, tc := range map[string]struct{ have, want string }{
		"founder":       {founder, spent},
		"spent before":  {spent, spent},
		"joined":        {spent + "SLIPWAY_ETCD_MEMBER=1\n", spent + "SLIPWAY_ETCD_MEMBER=1\n"},
		"no etcd there": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConfig(t)
			if tc.have != "" {
				must(t, os.WriteFile(c.Paths.Permit, []byte(tc.have), 0o600))
			}
			newEnrolment(t, c).spendEtcdPermit()
			got, err := os.ReadFile(c.Paths.Permit)
			if string(got) != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("the permit: %q, %v", got, err)
			}
		})
	}
}

// A claim that nobody goes on with is no secret.
func TestClaimThatCannotGoOn(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	must(t, c.Lock.Claim(lock.Init, "request-1"))
	must(t, durable.Save(c.Paths.Request, 99, "x"))
	must(t, newEnrolment(t, c).initialise(t.Context()))
	if s := status(t, c.Board, itemLock); s.Phase != reconcile.Failing || !strings.Contains(s.Error, "request-1") || s.Who == "" {
		t.Errorf("said: %+v", s)
	}
	if s := c.Lock.State(); s.Phase != lock.Claimed {
		t.Errorf("the lock is %s", s)
	}
}

// A node that has lost its join CA says so, and goes on when somebody puts it back.
func TestJoinCAComesBack(t *testing.T) {
	t.Parallel()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate(t)})
	c := newConfig(t)
	e := newEnrolment(t, c)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		found := make(chan bool, 1)
		go func() { found <- e.joinCA(ctx) != nil }()
		synctest.Wait()
		if s := status(t, c.Board, itemRoster); s.Phase != reconcile.Failing || !strings.Contains(s.Error, c.Paths.JoinCA) {
			t.Errorf("said: %+v", s)
		}
		must(t, os.WriteFile(c.Paths.JoinCA, ca, 0o600))
		time.Sleep(2 * lookForCA)
		synctest.Wait()
		select {
		case ok := <-found:
			if !ok {
				t.Error("it has given up")
			}
		default:
			t.Error("it has not seen the file")
		}
	})
}

// Whose turn it is stands on the board, since when, and as long as it lasts.
func TestMemberWaits(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	e := newEnrolment(t, c)
	since := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	e.memberWaits(joinclient.Status{For: wait.For{What: "the etcd slot", Who: "n2, which joins", Since: since}})
	if s := status(t, c.Board, itemEtcd); s.Phase != reconcile.Waiting || s.What != "the etcd slot" || s.Who != "n2, which joins" || !s.Since.Equal(since) {
		t.Errorf("said: %+v", s)
	}
	c.Board.Reset()
	c.Board.Announce(plan.Plan{})
	e.Announce()
	if s := status(t, c.Board, itemEtcd); s.What != "the etcd slot" {
		t.Errorf("said again: %+v", s)
	}
	e.memberWaits(joinclient.Status{})
	if s := status(t, c.Board, itemEtcd); s.Phase == reconcile.Waiting {
		t.Errorf("said after its turn has come: %+v", s)
	}
}

func certificate(t *testing.T) []byte {
	t.Helper()
	pair, err := rpc.SelfSigned(certtest.Key(t), "join CA", time.Now())
	must(t, err)
	return pair.Certificate[0]
}
