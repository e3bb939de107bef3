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
	"os"
	"path/filepath"
	"runtime"
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
