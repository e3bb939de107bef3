// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// invited is a machine that somebody else has booted, and whose owner makes an init secret on its console.
func invited(c *kit.Cluster, i int) (machine *kit.Cluster, secret string) {
	c.T.Helper()
	machine = c.Extra(i, nil)
	var made struct{ Secret, Key, Address, Lock string }
	if err := json.Unmarshal([]byte(machine.Exec("/opt/slipway/bin/slipway init-secret create --output json")), &made); err != nil {
		c.T.Fatalf("no init secret: %v", err) // never what was said
	}
	if made.Key != machine.Pin() || made.Address != address(machine) || made.Lock != "free" || made.Secret == "" {
		c.T.Fatalf("the machine says that it is %s at %s, %s; it is %s at %s", made.Key, made.Address, made.Lock, machine.Pin(), address(machine))
	}
	if out := machine.Exec("/opt/slipway/bin/slipway identity"); !strings.Contains(out, machine.Pin()) {
		c.T.Errorf("slipway identity: %s", out)
	}
	return machine, made.Secret
}

// founder is a machine that somebody else has booted, with an init secret.
func founder(c *kit.Cluster, i int) (machine *kit.Cluster, secret string) {
	c.T.Helper()
	secret, file := initserver.NewSecret()
	return c.Extra(i, map[string][]byte{"init-secret.json": file}), secret
}

// address is the machine's in the cluster's network.
func address(c *kit.Cluster) string {
	c.T.Helper()
	f := strings.Fields(c.Exec("ip -4 -oneline address show eth0"))
	before, _, _ := strings.Cut(f[3], "/")
	return before
}

// initialise runs slipway init on one machine, the operator's, against another one. Operators have folders of their own, and the
// component store of the machine that they sit at.
func initialise(c, operator, machine *kit.Cluster, who, name, secret string) kit.Result {
	c.T.Helper()
	root := "/root/" + who
	script := fmt.Sprintf("mkdir -p %[1]s && ln -sfn /var/lib/slipway/store %[1]s/store && exec /opt/slipway/bin/slipway init --root %[1]s --name %[2]s --server %[3]s --pin %[4]s --timeout 5m",
		root, name, address(machine), machine.Pin())
	return operator.TryExec(strings.NewReader(secret), script)
}

func committed(c *kit.Cluster) bool {
	return c.TryExec(nil, "test -e /etc/kubernetes/admin.conf").Code == 0
}

// TestTwoInitsOnOneMachine: two operators who both have the secret want two clusters of the same machine.
func TestTwoInitsOnOneMachine(t *testing.T) {
	c := kit.New(t, "inits")
	machine, secret := invited(c, 0)
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
		t.Fatalf("want one winner:\n%s\n%s", results[0], results[1])
	}
	t.Logf("the other one was told: %s", strings.TrimSpace(results[1-winner].Err))
	if said := machine.Process("etcd"); !strings.Contains(strings.Join(said.Args, " "), fmt.Sprintf("--initial-cluster-token=cluster-%d", winner)) {
		t.Errorf("the cluster is not the winner's: %v", said.Args)
	}
	// The winner asks again, as if the answer had been lost: it is the same cluster.
	before := authorities(machine)
	if r := initialise(c, operator, machine, fmt.Sprintf("operator-%d", winner), fmt.Sprintf("cluster-%d", winner), secret); r.Code != 0 {
		t.Error(r)
	}
	if diff := changed(before, authorities(machine)); len(before) < 6 || len(diff) > 0 {
		t.Errorf("authorities %v; made anew: %v", before, diff)
	}
	if r := initialise(c, operator, machine, "operator-2", "cluster-2", secret); r.Code == 0 {
		t.Errorf("the secret was good a second time: %s", r)
	}
}

// TestTwoInitsOfOneSpec: one operator begins the same cluster on two machines at the same moment.
func TestTwoInitsOfOneSpec(t *testing.T) {
	c := kit.New(t, "inits")
	operator := c.Extra(2, nil)
	machines, results := make([]*kit.Cluster, 2), make([]kit.Result, 2)
	var secrets [2]string
	for i := range machines {
		machines[i], secrets[i] = founder(c, i)
	}
	var work sync.WaitGroup
	for i, m := range machines {
		work.Go(func() { results[i] = initialise(c, operator, m, "operator", "one", secrets[i]) })
	}
	work.Wait()
	if (results[0].Code == 0) == (results[1].Code == 0) {
		t.Errorf("want exactly one cluster:\n%s\n%s", results[0], results[1])
	}
	for i, m := range machines {
		if has := committed(m); has != (results[i].Code == 0) {
			t.Errorf("machine %d has a cluster: %t, and its init ended with %d", i, has, results[i].Code)
		}
	}
}

// diskSize, a gibibyte, is what a machine that is control plane and worker needs, several times.
const diskSize = "1g"

// ownDisk gives the machine that is to be made a disk of its own, in memory.
func ownDisk(c *kit.Cluster) (disk string) {
	c.T.Helper()
	disk = c.Data()
	if err := os.MkdirAll(disk, 0o755); err != nil {
		c.T.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=0755,size="+diskSize); err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() {
		c.Slipway("machine", "stop", c.Node) // it may not have been made
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			c.T.Errorf("unmount %s: %v", disk, err)
		}
	})
	return disk
}

// clearly runs up on a broken disk and wants to be told of it. undone: the disk was full when the request itself was to be kept, and
// all that had been made was taken back.
func clearly(c *kit.Cluster, words string) (undone bool) {
	c.T.Helper()
	r := c.Slipway("up", "--wait", "8s")
	if r.Code == 0 {
		c.T.Fatalf("the cluster came up on a broken disk: %s", r)
	}
	c.T.Logf("told after %.1f s: %s", r.Elapsed.Seconds(), lastLine(r.Err))
	if strings.Contains(r.Out+r.Err, words) {
		return strings.Contains(r.Err, "the machine is free again")
	}
	testkit.Until(c.T, soon, "the status says "+words, func() error { // a component that is just tried again has no reason for a moment
		if s := c.Slipway("status", "--output", "json"); !strings.Contains(s.Out, words) {
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

// TestFullDisk: the disk is full at different moments of init. Once there is room again, the cluster is made.
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
				_ = cmd.Wait() // whatever it says: the next one has to tell
			} else {
				fill(t, filler)
			}
			before := authorities(c)
			undone := clearly(c, "no space left on device")
			if err := errors.Join(os.Remove(filler), os.Remove(filler+"-before")); err != nil {
				t.Fatal(err)
			}
			c.MustUp()
			c.Healthy(soon)
			if now := authorities(c); len(now) < 6 || moment == "etcd/member/wal" && !undone && len(changed(before, now)) > 0 {
				t.Errorf("authorities before %v and after %v", before, now)
			}
		})
	}
}

// ballast leaves of the disk what is filled in a moment: more than etcd takes for its log.
func ballast(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<30-160<<20); err != nil {
		t.Fatal(err)
	}
}

// fill takes what is left of the disk, to the last byte.
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

// TestReadOnlyDisk: as after a defect.
func TestReadOnlyDisk(t *testing.T) {
	c := kit.New(t, "disk")
	disk := ownDisk(c)
	c.Must("up", "--wait", "0")
	testkit.Until(t, soon, "the CAs exist", func() error { _, err := os.Stat(filepath.Join(disk, "etc-kubernetes/pki/ca.key")); return err })
	c.Machine("stop", c.Node)
	remount(t, disk, unix.MS_RDONLY)
	clearly(c, "read-only file system")
	remount(t, disk, 0)
	c.MustUp()
	c.Healthy(soon)
}

func remount(t *testing.T, disk string, flags uintptr) {
	t.Helper()
	testkit.Until(t, soon, "the disk is remounted", func() error { return unix.Mount("", disk, "", unix.MS_REMOUNT|flags, "") })
}

// authorities are what a cluster has once: its CAs' keys on a machine, as far as they are there.
func authorities(c *kit.Cluster) map[string]string {
	c.T.Helper()
	found := map[string]string{}
	for _, file := range []string{"ca.key", "etcd/ca.key", "front-proxy-ca.key", "join-ca.key", "sa.key", "encryption.key"} {
		text, err := os.ReadFile(c.Data("etc-kubernetes", "pki", file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			c.T.Fatal(err)
		}
		sum := sha256.Sum256(text)
		found[file] = fmt.Sprintf("%x", sum[:8])
	}
	return found
}

func changed(before, after map[string]string) (files []string) {
	for file, sum := range before {
		if after[file] != sum {
			files = append(files, file)
		}
	}
	return files
}

// TestUpKilledEverySecond kills the command in every second of the making of a cluster, and runs it again.
func TestUpKilledEverySecond(t *testing.T) {
	c := kit.New(t, "rough-up")
	seen, kills, begun := map[string]string{}, 0, time.Now()
	for done := false; !done; kills++ {
		if time.Since(begun) > 10*time.Minute {
			t.Fatalf("the cluster does not come up although each of %d ups goes on", kills)
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
				t.Fatalf("up %d: %v\n%s", kills, err, cmd.Said())
			}
			done = true
		case <-time.After(time.Second + time.Duration(kills/20)*time.Second): // on a slow host none would ever look at all machines
			_ = cmd.Process.Kill()
			<-ended
		}
		now := authorities(c)
		if diff := changed(seen, now); len(diff) > 0 {
			t.Fatalf("after up %d these were made anew: %v", kills, diff)
		}
		seen = now
	}
	t.Logf("%d ups were killed", kills-1)
	if kills < 3 {
		t.Error("that is not in every second of it")
	}
	oneCluster(c, 3)
}

// oneCluster: all control planes are in one cluster, with one set of authorities.
func oneCluster(c *kit.Cluster, mains int) {
	c.T.Helper()
	c.AllReady(soon, mains, 0)
	for i := 1; i < mains; i++ {
		if diff := cmp.Diff(authorities(c.On(c.Main(0))), authorities(c.On(c.Main(i)))); diff != "" {
			c.T.Errorf("authorities (- %s, + %s):\n%s", c.Main(0), c.Main(i), diff)
		}
	}
}

// TestTwoUpsAtOnce: and a machine that joins loses its power at every step on its way. The end is the same.
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
	_, _ = first.Wait(), second.Wait() // they give up when one machine goes down again and again
	c.MustUp()
	oneCluster(c, 3)
	if said := c.Etcdctl("member list"); strings.Count(said, ", started, ") != 3 {
		t.Errorf("members:\n%s", said)
	}
}
