// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// withInitSecret boots a machine and creates an init secret on its console.
func withInitSecret(c *kit.Cluster, i int) (machine *kit.Cluster, secret string) {
	c.T.Helper()
	machine = c.Extra(i, nil)
	var made struct{ Secret, Key, Address, Lock string }
	if err := json.Unmarshal([]byte(machine.Exec("/opt/slipway/bin/slipway init-secret create --output json")), &made); err != nil {
		c.T.Fatalf("read init secret: %v", err) // without the output, which contains it
	}
	if made.Key != machine.Pin() || made.Address != machine.Address() || made.Lock != "free" || made.Secret == "" {
		c.T.Fatalf("slipway init-secret create: got key %s, address %s, lock %s; want %s, %s, free", made.Key, made.Address, made.Lock, machine.Pin(), machine.Address())
	}
	if out := machine.Exec("/opt/slipway/bin/slipway identity"); !strings.Contains(out, machine.Pin()) {
		c.T.Errorf("slipway identity: got %s, want %s", out, machine.Pin())
	}
	return machine, made.Secret
}

// bootedWithSecret boots a machine whose user data has an init secret.
func bootedWithSecret(c *kit.Cluster, i int) (machine *kit.Cluster, secret string) {
	c.T.Helper()
	secret, file := initserver.NewSecret()
	return c.Extra(i, map[string][]byte{"init-secret.json": file}), secret
}

// initialise runs slipway init on one machine, as an operator, against another one. Each operator has its own state directory and uses the
// component store of the machine.
func initialise(c, operator, machine *kit.Cluster, who, name, secret string) kit.Result {
	c.T.Helper()
	root := "/root/" + who
	script := fmt.Sprintf("mkdir -p %[1]s && ln -sfn /var/lib/slipway/store %[1]s/store && exec /opt/slipway/bin/slipway init --root %[1]s --name %[2]s --server %[3]s --pin %[4]s --timeout 5m",
		root, name, machine.Address(), machine.Pin())
	return operator.TryExec(strings.NewReader(secret), script)
}

// TestTwoInitsOnOneMachine has two operators with the same secret create different clusters on one machine: only one may succeed.
func TestTwoInitsOnOneMachine(t *testing.T) {
	c := kit.New(t, "inits")
	machine, secret := withInitSecret(c, 0)
	operator := c.Extra(1, nil)
	results := make([]kit.Result, 2)
	var work sync.WaitGroup
	for i := range results {
		work.Go(func() {
			results[i] = initialise(c, operator, machine, fmt.Sprintf("operator-%d", i), fmt.Sprintf("cluster-%d", i), secret)
		})
	}
	work.Wait()
	winner := 0
	if results[0].Code != 0 {
		winner = 1
	}
	if results[winner].Code != 0 || results[1-winner].Code == 0 {
		t.Fatalf("want exactly one success, got\n%s\n%s", results[0], results[1])
	}
	t.Logf("error of the other init: %s", strings.TrimSpace(results[1-winner].Err))
	if p := machine.Process("etcd"); !strings.Contains(strings.Join(p.Args, " "), fmt.Sprintf("--initial-cluster-token=cluster-%d", winner)) {
		t.Errorf("etcd: got %v, want the token of cluster-%d", p.Args, winner)
	}
	// The winner repeats its request, as after a lost answer, and gets the same cluster.
	before := machine.Authorities()
	if r := initialise(c, operator, machine, fmt.Sprintf("operator-%d", winner), fmt.Sprintf("cluster-%d", winner), secret); r.Code != 0 {
		t.Error(r)
	}
	if changed := kit.Changed(before, machine.Authorities()); len(before) < len(kit.OnceOnly()) || len(changed) > 0 {
		t.Errorf("key material after the second request: got changed %v, want none of %v", changed, before)
	}
	if r := initialise(c, operator, machine, "operator-2", "cluster-2", secret); r.Code == 0 {
		t.Errorf("init with the used secret: got success, want an error: %s", r)
	}
}

// TestTwoInitsOfOneSpec has one operator create the same cluster on two machines at the same time: only one may succeed.
func TestTwoInitsOfOneSpec(t *testing.T) {
	c := kit.New(t, "inits")
	operator := c.Extra(2, nil)
	machines, results := make([]*kit.Cluster, 2), make([]kit.Result, 2)
	var secrets [2]string
	for i := range machines {
		machines[i], secrets[i] = bootedWithSecret(c, i)
	}
	var work sync.WaitGroup
	for i, m := range machines {
		work.Go(func() { results[i] = initialise(c, operator, m, "operator", "one", secrets[i]) })
	}
	work.Wait()
	if (results[0].Code == 0) == (results[1].Code == 0) {
		t.Errorf("want exactly one success, got\n%s\n%s", results[0], results[1])
	}
	for i, m := range machines {
		if has := m.TryExec(nil, "test -e /etc/kubernetes/admin.conf").Code == 0; has != (results[i].Code == 0) {
			t.Errorf("machine %d: admin.conf exists: %t, but its init ended with exit code %d", i, has, results[i].Code)
		}
	}
}

// diskSize is several times what a machine that is control plane and worker needs.
const diskSize = 1 << 30

// ownDisk mounts a tmpfs as the disk of the machine, which does not exist yet.
func ownDisk(c *kit.Cluster) (disk string) {
	c.T.Helper()
	disk = c.Data()
	if err := os.MkdirAll(disk, 0o755); err != nil {
		c.T.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprint("mode=0755,size=", diskSize)); err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() {
		c.Slipway("machine", "stop", c.Node) // it may not exist
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			c.T.Errorf("unmount %s: %v", disk, err)
		}
	})
	return disk
}

// reported runs up on a broken disk, which must fail with this text on its output or in the status. undone reports that the machine could
// not even store the init request and was made free again.
func reported(c *kit.Cluster, text string) (undone bool) {
	c.T.Helper()
	r := c.Slipway("up", "--wait", "8s")
	if r.Code == 0 {
		c.T.Fatalf("up on a broken disk: got success, want an error: %s", r)
	}
	c.T.Logf("error after %.1f s: %s", r.Elapsed.Seconds(), lastLine(r.Err))
	if strings.Contains(r.Out+r.Err, text) {
		return strings.Contains(r.Err, "the machine is free again")
	}
	testkit.Until(c.T, soon, "the status contains "+text, func() error { // a component that is being retried has no error for a moment
		if s := c.Slipway("status", "--output", "json"); !strings.Contains(s.Out, text) {
			return errors.New(lastLine(s.Out))
		}
		return nil
	})
	return false
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// TestFullDisk fills the disk at different moments of init. When space is free again, up creates the cluster.
func TestFullDisk(t *testing.T) {
	for name, moment := range map[string]string{
		"from the beginning": "",
		"after the plan":     "slipway/plan/plan.json",
		"after etcd":         "etcd/member/wal",
	} {
		t.Run(name, func(t *testing.T) {
			c := kit.New(t, "disk")
			disk := ownDisk(c)
			filler := filepath.Join(disk, "filler")
			ballast(t, filler+"-before")
			if moment != "" {
				cmd := c.Start("up", "--wait", "0")
				testkit.Until(t, soon, moment+" exists", func() error { _, err := os.Stat(filepath.Join(disk, moment)); return err })
				fill(t, filler)
				_ = cmd.Wait() // it may fail or not; the next up must report the error
			} else {
				fill(t, filler)
			}
			before := c.Authorities()
			undone := reported(c, "no space left on device")
			if err := errors.Join(os.Remove(filler), os.Remove(filler+"-before")); err != nil {
				t.Fatal(err)
			}
			c.MustUp()
			c.Healthy(soon)
			if now := c.Authorities(); len(now) < len(kit.OnceOnly()) || moment == "etcd/member/wal" && !undone && len(kit.Changed(before, now)) > 0 {
				t.Errorf("key material: got %v, was %v", now, before)
			}
		})
	}
}

// ballast allocates all but 160 MiB of the disk: etcd needs less for its log, and fill takes a moment only.
func ballast(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, diskSize-160<<20); err != nil {
		t.Fatal(err)
	}
}

// fill fills the rest of the disk, to the last byte.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		block := make([]byte, size)
		for err == nil {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

// TestReadOnlyDisk makes the disk read-only, as the kernel does after an error.
func TestReadOnlyDisk(t *testing.T) {
	c := kit.New(t, "disk")
	disk := ownDisk(c)
	c.Must("up", "--wait", "0")
	testkit.Until(t, soon, "the CAs exist", func() error { _, err := os.Stat(filepath.Join(disk, "etc-kubernetes/pki/ca.key")); return err })
	c.Machine("stop", c.Node)
	remount(t, disk, unix.MS_RDONLY)
	reported(c, "read-only file system")
	remount(t, disk, 0)
	c.MustUp()
	c.Healthy(soon)
}

func remount(t *testing.T, disk string, flags uintptr) {
	t.Helper()
	testkit.Until(t, soon, "the disk is remounted", func() error { return unix.Mount("", disk, "", unix.MS_REMOUNT|flags, "") })
}

// TestUpKilledEverySecond kills up every second while it creates a cluster, and runs it again.
func TestUpKilledEverySecond(t *testing.T) {
	c := kit.New(t, "rough-up")
	seen, kills, begun := map[string]string{}, 0, time.Now()
	for done := false; !done; kills++ {
		if time.Since(begun) > 10*time.Minute {
			t.Fatalf("cluster is not ready after %d ups", kills)
		}
		cmd := c.Start("up", "--control-planes", "3")
		ended := make(chan struct{})
		var err error
		go func() {
			err = cmd.Wait()
			close(ended)
		}()
		select {
		case <-ended:
			if err != nil {
				t.Fatalf("up %d: %v\n%s", kills, err, cmd.Output())
			}
			done = true
		case <-time.After(time.Second + time.Duration(kills/20)*time.Second): // later more, because on a slow host a second is not enough to connect to all machines
			_ = cmd.Process.Kill()
			<-ended
		}
		now := c.Authorities()
		if files := kit.Changed(seen, now); len(files) > 0 {
			t.Fatalf("after up %d: changed: %v, want none", kills, files)
		}
		seen = now
	}
	t.Logf("killed %d ups", kills-1)
	if kills < 3 {
		t.Errorf("got %d killed ups, want at least 2", kills-1)
	}
	oneCluster(c, 3)
}

// oneCluster fails the test unless all control planes are ready in one cluster and have the same key material.
func oneCluster(c *kit.Cluster, mains int) {
	c.T.Helper()
	c.AllReady(soon, mains, 0)
	for i := 1; i < mains; i++ {
		if diff := cmp.Diff(c.On(c.Main(0)).Authorities(), c.On(c.Main(i)).Authorities()); diff != "" {
			c.T.Errorf("key material (- %s, + %s):\n%s", c.Main(0), c.Main(i), diff)
		}
	}
}

// TestTwoUpsAtOnce runs two ups at the same time and cuts the power of a joining machine at several moments.
func TestTwoUpsAtOnce(t *testing.T) {
	c := kit.New(t, "rough-join")
	first, second := c.Start("up", "--control-planes", "3"), c.Start("up", "--control-planes", "3")
	joiner := c.On(c.Main(1))
	for _, moment := range []string{
		joiner.Data("slipway", "state", "join-target"), joiner.Data("slipway", "plan", "plan.json"), joiner.Data("etc-kubernetes", "pki", "ca.key"),
		joiner.Data("slipway", "state", "roster.json"), joiner.Data("slipway", "state", "etcd-permit"), joiner.Data("etcd", "member", "wal"),
		joiner.Data("slipway", "state", "etcd-voter"),
	} {
		testkit.Until(t, soon, moment+" exists", func() error { _, err := os.Stat(moment); return err })
		c.Machine("stop", joiner.Node)
		c.Machine("start", joiner.Node)
	}
	_, _ = first.Wait(), second.Wait() // they fail if a machine goes down too often
	c.MustUp()
	oneCluster(c, 3)
	if out := c.Etcdctl("member list"); strings.Count(out, ", started, ") != 3 {
		t.Errorf("members: want 3 that are started, got\n%s", out)
	}
}
