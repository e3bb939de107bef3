// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// A ticket that is not this node's, or gives a worker what is a control plane's, is not sent: it is a bug of the control plane, and no machine is
// refused for it, and nothing of it is told.
func TestBadTickets(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *plan.Ticket, secrets *[]plan.TicketFile){
		"secrets for a worker": func(_ *plan.Ticket, secrets *[]plan.TicketFile) {
			*secrets = []plan.TicketFile{{Path: "/etc/kubernetes/pki/ca.key", Mode: 0o600, Content: []byte(canary)}}
		},
		"control document for a worker": func(t *plan.Ticket, _ *[]plan.TicketFile) { t.Control = []byte(canary) },
		"API server for a worker": func(t *plan.Ticket, _ *[]plan.TicketFile) {
			var b plan.Builder
			b.Add(plan.Unit{Name: "kube-apiserver", Args: []string{"/kube-apiserver"}})
			t.Plan = b.Plan("dev", t.Plan.Node, "1.36.4")
		},
		"another node":    func(t *plan.Ticket, _ *[]plan.TicketFile) { t.Plan.Node = "dev-main-1" },
		"another cluster": func(t *plan.Ticket, _ *[]plan.TicketFile) { t.Cluster = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			w.tickets = change
			told := worker(w).talk(t).proven().end()
			entries := w.audit()
			if last := entries[len(entries)-1]; len(entries) != 1 || last.Reason != joinserver.Unavailable || strings.Contains(last.String(), canary) {
				t.Errorf("audit: %v", entries)
			}
			if s := status.Convert(told); s.Code() != codes.Unavailable || s.Message() != "not now (id "+entries[0].ID+")" {
				t.Errorf("told %v", told)
			}
		})
	}
}

// Records that are wrong about who asks admit no machine. Kills the look at the record in admit.
func TestWrongRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	w.book.wrong.Store(true)
	told := worker(w).talk(t).proven().end()
	if e := w.audit(); len(e) != 1 || e[0].Reason != joinserver.Unavailable || status.Code(told) != codes.Unavailable {
		t.Errorf("told %v; audit: %v", told, e)
	}
}

// No part of a control plane's secrets is readable anywhere in a grant (TC-11, R-43).
func TestSecretsAreSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	k := controlPlane(w).talk(t).proven()
	reply, err := k.stream.Recv()
	if err != nil || len(reply.GetGrant().GetSealed()) == 0 {
		t.Fatalf("%v, %v", reply, err)
	}
	if strings.Contains(reply.String(), canary) {
		t.Error("the grant contains the secret in plain text")
	}
	reply, err = worker(w).talk(t).proven().stream.Recv()
	if err != nil || reply.GetGrant() == nil || len(reply.GetGrant().GetSealed()) != 0 {
		t.Errorf("a worker got %v, %v", reply, err)
	}
}

// A machine with another key and a good token for a name that is taken waits, reports that, and is admitted after an approval.
func TestWaitsForApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	worker(w).join(t)
	anew := w.machine("127.0.0.25").invited(registry.TokenSpec{Node: "dev-worker-0"})
	type end struct {
		grant joinclient.Grant
		err   error
	}
	done := make(chan end, 1)
	go func() {
		g, err := joinclient.Join(t.Context(), anew.config())
		done <- end{g, err}
	}()
	testkit.Eventually(t, "the wait", func() bool { return anew.said().Who == "slipway node approve dev-worker-0" })
	if said := anew.said(); time.Since(said.Since) > time.Minute || !strings.Contains(said.What, "approval of node dev-worker-0") {
		t.Errorf("said %+v", said)
	}
	if key, err := w.registry.Approve(t.Context(), "dev-worker-0"); err != nil || key != anew.pin() {
		t.Fatalf("approve: %s, %v", key, err)
	}
	e := <-done
	if e.err != nil || e.grant.Ticket.Plan.Node != "dev-worker-0" {
		t.Errorf("%v: %+v", e.err, e.grant.Ticket)
	}
	if first := w.audit()[3]; first.Reason != joinserver.Waiting || first.Node != "" && first.Node != "dev-worker-0" {
		t.Errorf("audit: %s", first)
	}
}

// Records that do not answer refuse no machine for good: it asks again.
func TestRecordsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, loose())
	m := worker(w)
	failing := make(chan struct{}, 100)
	w.store.SetFault(func(registrytest.Op) registrytest.Fault {
		select {
		case failing <- struct{}{}:
		default:
		}
		return registrytest.Fault{Err: errors.New("the API does not answer")}
	})
	done := make(chan error, 1)
	go func() {
		_, err := joinclient.Join(t.Context(), m.config())
		done <- err
	}()
	<-failing
	testkit.Eventually(t, "a report", func() bool { return strings.Contains(m.said().Detail, "not now") })
	w.store.SetFault(nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if e := w.audit()[0]; e.Reason != joinserver.Unavailable || !strings.Contains(e.Detail, "the API does not answer") {
		t.Errorf("audit: %s", e)
	}
}

// A machine that stops in the middle leaves the server nothing to wait for.
func TestMachineGoesAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := worker(w)
	conn := m.conn(t)
	m.talkOn(t, conn).challenged()
	_ = conn.Close()
	testkit.Eventually(t, "the end", func() bool { e := w.audit(); return len(e) == 1 && e[0].Reason == joinserver.Ended })
}

func TestNewRefusesHalfAConfiguration(t *testing.T) {
	t.Parallel()
	if _, err := joinserver.New(joinserver.Config{Cluster: "x"}); err == nil {
		t.Error("a service without records was made")
	}
	if _, err := joinclient.Join(t.Context(), joinclient.Config{}); err == nil {
		t.Error("a join without anything began")
	}
}
