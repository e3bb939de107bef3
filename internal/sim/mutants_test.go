// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mutant is a line that is made wrong on purpose, and the test that must notice.
type mutant struct {
	file, from, to string // from is one place in one of these files
	killer         string // -run
}

// mutants are what the simulation has to find. They are tried in a work tree of their own, at whose commit this test is run:
//
//	git worktree add --detach /tmp/mutants && SIM_MUTANTS=/tmp/mutants go test ./internal/sim -run Mutants -v -timeout 30m
func mutants() map[string]mutant {
	return map[string]mutant{
		"an undone join is taken for a reset": {
			"internal/node/enrol/enrol.go", "if now.Phase != lock.Committed {", "if now.Phase == lock.Claimed {", "TestStories/joiner-dies-twice",
		},
		"what lies between files and plan is forgotten": {
			"internal/node/install.go", "if next.Want.Version == 0 {", "if false {", "TestStories/joiner-dies-before-plan",
		},
		"a lock that is taken can be claimed": {
			"internal/node/lock/lock.go", "return State{Phase: Claimed, By: by, ID: id}, old.Phase == Free", "return State{Phase: Claimed, By: by, ID: id}, true", "TestStories/init-beats-join",
		},
		"a machine is given back before it is clean": {
			"internal/node/initserver/work.go", "\ts.pass(\"wipe\")\n", "\ts.pass(\"wipe\")\n\t_ = s.release(r)\n", "TestStories/init-fails",
		},
		"a restarted agent forgets its request": {
			"internal/node/initserver/work.go", "if state.Phase != lock.Claimed || state.By != lock.Init {\n\t\treturn nil", "if true {\n\t\treturn nil", "TestStories/init-crash-in-the-middle",
		},
		"the permit to make a cluster stays": {
			"internal/node/enrol/*.go", "os.Remove(e.cfg.Paths.Create)", "os.Remove(e.cfg.Paths.Create + \".\")", "TestStories/init-one",
		},
		"a CA is made by anybody who lacks it": {
			"internal/ca/permit.go", "if w.Permit == \"\" {", "if true {", "TestStories/ca-is-lost",
		},
		"a used token lets others in": {
			"internal/core/admission/decide.go", "case t.UsedBy != \"\" && t.UsedBy != d.req.Key:", "case false:", "TestStories/token-many-at-once",
		},
		"tokens never expire": {
			"internal/core/admission/decide.go", "case !d.now.Before(t.Expires):", "case false:", "TestStories/token-expires",
		},
		"a token is anybody's": {
			"internal/core/admission/decide.go", "case t.Key != \"\" && t.Key != d.req.Key:", "case false:", "TestStories/token-stolen",
		},
		"a control plane may move": {
			"internal/core/admission/objection.go", "case n.Address.IsValid() && n.Address != a && d.policy.Pools[n.Pool].ControlPlane:", "case false:", "TestStories/same-key-twice",
		},
		"a token is never used up": {
			"internal/control/registry/admit.go", "return j.verdict.UseToken && j.token.UsedBy != j.key", "return false", "TestStories/token-many-at-once",
		},
		"a slot never expires": {
			"internal/control/lease/lease.go", "return life - s.now().Sub(s.since)", "return life", "TestStories/slot-holder-dies",
		},
		"data of a removed member is kept": {
			"internal/node/enrol/belong.go", "if anew || err == nil {", "if anew && have == nil {", "TestStories/cut-after-add",
		},
		"nobody counts those who stay": {
			"internal/core/membership/next.go", "if q := Quorum(rest.voters); rest.healthy < q {", "if q := Quorum(rest.voters); rest.healthy < 0 {", "TestStories/remove-would-lose-quorum",
		},
		"a removed node stays in touch": {
			"internal/control/joinserver/standing.go", "return known && (!found || n.Removing)", "return known && found && n.Name == \"\"", "TestStories/removed-and-reset",
		},
		"a dead endpoint holds up the others": {
			"internal/node/joinclient/race.go", "begin := timer.C\n\t\tif next == len(endpoints) {", "begin := timer.C\n\t\tif next == len(endpoints) || running > 0 {", "TestStories/first-endpoint-dead",
		},
		"certificates are renewed before they are due": {
			"internal/ca/compare.go", "!l.now().Before(at) {", "!l.now().Before(at) || l.now().Sub(cert.NotBefore) > 1e12 {", "TestRestarts/0",
		},
		"a voter that is away is none": {
			"internal/control/members/status.go", "st, seen[own.ID] = stand(own), true\n", "st, seen[own.ID] = stand(own), true\n\t\t\tif !own.Healthy {\n\t\t\t\tcontinue\n\t\t\t}\n", "TestRestarts/0",
		},
		"a turn is anybody's": {
			"internal/control/rollout/take.go", "h != nil && h.Node != m.Self &&", "h != nil && h.Node == \"\" &&", "TestStories/change-one-at-a-time",
		},
		"an exchange needs no turn": {
			"internal/reconcile/turn.go", "step.Verb != plan.Replace ||", "step.Verb == plan.Replace ||", "TestStories/change-one-at-a-time",
		},
		"a turn ends with its agent": {
			"internal/reconcile/reconcile.go", "\tt.hold(r.Loop, e)\n", "", "TestStories/turn-broken-flag-agent-dies",
		},
		"nobody waits for who is unwell": {
			"internal/control/rollout/take.go", "if k.now().Sub(mine.since) < patience {", "if false {", "TestStories/turn-one-is-away",
		},
		"who is gone for good stops all changes": {
			"internal/control/rollout/take.go", "if k.now().Sub(mine.since) < patience {", "if true {", "TestStories/turn-holder-dies",
		},
		"a turn is not renewed": {
			"internal/control/rollout/keep.go", "if k.now().Sub(mine.renewed) < renewAfter {", "if k.now().Sub(mine.renewed) < 100*renewAfter {", "TestStories/turn-broken-flag",
		},
		"a renewal whose answer is lost is the end of a turn": {
			"internal/control/rollout/keep.go", "m.adopted = false", "m.adopted = true", "TestStories/turn-broken-flag",
		},
		"an undo waits for a loop that has ended": {
			"internal/node/install.go", "case <-a.over:", "case <-make(chan int):", "TestCrashEverywhere/worker",
		},
	}
}

// TestMutants tries every one.
func TestMutants(t *testing.T) {
	t.Parallel()
	tree := os.Getenv("SIM_MUTANTS")
	if tree == "" {
		t.Skip("SIM_MUTANTS names no work tree")
	}
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) { m.try(t, tree) })
	}
}

// find gives the file of the mutant's line.
func (m mutant) find(t *testing.T, tree string) (path, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(tree, m.file))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(f, "_test.go") && strings.Count(string(data), m.from) == 1 {
			path, text = f, string(data)
		}
	}
	if path == "" {
		t.Fatalf("%s does not hold %q once: find the new place of the line", m.file, m.from)
	}
	return path, text
}

// try breaks the line in the work tree, and wants the killer to fail there.
func (m mutant) try(t *testing.T, tree string) {
	path, text := m.find(t, tree)
	if err := os.WriteFile(path, []byte(strings.Replace(text, m.from, m.to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "./internal/sim", "-count=1", "-run", m.killer+"$", "-timeout", "2m")
	cmd.Dir = tree
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Errorf("%s does not notice", m.killer)
	case strings.Contains(string(out), "[build failed]"):
		t.Errorf("it does not build:\n%s", out)
	default:
		t.Logf("%s: %.300s", m.killer, out)
	}
}
