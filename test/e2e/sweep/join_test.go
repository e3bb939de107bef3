// SPDX-License-Identifier: Apache-2.0

package sweep_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// Pools of the default spec.
const (
	mainPool   = "main"
	workerPool = "worker"
)

// TestJoin has a cluster of one control plane and one worker. First, machines crash while they join it; then its control plane crashes while
// it serves joins.
func TestJoin(t *testing.T) {
	c := kit.NewWith(t, "phases", kit.Failpoints(t))
	c.MustUp("--control-planes", "1", "--workers", "1")
	c.AllReady(soon, 1, 1)
	j := &joins{c: c}
	worker, second := j.join(t, workerPool, nil), j.join(t, mainPool, nil)
	t.Logf("the join of a worker takes %.1f s and passes %v", worker.took.Seconds(), worker.passed)
	t.Logf("the join of a control plane takes %.1f s and passes %v", second.took.Seconds(), second.passed)
	workers, seconds := ofJoin(worker.passed), ofJoin(second.passed)
	if len(workers) < 20 || len(seconds) < len(workers)+6 {
		t.Fatalf("phases of a join: got %d and %d, want 20 and 6 more: the failpoints do not work: %v, %v", len(workers), len(seconds), workers, seconds)
	}
	var lanes sync.WaitGroup
	for pool, all := range map[string][][]crash{ // the last machine of each pool crashes twice at the same phase
		workerPool: append(groups(workers, crashesPerBoot()), []crash{{"claimed", kill}, {"claimed", kill}}),
		mainPool:   append(groups(seconds, crashesPerBoot()), []crash{{"permit written", power}, {"permit written", power}}),
	} {
		lanes.Go(func() { t.Run(pool, func(t *testing.T) { j.crashAll(t, pool, all) }) })
	}
	lanes.Wait()
	t.Run("served", func(t *testing.T) { j.serve(t) })
}

// ofJoin returns the crashes to try: kill and power at each named phase. Of the files and of the certificates of a ticket, it takes only the
// first and the last one: nothing else happens between them, and internal/sim tries all of them.
func ofJoin(phases []string) (all []crash) {
	var few []string
	for i, phase := range phases {
		kind, _, _ := strings.Cut(phase, " /")
		before, after := i > 0 && strings.HasPrefix(phases[i-1], kind+" /"), i+1 < len(phases) && strings.HasPrefix(phases[i+1], kind+" /")
		if named(phase) && !strings.HasPrefix(phase, "serve ") && !(before && after) {
			few = append(few, phase)
		}
	}
	for _, how := range []string{kill, power} {
		for _, phase := range append(few, registered) {
			all = append(all, crash{phase, how})
		}
	}
	return all
}

// registered is a phase that only the cluster sees: the API has the machine's Node, which is not ready yet.
const registered = "kubelet registered"

func untilRegistered(c, machine *kit.Cluster) {
	c.T.Helper()
	testkit.Until(c.T, 2*soon, "the kubelet has registered", func() error {
		nodes, err := c.Nodes()
		if err != nil {
			return err
		}
		pin, err := machine.TryPin()
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if n.Key == pin {
				if r := c.TryKubectl("", "get", "node", n.Name); r.Code != 0 {
					return fmt.Errorf("%s", r)
				}
				return nil
			}
		}
		return fmt.Errorf("no node has key %s", pin)
	})
}

// joins runs machines that join one cluster and leave it.
type joins struct {
	c    *kit.Cluster
	next atomic.Int32 // number of the machine to make
}

func (j *joins) crashAll(t *testing.T, pool string, all [][]crash) {
	var missed []crash
	for _, group := range all {
		t.Run(fmt.Sprint(group), func(t *testing.T) { missed = append(missed, j.join(t, pool, group).left...) })
	}
	for _, one := range missed {
		t.Run(fmt.Sprint("alone ", one), func(t *testing.T) {
			// A join does not pass these phases if the ticket already has the newest roster.
			optional := one.At == "take roster" || one.At == "roster taken"
			if left := j.join(t, pool, []crash{one}).left; len(left) > 0 && !optional {
				t.Errorf("crashes that did not happen: got %v, want none", left)
			}
		})
	}
}

// join has a new machine join while it crashes, checks it, and removes it from the cluster.
func (j *joins) join(t *testing.T, pool string, crashes []crash) (b booted) {
	c := j.c.For(t)
	defer func() {
		if t.Failed() {
			c.Diagnose()
		}
	}()
	mine := slices.Clone(crashes)
	i := slices.IndexFunc(mine, func(one crash) bool { return one.At == registered })
	if i >= 0 {
		mine = slices.Delete(mine, i, i+1)
	}
	machine := c.Boot(int(j.next.Add(1)), armed(t, mine))
	defer c.Machine("stop", machine.Node)
	watcher := watchPower(machine)
	begun := time.Now()
	tell(machine, c.NewToken("--pool", pool))
	if i >= 0 {
		untilRegistered(c, machine)
		crashNow(machine, crashes[i].How)
	}
	n := ready(c, machine, pool)
	defer func() {
		if t.Failed() { // later joins count the nodes
			c.Slipway("node", "remove", n.Name, "--lost", "--yes")
		}
	}()
	b.took, b.left, b.passed = time.Since(begun), left(machine), passed(machine)
	arm(machine, nil) // a later join of another machine brings a new roster, which could trigger a crash that is left
	testkit.Until(c.T, soon, "the machine is as after a join without crashes", func() error { return same(c, machine, pool) })
	watcher.stop(t) // not earlier, because a crash may have been in progress
	t.Logf("join took %.1f s with crashes at %v, not at %v", b.took.Seconds(), crashes, b.left)
	c.Must("node", "remove", n.Name, "--yes")
	return b
}

// tell runs slipway join in the machine, and repeats it if the machine crashes meanwhile.
func tell(machine *kit.Cluster, token kit.Token) {
	machine.T.Helper()
	testkit.Until(machine.T, soon, "slipway join succeeds", func() error {
		if r := machine.TryJoin(token); r.Code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
}

// ready waits until the machine is a ready node, and its etcd a voter on a control plane, and no crash is in progress.
func ready(c, machine *kit.Cluster, pool string) (found kit.Node) {
	c.T.Helper()
	testkit.Until(c.T, 2*soon, "the machine is a ready node", func() error {
		nodes, err := c.Nodes()
		if err != nil {
			return err
		}
		pin, err := machine.TryPin()
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if n.Key != pin {
				continue
			}
			if !n.Ready || n.Waiting != "" || (n.Member == "voter") != (pool == mainPool) {
				return fmt.Errorf("got %+v", n)
			}
			found = n
			return notCrashing(machine)
		}
		return fmt.Errorf("no node has key %s: %+v", pin, nodes)
	})
	return found
}

// notCrashing returns an error if the machine's power is about to be cut, or if its agent does not listen.
func notCrashing(machine *kit.Cluster) error {
	r := machine.TryExec(nil, "test ! -e /var/lib/slipway/"+offFile+" && test -S /run/slipway/agent.sock")
	if r.Code != 0 {
		return fmt.Errorf("%s", r)
	}
	return nil
}

// same checks that the machine has this cluster's key material, that each component runs once, and that etcd has the right members.
func same(c, machine *kit.Cluster, pool string) error {
	c.T.Helper()
	programs, files := []string{"containerd", "kubelet", "kube-proxy"}, []string{"ca.crt", "join-ca.crt"}
	if pool == mainPool {
		programs, files = kit.Components(), kit.OnceOnly()
	}
	for _, name := range programs {
		if _, err := machine.TryProcess(name); err != nil {
			return err
		}
	}
	for _, file := range files {
		ours, err := os.ReadFile(c.Data("etc-kubernetes", "pki", file))
		if err != nil {
			return err
		}
		its, err := os.ReadFile(machine.Data("etc-kubernetes", "pki", file))
		if err != nil {
			return err
		}
		if !bytes.Equal(ours, its) {
			c.T.Fatalf("%s of %s differs from the cluster's", file, machine.Node)
		}
	}
	if pool != mainPool {
		return nil // the joins of control planes run at the same time and change the members
	}
	out, err := c.TryEtcdctl("member list")
	if err != nil {
		return err
	}
	members := strings.Split(strings.TrimSpace(out), "\n")
	bad := slices.ContainsFunc(members, func(m string) bool { return !strings.Contains(m, "started") || !strings.HasSuffix(m, "false") })
	if len(members) != 2 || bad {
		return fmt.Errorf("members of etcd: got %q, want two voters", members)
	}
	return nil
}

// served lists groups of phases of a control plane that serves a join, with the pool of the joining machine. The control plane passes each
// phase before it answers. A joining control plane signs its certificates itself.
var served = []struct {
	pool   string
	phases []string
}{
	{mainPool, []string{"serve granted", "serve learner added", "serve promote", "serve promoted"}},
	{mainPool, []string{"serve synced", "serve permitted", "serve voter made"}},
	{workerPool, []string{"serve certified"}},
}

// serve crashes the control plane while it serves joins.
func (j *joins) serve(t *testing.T) {
	for _, how := range []string{kill, power} {
		for _, one := range served {
			var group []crash
			for _, phase := range one.phases {
				group = append(group, crash{phase, how})
			}
			t.Run(fmt.Sprint(group), func(t *testing.T) { j.serveOne(t, one.pool, group) })
		}
	}
}

func (j *joins) serveOne(t *testing.T, pool string, group []crash) {
	c := j.c.For(t)
	arm(c, group)
	watcher := watchPower(c)
	j.join(t, pool, nil)
	watcher.stop(t)
	if all := left(c); len(all) > 0 {
		t.Errorf("crashes that did not happen: got %v, want none", all)
	}
	arm(c, nil)
	c.AllReady(soon, 1, 1)
	for _, name := range kit.Components() {
		c.Process(name)
	}
}
