// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mutant is a line that is made wrong on purpose, and the test that must notice. The line is found by its text, in
// any file of its package, so that moving it needs no change here.
type mutant struct {
	dir      string // of the package, below internal
	from, to string // from occurs exactly once in the package without its tests
	killer   string // a subtest of this package, as NAME/SUBTEST
}

// mutants are the mistakes that the simulation has to find.
func mutants() map[string]mutant {
	return map[string]mutant{
		"an undone join is taken for a reset": {
			"node/enrol", "if now.Phase != lock.Committed {", "if now.Phase == lock.Claimed {", "TestStories/joiner-dies-twice",
		},
		"a join is forgotten between its files and its plan": {
			"node", "if next.Want.Version == 0 {", "if false {", "TestStories/joiner-dies-before-plan",
		},
		"a lock that is taken can be claimed": {
			"node/lock", "return State{Phase: Claimed, By: by, ID: id}, old.Phase == Free", "return State{Phase: Claimed, By: by, ID: id}, true", "TestStories/init-beats-join",
		},
		"a machine is free before it is clean": {
			"node/initserver", "\ts.pass(\"wipe\")\n", "\ts.pass(\"wipe\")\n\t_ = s.release(r)\n", "TestStories/init-fails",
		},
		"a restarted agent forgets its request": {
			"node/initserver", "if state.Phase != lock.Claimed || state.By != lock.Init {\n\t\treturn nil", "if true {\n\t\treturn nil", "TestStories/init-crash-in-the-middle",
		},
		"the permit to create a cluster stays": {
			"node/enrol", "os.Remove(e.cfg.Paths.Create)", "os.Remove(e.cfg.Paths.Create + \".\")", "TestStories/init-one",
		},
		"a machine without a permit makes a CA": {
			"ca", "if w.Permit == \"\" {", "if true {", "TestStories/ca-is-lost",
		},
		"a used token admits others": {
			"core/admission", "case t.UsedBy != \"\" && t.UsedBy != d.req.Key:", "case false:", "TestStories/token-many-at-once",
		},
		"tokens never expire": {
			"core/admission", "case !d.now.Before(t.Expires):", "case false:", "TestStories/token-expires",
		},
		"a token for one key admits every key": {
			"core/admission", "case t.Key != \"\" && t.Key != d.req.Key:", "case false:", "TestStories/token-stolen",
		},
		"a control plane may change its address": {
			"core/admission", "case n.Address.IsValid() && n.Address != a && d.policy.Pools[n.Pool].ControlPlane:", "case false:", "TestStories/same-key-twice",
		},
		"a token is never used up": {
			"control/registry", "return j.verdict.UseToken && j.token.UsedBy != j.key", "return false", "TestStories/token-many-at-once",
		},
		"a lease never expires": {
			"control/lease", "return life - l.now().Sub(l.since)", "return life", "TestStories/lease-holder-dies",
		},
		"data of a removed etcd member is kept": {
			"node/enrol", "if discard || err == nil {", "if discard && have == nil {", "TestStories/cut-after-add",
		},
		"a removal does not count the healthy voters that stay": {
			"core/membership", "if q := Quorum(rest.voters); rest.healthy < q {", "if q := Quorum(rest.voters); rest.healthy < 0 {", "TestStories/remove-would-lose-quorum",
		},
		"a removed node keeps its connection": {
			"control/joinserver", "return known && (!found || n.Removing)", "return known && found && n.Name == \"\"", "TestStories/removed-and-reset",
		},
		"a dead endpoint holds up the others": {
			"node/joinclient", "if due && next < len(endpoints) {", "if due && next < len(endpoints) && running == 0 {", "TestStories/first-endpoint-dead",
		},
		"certificates are renewed before they are due": {
			"ca", "!l.now().Before(at) {", "!l.now().Before(at) || l.now().Sub(cert.NotBefore) > 1e12 {", "TestRestarts/0",
		},
		"an unreachable voter is not counted as a voter": {
			"control/members", "st, seen[own.ID] = stateOf(own), true\n", "st, seen[own.ID] = stateOf(own), true\n\t\t\tif !own.Healthy {\n\t\t\t\tcontinue\n\t\t\t}\n", "TestRestarts/0",
		},
		"a rollout lease that another node holds is taken": {
			"control/rollout", "h != nil && h.Node != p.Self &&", "h != nil && h.Node == \"\" &&", "TestStories/rollout-broken-flag",
		},
		"a restart needs no rollout lease": {
			"reconcile", "step.Verb != plan.Replace ||", "step.Verb == plan.Replace ||", "TestStories/change-one-at-a-time",
		},
		"the rollout lease ends with its agent": {
			"reconcile", "holds[i].keep(l, e)", "_, _ = i, e", "TestStories/rollout-broken-flag-agent-dies",
		},
		"a rollout does not wait for a degraded control plane": {
			"control/rollout", "if m.now().Sub(mine.since) < patience {", "if false {", "TestStories/rollout-machine-is-off",
		},
		"a rollout waits for a lost control plane for ever": {
			"control/rollout", "if m.now().Sub(mine.since) < patience {", "if true {", "TestStories/rollout-holder-dies",
		},
		"the rollout lease is not renewed": {
			"control/rollout", "if m.now().Sub(mine.renewed) < renewAfter &&", "if m.now().Sub(mine.renewed) < 100*renewAfter &&", "TestStories/rollout-broken-flag",
		},
		"a lost answer to a renewal loses the rollout lease": {
			"control/rollout", "p.adopted = err == nil", "p.adopted = true", "TestStories/rollout-broken-flag",
		},
		"an undo waits for a reconcile loop that has ended": {
			"node", "case <-a.over:", "case <-make(chan int):", "TestCrashEverywhere/worker",
		},
	}
}

// TestMutantsApply checks that each mutant still has its line.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	for name, m := range mutants() {
		if _, _, n := m.find(t); n != 1 {
			t.Errorf("mutant %q: got %d occurrences of %q in internal/%s, want 1: adapt the mutant to the code", name, n, m.from, m.dir)
		}
	}
}

// TestMutantsAreKilled builds the simulation with a mutant in it and wants the killer to fail. SIM_MUTANTS is the
// number of mutants that the sample selects, or all. Each takes a build.
func TestMutantsAreKilled(t *testing.T) {
	names := slices.Sorted(maps.Keys(mutants()))
	want := len(names)
	if v := os.Getenv("SIM_MUTANTS"); v != "all" {
		var err error
		if want, err = strconv.Atoi(v); err != nil {
			t.Skip("SIM_MUTANTS is neither a number nor all: make unit sets it")
		}
	}
	for _, i := range newSample(t).pick(t, want, len(names), "mutants") {
		t.Run(names[i], func(t *testing.T) { mutants()[names[i]].kill(t) })
	}
}

// find returns the last file with the mutant's line, its text, and how often the line occurs in the package.
func (m mutant) find(t *testing.T) (path, text string, n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(m.dir), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("internal/%s: got files %v, error %v", m.dir, files, err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if found := strings.Count(string(data), m.from); found > 0 {
			path, text, n = f, string(data), n+found
		}
	}
	return path, text, n
}

// kill runs the killer on an overlay of the source tree, which itself stays as it is.
func (m mutant) kill(t *testing.T) {
	path, text, n := m.find(t)
	if n != 1 {
		t.Fatalf("got %d occurrences of %q, want 1", n, m.from)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	mutated, overlay := filepath.Join(t.TempDir(), "mutated.go"), filepath.Join(t.TempDir(), "overlay.json")
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string]string{mutated: strings.Replace(text, m.from, m.to, 1), overlay: string(list)} {
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	name, sub, _ := strings.Cut(m.killer, "/")
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-count=1", "-run", "^"+name+"$/^"+sub+"$", "-timeout", "2m", ".")
	cmd.Env = append(os.Environ(), "SIM_MUTANTS=", "SIM_ALL=1")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Errorf("%s passes with the mutant, want it to fail:\n%s", m.killer, out)
	case strings.Contains(string(out), "[build failed]"):
		t.Errorf("the mutant does not build:\n%s", out)
	default:
		t.Logf("%s: %.300s", m.killer, out)
	}
}
