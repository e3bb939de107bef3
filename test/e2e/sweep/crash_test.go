// SPDX-License-Identifier: Apache-2.0

package sweep_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// Files of the failpoints build in a machine's /var/lib/slipway: see cmd/slipway/failpoint_on.go.
const (
	armedFile  = "failpoint.json"
	passedFile = "failpoint.passed"
	offFile    = "failpoint.poweroff"
)

// crash happens when an agent passes a phase the next time.
type crash struct {
	At  string `json:"at"` // phase
	How string `json:"how"`
}

// Kinds of crashes: of the agent, and of the whole machine.
const (
	kill  = "kill"
	power = "power"
)

// armed returns the files that arm an agent with crashes and make it record the phases that it passes.
func armed(t testing.TB, all []crash) map[string][]byte {
	t.Helper()
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{armedFile: text, passedFile: nil}
}

// arm arms a machine, which may not exist yet. It replaces files atomically.
func arm(c *kit.Cluster, all []crash) {
	c.T.Helper()
	dir := c.Data("slipway")
	err := os.MkdirAll(dir, 0o700)
	for name, text := range armed(c.T, all) {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path+".test", text, 0o600), os.Rename(path+".test", path))
	}
	if err != nil {
		c.T.Fatal(err)
	}
}

// crashNow crashes the machine, or its agent as soon as one runs.
func crashNow(c *kit.Cluster, how string) {
	c.T.Helper()
	if how == power {
		c.Machine("stop", c.Node)
		c.Machine("start", c.Node)
		return
	}
	testkit.Until(c.T, soon, "an agent is killed", func() error {
		for _, p := range c.Processes() {
			if len(p.Args) > 1 && filepath.Base(p.Args[0]) == "slipway" && p.Args[1] == "agent" {
				return unix.Kill(p.PID, unix.SIGKILL)
			}
		}
		return errors.New("no agent runs")
	})
}

// left returns the crashes that have not happened.
func left(c *kit.Cluster) (all []crash) {
	c.T.Helper()
	if err := json.Unmarshal(c.Read("slipway", armedFile), &all); err != nil {
		c.T.Fatal(err)
	}
	return all
}

// passed returns the phases that the machine's agents have passed, each once, in the order of the first time.
func passed(c *kit.Cluster) (phases []string) {
	c.T.Helper()
	for line := range strings.Lines(string(c.Read("slipway", passedFile))) {
		if phase := strings.TrimSpace(line); !slices.Contains(phases, phase) {
			phases = append(phases, phase)
		}
	}
	return phases
}

// powerSwitch stops and starts a machine whenever its agent has reached a phase where the power is to fail.
type powerSwitch struct {
	stopped chan struct{}
	done    sync.WaitGroup
	err     error // read after done
}

func watchPower(c *kit.Cluster) *powerSwitch {
	p := &powerSwitch{stopped: make(chan struct{})}
	machine := func(verb string) error {
		out, err := exec.Command(c.Bin, "machine", verb, c.Node, "--name", c.Name).CombinedOutput()
		if err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		return nil
	}
	mark := c.Data("slipway", offFile)
	p.done.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := os.Stat(mark); err == nil {
				p.err = errors.Join(p.err, machine("stop"), os.Remove(mark), machine("start"))
			}
			select {
			case <-p.stopped:
				return
			case <-tick.C:
			}
		}
	})
	return p
}

// stop stops watching and fails the test if the machine could not be stopped or started.
func (p *powerSwitch) stop(t testing.TB) {
	t.Helper()
	close(p.stopped)
	p.done.Wait()
	if p.err != nil {
		t.Error(p.err)
	}
}

// groups distributes crashes over groups of at most this size. The crashes of a group are far apart, so that the machine has recovered from
// one before the next one happens.
func groups(all []crash, most int) [][]crash {
	n := (len(all) + most - 1) / most
	out := make([][]crash, n)
	for i, one := range all {
		out[i%n] = append(out[i%n], one)
	}
	return out
}
