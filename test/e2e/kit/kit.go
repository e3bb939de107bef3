// SPDX-License-Identifier: Apache-2.0

// Package kit boots real clusters for the tests beside it. It drives the slipway binary as a user does, gives every test a
// cluster of its own name, and takes it away again, also what a killed earlier run has left. It is no mock and no
// assertion library, and code that ships never imports it.
//
// Read [New] first, then [Cluster.Up], [Cluster.Kubectl] and [Until].
//
//	c := kit.New(t, "story")            // cluster e2e-story; needs root
//	c.MustUp()
//	nodes := c.Kubectl("get", "nodes", "--output", "name")
//	c.On(c.Worker(0)).Exec("ip route")    // in another machine than the first
//
// Environment: SLIPWAY is the binary (default bin/slipway of this checkout); SLIPWAY_KEEP=1 leaves the cluster of a failed
// test for a look; SLIPWAY_E2E_PREFIX begins the clusters' names instead of "e2e-", for a run beside another one; SLIPWAY_E2E_INIT=systemd
// boots all machines with systemd; SLIPWAY_E2E_FORM=StaticPods runs the control planes of all clusters as static pods.
package kit

import (
	"cmp"
	"fmt"
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
)

// Root is where slipway keeps everything.
const Root = "/var/lib/slipway"

// prefix is what the names of all clusters of tests begin with. Two runs beside each other need two of them: each takes away
// what earlier runs have left of its own.
func prefix() string { return cmp.Or(os.Getenv("SLIPWAY_E2E_PREFIX"), "e2e-") }

// Cluster is one real cluster. Its methods fail the test that it was made for. Those that look into a machine look into Node;
// [Cluster.On] is the same cluster with another one.
type Cluster struct {
	T    testing.TB
	Name string           // "e2e-…"
	Node string           // its first machine, or the one that On has named
	Bin  string           // slipway
	Init machine.InitKind // what its machines boot with; empty means slipway's usual
	Form string           // of its control plane; empty means slipway's usual
}

// New returns a cluster that does not exist yet; everything of its kind that was left over is gone. Only one test of this
// host has a cluster at a time, for two cores bear no more.
func New(t testing.TB, story string) *Cluster {
	t.Helper()
	return NewWith(t, story, Binary(t))
}

// NewWith is New with another binary.
func NewWith(t testing.TB, story, binary string) *Cluster {
	t.Helper()
	Host(t)
	c := &Cluster{T: t, Name: prefix() + story, Bin: binary, Init: machine.InitKind(os.Getenv("SLIPWAY_E2E_INIT")), Form: os.Getenv("SLIPWAY_E2E_FORM")}
	c.Node = c.Name + "-main-0"
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("SLIPWAY_KEEP") != "" {
			t.Logf("cluster %s is kept for a look", c.Name)
			return
		}
		c.Down()
	})
	t.Cleanup(func() { // the last one runs first
		if t.Failed() {
			c.Diagnose()
		}
	})
	return c
}

// Host takes this host for the test: it needs root, waits for other tests, and removes the clusters of killed ones.
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
	for _, folder := range []string{"clusters", "machines"} {
		old, _ := filepath.Glob(filepath.Join(Root, folder, prefix()+"*"))
		for _, path := range old {
			name := filepath.Base(path)
			t.Logf("cluster %s is left from an earlier run: removing it", name)
			if r := run(t, 2*time.Minute, nil, Binary(t), "down", "--name", name); r.Code != 0 {
				t.Fatalf("remove leftover cluster %s: %s", name, r)
			}
		}
	}
}

// NeedRoot fails a test that could only fail later, in words that say less.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test boots a real cluster and needs root: run it with sudo, or leave ./test/e2e out")
	}
}

// Binary is the slipway under test.
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
		t.Fatalf("no slipway to test: %v: run make build, or set SLIPWAY", err)
	}
	return path
}

// Checkout is the root of this repository.
func Checkout() string {
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) { // -trimpath: tests run in their package's folder
		dir, _ := os.Getwd()
		before, _, _ := strings.Cut(dir, "/test/e2e")
		return before
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// upLimit is far more than a boot takes, on a host that does other things too.
const upLimit = 3 * time.Minute

// Up runs slipway up and returns how it ended.
func (c *Cluster) Up(args ...string) Result {
	c.T.Helper()
	return c.Slipway(append([]string{"up", "--wait", upLimit.String()}, args...)...)
}

// MustUp is Up that has to succeed.
func (c *Cluster) MustUp(args ...string) Result {
	c.T.Helper()
	r := c.Up(args...)
	if r.Code != 0 {
		c.T.Fatalf("slipway up: %s", r)
	}
	return r
}

// Down removes the cluster.
func (c *Cluster) Down() {
	c.T.Helper()
	if r := c.Slipway("down"); r.Code != 0 {
		c.T.Errorf("slipway down: %s", r)
	}
}

// formed gives a first up, or one with a spec of the test's, the form of the control plane that the cluster is to have. A cluster that
// is there keeps its form.
func (c *Cluster) formed(args []string) []string {
	if i := slices.Index(args, "--file"); i >= 0 && i+1 < len(args) {
		text, err := os.ReadFile(args[i+1])
		if err != nil || strings.Contains(string(text), "controlPlane:") {
			return args // for slipway to refuse, or for the test to decide
		}
		before, after, _ := strings.Cut(string(text), "\nspec:\n")
		out := slices.Clone(args)
		out[i+1] = c.spec(before + "\nspec:\n  controlPlane: {form: " + c.Form + "}\n" + after)
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
	return append(rest, "--file", c.spec(fmt.Sprintf(`apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: %s}
spec:
  controlPlane: {form: %s}
  pools: [{name: main, roles: [%s], count: %d}%s]
`, c.Name, c.Form, roles, max(mains, 1), more)))
}

// without takes a flag and its number out of a command line.
func without(args []string, flag string) (rest []string, n int) {
	i := slices.Index(args, flag)
	if i < 0 || i+1 >= len(args) {
		return slices.Clone(args), 0
	}
	n, _ = strconv.Atoi(args[i+1]) // slipway refuses what is no number
	return slices.Concat(args[:i], args[i+2:]), n
}

func (c *Cluster) spec(text string) string {
	c.T.Helper()
	path := filepath.Join(c.T.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.T.Fatal(err)
	}
	return path
}

// OtherForm is a spec with the form that the cluster does not have.
func (c *Cluster) OtherForm() string {
	c.T.Helper()
	other := map[string]string{"StaticPods": "HostUnits"}[c.Form]
	if other == "" {
		other = "StaticPods"
	}
	return c.spec(fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  controlPlane: {form: %s}\n", c.Name, other))
}

// Diagnose prints what one wants to know of a cluster that failed a test. It never fails itself.
func (c *Cluster) Diagnose() {
	r := run(c.T, upLimit, nil, c.Bin, "status", "--name", c.Name)
	c.T.Logf("---- slipway status\n%s%s", r.Out, r.Err)
	for _, machine := range c.Machines() {
		on := c.On(machine)
		logs, _ := filepath.Glob(on.Data("log", "slipway", "*.log"))
		for _, path := range append(logs, filepath.Join(on.Folder(), "console.log")) {
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
