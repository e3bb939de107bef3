// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// attack is one hostile join or sync. No attack may change a record or have a certificate signed.
type attack struct {
	machine func(w *world) *machine              // the attacker, with its legitimate credentials
	joined  bool                                 // it joins legitimately first, so that its own record and grant do not count as a success of the attack
	do      func(t *testing.T, m *machine) error // returns the error that the attacker gets
	reason  joinserver.Reason                    // of the audit entry
	public  string                               // the message that it may get, besides the ID; empty: "refused"
	byGRPC  bool                                 // gRPC itself rejects the message, naming only its size
}

// Attackers.
func stranger(w *world) *machine     { return w.machine("127.0.0.66") }
func worker(w *world) *machine       { return w.machine("127.0.0.20").expected("dev-worker-0") }
func controlPlane(w *world) *machine { return w.machine("127.0.0.11").expected("dev-main-1") }

// runAttacks runs each attack against a service of its own. There are at least so many.
func runAttacks(t *testing.T, atLeast int, attacks map[string]attack) {
	t.Helper()
	if len(attacks) < atLeast {
		t.Errorf("got %d attacks, want at least %d", len(attacks), atLeast)
	}
	for name, a := range attacks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a.run(t)
		})
	}
}

func (a attack) run(t *testing.T) {
	w := newWorld(t, rpc.Limits{})
	m := a.machine(w)
	if a.joined {
		m.join(t)
	}
	records, signed, heard := w.records(t), w.signed.Load(), len(w.audit())
	told := a.do(t, m)
	if status.Code(told) == codes.DeadlineExceeded {
		t.Fatalf("the service did not end the call: %v; audit: %v", told, w.audit()[heard:])
	}

	var entries []joinserver.Entry
	testkit.Eventually(t, "the audit of the attack", func() bool {
		entries = w.audit()[heard:]
		return len(entries) > 0 && entries[len(entries)-1].Reason == a.reason || len(entries) > 8
	})
	last := entries[len(entries)-1]
	if last.Reason != a.reason {
		t.Errorf("got reason %q (%s), want %q", last.Reason, last.Detail, a.reason)
	}
	if diff := cmp.Diff(records, w.records(t)); diff != "" {
		t.Errorf("records (-before +after):\n%s", diff)
	}
	if n := w.signed.Load() - signed; n != 0 {
		t.Errorf("got %d signed certificates, want 0", n)
	}
	for _, e := range entries {
		if e.Reason == joinserver.Certified || e.Reason == joinserver.Granted && !a.joined {
			t.Errorf("got audit entry %s", e)
		}
	}
	if !a.byGRPC {
		checkTold(t, told, a.public, last)
	}
	checkLine(t, last, m)
}

// checkTold checks that the attacker gets the ID of the audit entry and nothing else.
func checkTold(t *testing.T, told error, public string, e joinserver.Entry) {
	t.Helper()
	if public == "" {
		public = "refused"
	}
	if got, want := status.Convert(told).Message(), public+" (id "+e.ID+")"; got != want {
		t.Errorf("message to the attacker: got %q, want %q", got, want)
	}
}

var oneLine = regexp.MustCompile(`^[ -~…]*$`)

// checkLine checks that the entry is one line of printable text, names the attacker, and contains no secret.
func checkLine(t *testing.T, e joinserver.Entry, m *machine) {
	t.Helper()
	line := e.String()
	if !oneLine.MatchString(line) || len(line) > 1024 {
		t.Errorf("got audit entry of %d bytes: %.1024q", len(line), line)
	}
	if !strings.Contains(line, m.address.String()) || e.Detail == "" {
		t.Errorf("got audit entry without address or detail: %s", line)
	}
	if m.token != "" && strings.Contains(line, m.token) || strings.Contains(line, canary) {
		t.Errorf("got a secret in the audit entry: %s", line)
	}
}

// records returns all nodes and tokens for comparison, without the addresses at which refused keys were seen, which the
// service records for the operator.
func (w *world) records(t *testing.T) string {
	t.Helper()
	nodes, err := w.registry.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		nodes[i].Elsewhere, nodes[i].ElsewhereAt = netip.Addr{}, time.Time{}
	}
	tokens, err := w.registry.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal([]any{nodes, tokens})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
