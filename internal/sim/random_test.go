// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// machinesOfBoots are three control planes and two workers.
var machinesOfBoots = []string{"n1", "n2", "n3", "n4", "n5"}

// TestBoots brings up three control planes and two workers: machines are switched on in any order, and machines that
// join may be told to before there is a cluster. All of them end in one cluster.
func TestBoots(t *testing.T) {
	t.Parallel()
	sampled := newSample(t)
	for _, i := range sampled.pick(t, 50, 100, "boots") {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(uint64(i), 0xb007))
			lines := []string{"init n1", "join n2 control-plane", "join n3 control-plane", "join n4 worker", "join n5 worker"}
			dice.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
			text := "machines 5\n"
			if i%2 == 1 { // blank machines that are not on yet
				text += "crash n1 n2 n3 n4 n5\n"
			}
			for _, l := range lines {
				text += fmt.Sprintf("%s\nwait %s\n", l, upTo(dice, 3*time.Second))
			}
			if i%2 == 1 {
				text += comeBack(dice)
			}
			text += "wait\nexpect init request-n1 committed\nexpect clusters 1\nexpect members 3\nexpect records 5\nexpect nodes 5\n"
			name := fmt.Sprintf("boot %d", i)
			parse(t, name, text).Run(t, name+":\n"+text, uint64(i))
		})
	}
}

// TestRestarts takes the power from such clusters ten times each. However the machines come back, they are the same
// cluster, and nothing of it was made again.
func TestRestarts(t *testing.T) {
	t.Parallel()
	sampled := newSample(t)
	for _, i := range sampled.pick(t, 5, 10, "clusters") {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(uint64(i), 0x0ff0))
			text := "machines 5\ninit n1\njoin n2 control-plane\njoin n3 control-plane\njoin n4 worker\njoin n5 worker\nwait\nexpect nodes 5\nremember\n"
			for range 10 {
				text += goAway(dice) + comeBack(dice) + "wait\nwithin 10s same everything\n"
			}
			name := fmt.Sprintf("restarts of cluster %d", i)
			parse(t, name, text).Run(t, name+":\n"+text, uint64(i))
		})
	}
}

// goAway cuts the power of all machines, at once or one after the other.
func goAway(dice *rand.Rand) string {
	if dice.IntN(3) == 0 {
		return "crash " + strings.Join(machinesOfBoots, " ") + "\n"
	}
	text := ""
	for _, i := range dice.Perm(len(machinesOfBoots)) {
		text += fmt.Sprintf("crash %s\nwait %s\n", machinesOfBoots[i], upTo(dice, 20*time.Second))
	}
	return text
}

// comeBack switches all machines on in any order, up to a minute apart. Some agents or machines crash meanwhile.
func comeBack(dice *rand.Rand) string {
	text := ""
	for _, i := range dice.Perm(len(machinesOfBoots)) {
		m := machinesOfBoots[i]
		switch dice.IntN(6) {
		case 0:
			text += fmt.Sprintf("start %s\nwait %s\nkill %s\n", m, upTo(dice, 3*time.Second), m)
		case 1:
			text += fmt.Sprintf("start %s\nwait %s\ncrash %s\nwait %s\nstart %s\n", m, upTo(dice, 3*time.Second), m, upTo(dice, 3*time.Second), m)
		default:
			text += fmt.Sprintf("start %s\n", m)
		}
		text += fmt.Sprintf("wait %s\n", upTo(dice, time.Minute))
	}
	return text
}

func upTo(dice *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(dice.Int64N(int64(most))).Round(time.Microsecond)
}

// invent generates a story. Machines join in any order, and meanwhile agents and machines crash and the network breaks.
// In the end all are on and connected, and every machine must be a node.
func invent(seed uint64) string {
	dice := rand.New(rand.NewPCG(seed, 0xdead))
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	machines := 2 + dice.IntN(4)
	say("machines %d", machines)
	voters := 1
	var begin []string
	for i := 2; i <= machines; i++ {
		switch {
		case dice.IntN(2) == 0 && voters < 4:
			begin = append(begin, fmt.Sprintf("join n%d control-plane%s", i, []string{"", " token"}[dice.IntN(2)]))
			voters++
		case dice.IntN(2) == 0:
			begin = append(begin, fmt.Sprintf("join n%d worker token", i))
		default:
			begin = append(begin, fmt.Sprintf("join n%d worker", i))
		}
	}
	begin = append(begin, "init n1")
	dice.Shuffle(len(begin), func(i, j int) { begin[i], begin[j] = begin[j], begin[i] })
	trouble := 1 + dice.IntN(5)
	for len(begin) > 0 || trouble > 0 {
		if len(begin) > 0 && dice.IntN(3) > 0 {
			say("%s", begin[0])
			begin = begin[1:]
			continue
		}
		if trouble > 0 {
			trouble--
			disturb(dice, machines, say)
		}
	}
	say("wait")
	say("expect init request-n1 committed")
	say("expect clusters 1")
	say("expect members %d", voters)
	say("expect records %d", machines)
	say("expect nodes %d", machines)
	if voters > 1 && dice.IntN(2) == 0 {
		alter(dice, machines, voters, say)
	}
	if dice.IntN(3) == 0 {
		leave(dice, machines, voters, say)
	}
	return b.String()
}

// alter changes the plan, with a disturbance between.
func alter(dice *rand.Rand, machines, voters int, say func(string, ...any)) {
	units := []string{"etcd", "kube-apiserver"}
	for _, u := range dice.Perm(1 + dice.IntN(2)) {
		say("change %s v2", units[u])
		if dice.IntN(2) == 0 {
			disturb(dice, machines, say)
		}
	}
	say("change %s v3", units[0])
	say("wait")
	say("expect runs %s v3 %d", units[0], voters)
	say("expect members %d", voters)
	say("expect nodes %d", machines)
}

// leave removes and resets a machine, which then joins as a new node.
func leave(dice *rand.Rand, machines, voters int, say func(string, ...any)) {
	who := 2 + dice.IntN(machines-1)
	say("remove n%d", who)
	say("expect records %d", machines-1)
	if dice.IntN(2) == 0 {
		say("kill n%d at %q", who, []string{"mark the wipe", "wipe", "wiped", "free", "freed", "forget plan.json", "forget machine.key", "forget join-target"}[dice.IntN(8)])
	}
	say("reset n%d", who)
	say("wait 10s")
	say("expect free n%d", who)
	say("join n%d worker token", who)
	say("wait")
	say("expect records %d", machines)
	say("expect nodes %d", machines)
}

// anyStep returns a step that most runs reach.
func anyStep(dice *rand.Rand) string {
	steps := []string{
		"claim", "claimed", "commit", "committed", "note files", "keep the plan", "plan kept", "finish kubelet", "permit", "promoted", "take roster", "roster taken",
		"give /etc/kubernetes/pki/ca.crt", "give /etc/kubernetes/pki/ca.key", "give /var/lib/slipway/state/etcd-permit", "give /var/lib/slipway/state/etcd-voter",
		"spend token", "send hello", "got challenge", "send proof", "got grant", "send keys", "got certificates", "got permit", "got roster", "got promoted",
		"heard hello", "answer challenge", "heard proof", "answer grant", "answered grant", "heard keys", "answer certificates", "sign kubelet",
		"put nodes", "put nodes done", "put token", "put token done", "put lease", "put lease done", "put roster", "put roster done",
		"add learner", "add learner done", "promote", "promote done", "remove member", "remove member done",
		"make ca", "create cert/join-ca done", "create unit/etcd", "create unit/etcd done", "create unit/kube-apiserver done", "take back the create permit",
		"init keep request", "init claim", "init claimed", "init install", "init installed", "init keep", "init kept", "init commit", "init committed",
		"mark the wipe", "wipe", "wiped", "free", "freed", "forget plan.json", "forget plan.json.prev", "discard", "set aside",
	}
	return steps[dice.IntN(len(steps))]
}

// disturb adds one fault and its end after a while.
func disturb(dice *rand.Rand, machines int, say func(string, ...any)) {
	victim := fmt.Sprintf("n%d", 1+dice.IntN(machines))
	rest := func(most time.Duration) {
		say("wait %s", time.Duration(dice.Int64N(int64(most))).Round(time.Microsecond))
	}
	switch dice.IntN(8) {
	case 0:
		rest(2 * time.Second)
		say("kill %s", victim)
	case 1:
		rest(2 * time.Second)
		say("crash %s", victim)
		rest(30 * time.Second)
		say("start %s", victim)
	case 2:
		rest(2 * time.Second)
		say("cut %s", victim)
		rest(time.Minute)
		say("heal %s", victim)
	case 3:
		rest(time.Second)
		say("pause %s %s", victim, time.Duration(dice.Int64N(int64(5*time.Second))).Round(time.Millisecond))
	case 4, 5:
		say("crash %s at %q back %s", victim, anyStep(dice), time.Duration(dice.Int64N(int64(20*time.Second))).Round(time.Millisecond)+1)
	case 6:
		say("kill %s at %q", victim, anyStep(dice))
	default:
		rest(10 * time.Millisecond)
		say("kill %s", victim)
		rest(100 * time.Millisecond)
		say("kill %s", victim)
	}
}

// usualSeeds is how many invented stories a run takes.
const usualSeeds = 100

// TestSeed runs invented stories: those of the sample, or SIM_SEEDS many from SIM_FIRST on, or the one of -seed.
func TestSeed(t *testing.T) {
	t.Parallel()
	if *seedFlag != 0 {
		inventAndTell(t, *seedFlag)
		return
	}
	sampled := newSample(t)
	first, count := 1+sampled.dice("seeds").Uint64N(1_000_000), uint64(usualSeeds)
	if testing.Short() {
		count /= 4
	}
	for name, value := range map[string]*uint64{"SIM_SEEDS": &count, "SIM_FIRST": &first} {
		if text := os.Getenv(name); text != "" {
			if _, err := fmt.Sscan(text, value); err != nil {
				t.Fatalf("%s=%s: %v", name, text, err)
			}
		}
	}
	t.Logf("seeds %d to %d, %s", first, first+count-1, sampled)
	var next atomic.Uint64
	for worker := range 2 {
		t.Run(fmt.Sprint(worker), func(t *testing.T) {
			t.Parallel()
			for n := next.Add(1) - 1; n < count && !t.Failed(); n = next.Add(1) - 1 {
				inventAndTell(t, first+n)
			}
		})
	}
}

func inventAndTell(t *testing.T, seed uint64) {
	t.Helper()
	text := invent(seed)
	what := fmt.Sprintf("go test ./internal/sim -run Seed -seed %d\n%s", seed, text)
	parse(t, fmt.Sprintf("seed %d", seed), text).Run(t, what, seed)
}
