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

// Pools of the shortest spec.
const (
	mainPool   = "main"
	workerPool = "worker"
)

// TestJoin has a cluster of one control plane and one worker, to which machines come that crash on the way; and then its own control
// plane crashes while it lets machines in.
func TestJoin(t *testing.T) {
	c := kit.NewWith(t, "phases", kit.Failpoints(t))
	c.MustUp("--control-planes", "1", "--workers", "1")
	c.AllReady(soon, 1, 1)
	j := &joins{c: c}
	worker, second := j.join(t, workerPool, nil), j.join(t, mainPool, nil)
	t.Logf("a worker's join takes %.1f s and passes %v", worker.took.Seconds(), worker.passed)
	t.Logf("a control plane's join takes %.1f s and passes %v", second.took.Seconds(), second.passed)
	workers, seconds := ofJoin(worker.passed), ofJoin(second.passed)
	if len(workers) < 20 || len(seconds) < len(workers)+6 {
		t.Fatalf("a join passes more than that: the failpoints do not work: %v, %v", workers, seconds)
	}
	var lanes sync.WaitGroup
	for pool, all := range map[string][][]crash{ // the last machine of each crashes twice at the same place
		workerPool: append(groups(workers, together()), []crash{{"claimed", kill}, {"claimed", kill}}),
		mainPool:   append(groups(seconds, together()), []crash{{"permit written", power}, {"permit written", power}}),
	} {
		lanes.Go(func() { t.Run(pool, func(t *testing.T) { j.crashAll(t, pool, all) }) })
	}
	lanes.Wait()
	t.Run("served", func(t *testing.T) { j.serve(t) })
}

// ofJoin are the crashes to try: kill and power at each named phase. Of the files that come with a ticket, and of its certificates, the
// first and the last stand for all: between them nothing else happens, and the simulation tries each.
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

// sometimes are phases that a join need not pass: the roster that comes with the ticket may be the newest.
var sometimes = []string{"take roster", "roster taken"}

// registered is a phase that only the cluster sees: the API has the machine's Node, and nobody has called it ready.
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

// joins are the machines that come to one cluster and leave it again.
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
			if left := j.join(t, pool, []crash{one}).left; len(left) > 0 && !slices.Contains(sometimes, one.At) {
				t.Errorf("these never came: %v", left)
			}
		})
	}
}

// join has a new machine join and crash on the way, looks at it, and takes it out again.
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
	hand := holdPlug(machine)
	begun := time.Now()
	tell(machine, c.NewToken("--pool", pool))
	if i >= 0 {
		untilRegistered(c, machine)
		crashNow(machine, crashes[i].How)
	}
	n := ready(c, machine, pool)
	defer func() {
		if t.Failed() { // those that come later count the nodes
			c.Slipway("node", "remove", n.Name, "--lost", "--yes")
		}
	}()
	b.took, b.left, b.passed = time.Since(begun), left(machine), passed(machine)
	arm(machine, nil) // what has not come yet might come in the middle of what follows: another machine's join is a new roster for this one
	testkit.Until(c.T, soon, "the machine is as if nothing had happened", func() error { return same(c, machine, pool) })
	hand.letGo(t) // not before: a crash may have been on its way
	t.Logf("join took %.1f s with crashes at %v, without %v", b.took.Seconds(), crashes, b.left)
	c.Must("node", "remove", n.Name, "--yes")
	return b
}

// tell has the machine join. It may crash before it answers, and is told again.
func tell(machine *kit.Cluster, token kit.Token) {
	machine.T.Helper()
	testkit.Until(machine.T, soon, "the machine is told to join", func() error {
		if r := machine.TryJoin(token); r.Code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
}

// ready waits until the machine is a node that is ready, with etcd as a voter on a control plane; whatever was to crash has crashed.
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
				return fmt.Errorf("%+v", n)
			}
			found = n
			return converged(machine)
		}
		return fmt.Errorf("no node has key %s: %+v", pin, nodes)
	})
	return found
}

// converged asks the machine's agent.
func converged(machine *kit.Cluster) error {
	r := machine.TryExec(nil, "test ! -e /var/lib/slipway/"+offFile+" && test -S /run/slipway/agent.sock")
	if r.Code != 0 {
		return fmt.Errorf("%s", r)
	}
	return nil
}

// same: the machine is in this cluster and in no other, each component runs once, and etcd has the members that it should have.
func same(c, machine *kit.Cluster, pool string) error {
	c.T.Helper()
	programs, files := []string{"containerd", "kubelet", "kube-proxy"}, []string{"ca.crt", "join-ca.crt"}
	if pool == mainPool {
		programs, files = kit.Components(), onceMade
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
			c.T.Fatalf("%s is another one than the cluster's", file)
		}
	}
	if pool != mainPool {
		return nil // the other lane changes the members meanwhile
	}
	said, err := c.TryEtcdctl("member list")
	if err != nil {
		return err
	}
	members := strings.Split(strings.TrimSpace(said), "\n")
	bad := slices.ContainsFunc(members, func(m string) bool { return !strings.Contains(m, "started") || !strings.HasSuffix(m, "false") })
	if len(members) != 2 || bad {
		return fmt.Errorf("members of etcd, want two voters: %q", members)
	}
	return nil
}

// served are the phases of whoever lets a machine in, by the machine's pool; those that share a join lie apart. Each comes before the
// one who joins is told. A control plane signs its certificates itself.
var served = []struct {
	pool   string
	phases []string
}{
	{mainPool, []string{"serve granted", "serve learner added", "serve promote", "serve promoted"}},
	{mainPool, []string{"serve synced", "serve permitted", "serve voter made"}},
	{workerPool, []string{"serve certified"}},
}

// serve crashes the control plane that lets others in.
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
	hand := holdPlug(c)
	j.join(t, pool, nil)
	hand.letGo(t)
	if all := left(c); len(all) > 0 {
		t.Errorf("these never came: %v", all)
	}
	arm(c, nil)
	c.AllReady(soon, 1, 1)
	for _, name := range kit.Components() {
		c.Process(name)
	}
}
