// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
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
			tellBoot(t, fmt.Sprintf("boot %d", i), text, uint64(i))
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
			tellBoot(t, fmt.Sprintf("restarts of cluster %d", i), text, uint64(i))
		})
	}
}

func tellBoot(t *testing.T, name, text string, seed uint64) {
	t.Helper()
	s, err := parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, name+":\n"+text, func(t *testing.T) *world { return s.run(t, seed, nil) })
}

// goAway takes the power from all machines, at once or one after the other.
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

// comeBack switches all machines on in any order, up to a minute apart. Some agents die on the way, and a machine may fall once more.
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
