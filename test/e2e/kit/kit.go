// SPDX-License-Identifier: Apache-2.0

// Package kit boots real clusters for the tests in test/e2e. It runs the slipway binary as a user does, gives every test a cluster with
// its own name, and removes it at the end, including what a killed earlier run has left behind. It contains no mocks, and shipping code
// never imports it.
//
// Read [New] first, then [Cluster.Up] and [Cluster.Kubectl]; [testkit.Until] waits.
//
//	c := kit.New(t, "story")            // cluster e2e-story; needs root
//	c.MustUp()
//	nodes := c.Kubectl("get", "nodes", "--output", "name")
//	c.On(c.Worker(0)).Exec("ip route")  // in a machine other than the first
//
// Environment: SLIPWAY is the binary (default: bin/slipway of this checkout); SLIPWAY_KEEP=1 keeps the cluster of a failed test;
// SLIPWAY_E2E_PREFIX replaces "e2e-" at the start of cluster names, for two runs at the same time; SLIPWAY_E2E_INIT=systemd boots all
// machines with systemd; SLIPWAY_E2E_FORM=StaticPods runs all control planes as static pods.
package kit

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/testkit"
)

// Root is where slipway keeps everything.
const Root = "/var/lib/slipway"

// prefix starts the names of all test clusters. Two runs at the same time need different prefixes, because each run removes the
// clusters with its prefix that earlier runs have left behind.
func prefix() string { return cmp.Or(os.Getenv("SLIPWAY_E2E_PREFIX"), "e2e-") }

// Cluster is one real cluster. Its methods fail T on errors. Methods that read from or run in a machine use the machine Node;
// [Cluster.On] selects another one.
type Cluster struct {
	T    testing.TB
	Name string           // "e2e-…"
	Node string           // name of a machine; the first control plane by default
	Bin  string           // path of the slipway binary
	Init machine.InitKind // init system of its machines; empty: slipway's default
	Form string           // spec.controlPlane.form; empty: slipway's default
}

// New returns a cluster that does not exist yet, after removing leftovers of earlier runs. It waits for other tests on this host: only
// one test at a time has a cluster.
func New(t testing.TB, story string) *Cluster {
	t.Helper()
	return NewWith(t, story, Binary(t))
}

// NewWith is like New with another slipway binary.
func NewWith(t testing.TB, story, binary string) *Cluster {
	t.Helper()
	Host(t)
	c := &Cluster{T: t, Name: prefix() + story, Bin: binary, Init: machine.InitKind(os.Getenv("SLIPWAY_E2E_INIT")), Form: os.Getenv("SLIPWAY_E2E_FORM")}
	c.Node = c.Name + "-main-0"
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("SLIPWAY_KEEP") != "" {
			t.Logf("SLIPWAY_KEEP: keeping cluster %s", c.Name)
			return
		}
		c.Down()
	})
	t.Cleanup(func() { // runs before the other one
		if t.Failed() {
			c.Diagnose()
		}
	})
	return c
}

// Host reserves this host for the test: it requires root, waits for other tests, and removes clusters that killed tests left behind.
func Host(t testing.TB) {
	t.Helper()
	NeedRoot(t)
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "slipway-"+prefix()+"lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", lock.Name(), err)
	}
	for _, dir := range []string{"clusters", "machines"} {
		old, _ := filepath.Glob(filepath.Join(Root, dir, prefix()+"*"))
		for _, path := range old {
			name := filepath.Base(path)
			t.Logf("removing cluster %s of an earlier run", name)
			if r := run(t, 2*time.Minute, nil, Binary(t), "down", "--name", name); r.Code != 0 {
				t.Fatalf("remove cluster %s of an earlier run: %s", name, r)
			}
		}
	}
}

// Dice returns a source of random choices for a test, and logs its name: the choices depend only on the commit, see [testkit.Sample].
func Dice(t testing.TB) *rand.Rand {
	t.Helper()
	name, seed := testkit.Sample(t)
	t.Logf("sample %s", name)
	return rand.New(rand.NewPCG(seed, testkit.Hash(t.Name())))
}

// NeedRoot fails the test unless it runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test boots a real cluster and needs root: run it with sudo, or exclude ./test/e2e")
	}
}

// Binary returns the path of the slipway binary under test.
func Binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("SLIPWAY")
	if path == "" {
		path = filepath.Join(Checkout(), "bin", "slipway")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("find slipway binary: %v (run make build, or set SLIPWAY)", err)
	}
	return path
}

// Checkout returns the root directory of this repository.
func Checkout() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) { // -trimpath; tests run in the directory of their package
		dir, _ := os.Getwd()
		before, _, _ := strings.Cut(dir, "/test/e2e")
		return before
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// upLimit is far longer than a boot takes, even on a loaded host.
const upLimit = 3 * time.Minute

// Up runs slipway up.
func (c *Cluster) Up(args ...string) Result {
	c.T.Helper()
	return c.Slipway(append([]string{"up", "--wait", upLimit.String()}, args...)...)
}

// MustUp is like Up, but fails the test unless the command succeeds.
func (c *Cluster) MustUp(args ...string) Result {
	c.T.Helper()
	r := c.Up(args...)
	if r.Code != 0 {
		c.T.Fatalf("slipway up: %s", r)
	}
	return r
}

// UpToDate runs slipway up, which must succeed and find nothing to do.
func (c *Cluster) UpToDate(args ...string) {
	c.T.Helper()
	if r := c.MustUp(args...); !strings.Contains(r.Out, "nothing to do") {
		c.T.Errorf("slipway up on an unchanged cluster: got no \"nothing to do\": %s", r)
	}
}

// Down removes the cluster.
func (c *Cluster) Down() {
	c.T.Helper()
	if r := c.Slipway("down"); r.Code != 0 {
		c.T.Errorf("slipway down: %s", r)
	}
}

// withForm adds c.Form to the spec of an up: the spec that the test gives, or the default one of a cluster that does not exist yet. An
// existing cluster keeps its form.
func (c *Cluster) withForm(args []string) []string {
	if i := slices.Index(args, "--file"); i >= 0 && i+1 < len(args) {
		text, err := os.ReadFile(args[i+1])
		if err != nil || strings.Contains(string(text), "controlPlane:") {
			return args // slipway reports the error, or the test has chosen a form
		}
		before, after, _ := strings.Cut(string(text), "\nspec:\n")
		out := slices.Clone(args)
		out[i+1] = c.Spec(before + "\nspec:\n  controlPlane: {form: " + c.Form + "}\n" + after)
		return out
	}
	if _, err := os.Stat(filepath.Join(Root, "clusters", c.Name, "cluster.yaml")); err == nil {
		return args
	}
	rest, mains := without(args, "--control-planes")
	rest, workers := without(rest, "--workers")
	roles, more := "control-plane, worker", ""
	if workers > 0 {
		roles, more = "control-plane", fmt.Sprintf(", {name: worker, roles: [worker], count: %d}", workers)
	}
	return append(rest, "--file", c.Spec(fmt.Sprintf(`apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: %s}
spec:
  controlPlane: {form: %s}
  pools: [{name: main, roles: [%s], count: %d}%s]
`, c.Name, c.Form, roles, max(mains, 1), more)))
}

// without removes a flag with a number from a command line and returns the rest and the number.
func without(args []string, flag string) (rest []string, n int) {
	i := slices.Index(args, flag)
	if i < 0 || i+1 >= len(args) {
		return slices.Clone(args), 0
	}
	n, _ = strconv.Atoi(args[i+1])
	return slices.Concat(args[:i], args[i+2:]), n
}

// Spec writes a spec to a new file and returns its path.
func (c *Cluster) Spec(text string) string {
	c.T.Helper()
	path := filepath.Join(c.T.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.T.Fatal(err)
	}
	return path
}

// OtherForm returns the path of a spec with the form that the cluster does not have.
func (c *Cluster) OtherForm() string {
	c.T.Helper()
	other := map[string]string{"StaticPods": "HostUnits"}[c.Form]
	if other == "" {
		other = "StaticPods"
	}
	return c.Spec(fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  controlPlane: {form: %s}\n", c.Name, other))
}

// Diagnose logs the status, the last log lines and the pods of a cluster whose test has failed. It never fails the test itself.
func (c *Cluster) Diagnose() {
	r := run(c.T, upLimit, nil, c.Bin, "status", "--name", c.Name)
	c.T.Logf("---- slipway status\n%s%s", r.Out, r.Err)
	for _, machine := range c.Machines() {
		on := c.On(machine)
		logs, _ := filepath.Glob(on.Data("log", "slipway", "*.log"))
		for _, path := range append(logs, filepath.Join(on.Dir(), "console.log")) {
			text, err := os.ReadFile(path)
			if err != nil || len(strings.TrimSpace(string(text))) == 0 {
				continue
			}
			c.T.Logf("---- last lines of %s, %s\n%s", filepath.Base(path), machine, lastLines(string(text), 6))
		}
	}
	if _, err := os.Stat(c.Kubeconfig()); err == nil {
		r := run(c.T, upLimit, nil, Component(c.T, "kubectl"), "--kubeconfig", c.Kubeconfig(), "--request-timeout", "5s", "get", "nodes,pods", "--all-namespaces", "--output", "wide")
		c.T.Logf("---- kubectl get nodes,pods\n%s%s", r.Out, r.Err)
	}
}
