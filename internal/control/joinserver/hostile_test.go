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

// attack is one hostile join or sync. Whatever it does, nothing is written and nothing is signed.
type attack struct {
	machine func(w *world) *machine              // who attacks, with what it rightly has
	joined  bool                                 // it is let in rightly first, so that its own record and grant are no success of the attack
	do      func(t *testing.T, m *machine) error // what the attacker is told in the end
	reason  joinserver.Reason                    // in the audit
	public  string                               // what it may be told besides the id; "refused" when empty
	byGRPC  bool                                 // gRPC answers such a message itself, with its size and nothing else
}

// Who attacks.
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
		t.Fatalf("nobody has ended it: %v; audit: %v", told, w.audit()[heard:])
	}

	var entries []joinserver.Entry
	testkit.Eventually(t, "the audit of the attack", func() bool {
		entries = w.audit()[heard:]
		return len(entries) > 0 && entries[len(entries)-1].Reason == a.reason || len(entries) > 8
	})
	last := entries[len(entries)-1]
	if last.Reason != a.reason {
		t.Errorf("refused for %q (%s), want %q", last.Reason, last.Detail, a.reason)
	}
	if diff := cmp.Diff(records, w.records(t)); diff != "" {
		t.Errorf("records (-before +after):\n%s", diff)
	}
	if n := w.signed.Load() - signed; n != 0 {
		t.Errorf("%d certificates were signed", n)
	}
	for _, e := range entries {
		if e.Reason == joinserver.Certified || e.Reason == joinserver.Granted && !a.joined {
			t.Errorf("on the way: %s", e)
		}
	}
	if !a.byGRPC {
		checkTold(t, told, a.public, last)
	}
	checkLine(t, last, m)
}

// checkTold: the attacker learns an id that the audit knows, and nothing else.
func checkTold(t *testing.T, told error, public string, e joinserver.Entry) {
	t.Helper()
	if public == "" {
		public = "refused"
	}
	if got, want := status.Convert(told).Message(), public+" (id "+e.ID+")"; got != want {
		t.Errorf("the attacker was told %q, want %q", got, want)
	}
}

var oneLine = regexp.MustCompile(`^[ -~…]*$`)

// checkLine: the entry is one line of printable text, names who did it, and holds no secret.
func checkLine(t *testing.T, e joinserver.Entry, m *machine) {
	t.Helper()
	line := e.String()
	if !oneLine.MatchString(line) || len(line) > 1024 {
		t.Errorf("audit of %d bytes: %.1024q", len(line), line)
	}
	if !strings.Contains(line, m.address.String()) || e.Detail == "" {
		t.Errorf("audit does not say from where and why: %s", line)
	}
	if m.token != "" && strings.Contains(line, m.token) || strings.Contains(line, canary) {
		t.Errorf("audit holds a secret: %s", line)
	}
}

// records are all nodes and tokens, for comparison, but for where a refused key was shown: the operator is told of that.
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
