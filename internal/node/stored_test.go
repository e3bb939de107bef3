// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// TestUnreadablePlan: with an unreadable plan the agent reports the error and does not start. Only a damaged plan is replaced by the
// operator's plan.
func TestUnreadablePlan(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		damage   func(t *testing.T, file string)
		want     []string
		replaced bool
	}{
		"not a record": {
			func(t *testing.T, file string) { t.Helper(); write(t, file, "{}") },
			[]string{"read stored plan: ", "record is damaged", "slipway up", "renames"},
			true,
		},
		"truncated": {
			func(t *testing.T, file string) {
				t.Helper()
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				write(t, file, string(data[:len(data)-1]))
			},
			[]string{"record is damaged", "checksum mismatch"},
			true,
		},
		"another schema": {
			func(t *testing.T, file string) {
				t.Helper()
				if err := durable.Save(file, storedSchema+1, "x"); err != nil {
					t.Fatal(err)
				}
			},
			[]string{"record has another schema: 2, want 1", "another version of slipway stored it"},
			false,
		},
		"a newer plan": {
			func(t *testing.T, file string) {
				t.Helper()
				body := json.RawMessage(`{"want":{"version":1,"cluster":"c","node":"n","release":"r","entries":[{"ref":"vm/a","kind":"vm","item":{}}]},"before":null}`)
				if err := durable.Save(file, storedSchema, body); err != nil {
					t.Fatal(err)
				}
			},
			[]string{`unknown kind "vm": the agent is older than the plan; update slipway on the node`},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			a, err := New(m.config())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.store(planOf(plan.Dir{Path: "/a"}), nil); err != nil {
				t.Fatal(err)
			}
			tc.damage(t, a.cfg.PlanFile)
			if err := os.RemoveAll(a.cfg.PlanFile + ".prev"); err != nil {
				t.Fatal(err)
			}
			steps := len(m.Steps())
			l := m.boot(t, m.config())
			reply, err := l.client.Status(t.Context(), &nodev1.StatusRequest{}, grpc.WaitForReady(true))
			if err != nil {
				t.Fatal(err)
			}
			items := reply.GetItems()
			if len(items) != 1 || items[0].GetRef() != StoredPlan || items[0].GetPhase() != "failing" || reply.GetConverged() || len(m.Steps()) != steps {
				t.Fatalf("got status %v, %d steps", reply, len(m.Steps())-steps)
			}
			for _, part := range append(tc.want, m.dir) {
				if !strings.Contains(items[0].GetError(), part) {
					t.Errorf("got %q, want it to contain %q", items[0].GetError(), part)
				}
			}
			if !tc.replaced {
				if _, err := l.Apply(t.Context(), planOf(plan.Dir{Path: "/a"}), nil); err == nil {
					t.Error("a plan of another version was replaced")
				}
				return
			}
			l.send(t, planOf(plan.Dir{Path: "/a"}), "")
			l.converged(t)
			aside, err := filepath.Glob(l.cfg.PlanFile + ".damaged-*")
			if err != nil || len(aside) != 1 {
				t.Errorf("renamed files: got %v, %v, want one", aside, err)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPlanOfAnotherNode: plans for another node or cluster are refused.
func TestPlanOfAnotherNode(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	l.send(t, planOf(plan.Dir{Path: "/a"}), "")
	l.converged(t)
	for name, tc := range map[string]struct {
		wire string
		code codes.Code
		want string
	}{
		"another cluster": {
			`{"version":1,"cluster":"prod","node":"n1","release":"","entries":[]}`, codes.FailedPrecondition,
			"this machine is node n1 of cluster dev: it does not accept a plan for node n1 of cluster prod",
		},
		"another node": {
			`{"version":1,"cluster":"dev","node":"n2","release":"","entries":[]}`, codes.FailedPrecondition,
			"this machine is node n1 of cluster dev: it does not accept a plan for node n2 of cluster dev",
		},
		"another version": {
			`{"version":2}`, codes.InvalidArgument, "decode plan: version 2, want 1 (use the same slipway version on the operator's host and the node)",
		},
	} {
		_, err := l.client.Apply(t.Context(), &nodev1.ApplyRequest{Plan: []byte(tc.wire)}, grpc.WaitForReady(true))
		if s, _ := status.FromError(err); s.Code() != tc.code || s.Message() != tc.want {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if n := len(m.Steps()); n != 1 {
		t.Errorf("got %d steps, want 1", n)
	}
	if _, err := l.client.Diff(t.Context(), &nodev1.DiffRequest{Plan: []byte(`{"version":2}`)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("diff: got %v", err)
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	chain := func(names ...string) plan.Plan {
		var b plan.Builder
		var needs []plan.Ref
		for _, n := range names {
			needs = []plan.Ref{b.Add(plan.Dir{Path: n}, needs...)}
		}
		return b.Plan("dev", "n1", "r")
	}
	for name, tc := range map[string]struct {
		a, b plan.Plan
		want []string
	}{
		"nothing yet":           {},
		"only now":              {a: chain("x", "y"), want: []string{"x", "y"}},
		"only before":           {b: chain("x", "y"), want: []string{"x", "y"}},
		"what only b has first": {a: chain("x", "y"), b: chain("o", "x", "p"), want: []string{"o", "p", "x", "y"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := merge(tc.a, tc.b)
			var names []string
			for _, e := range got.Entries {
				names = append(names, e.Item.Key())
			}
			if diff := cmp.Diff(tc.want, names); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
			data, err := json.Marshal(rawPlan{Plan: got})
			if err != nil {
				t.Fatal(err)
			}
			var back rawPlan
			if err := json.Unmarshal(data, &back); err != nil {
				t.Errorf("decode merged plan: %v", err)
			}
		})
	}
}
