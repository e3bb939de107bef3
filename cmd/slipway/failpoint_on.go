// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/etcd"
)

// Files below /var/lib/slipway with which tests control the agent.
const (
	armedFile  = "failpoint.json"     // a list of failpoint that the test writes; the agent removes those that it has reached
	passedFile = "failpoint.passed"   // if it exists, the agent appends a line for each phase
	clockFile  = "failpoint.clock"    // offset of the agent's clock, such as -17520h; it may change at any time
	offFile    = "failpoint.poweroff" // the agent has stopped and waits until the test powers the machine off
)

// failpoint is a crash that happens once, when the agent next reaches the phase At.
type failpoint struct {
	At  string `json:"at"`
	How string `json:"how"` // kill: the agent; power: the machine
}

// failpoints are the failpoints of a machine.
type failpoints struct{ *armed }

type armed struct {
	dir string

	mu sync.Mutex // guards the files; a goroutine that crashes does not release it
}

func newFailpoints() failpoints { return failpoints{&armed{dir: stateDir}} }

// Now returns the time with the offset from clockFile: a local machine shares the clock of its host.
func (a *armed) Now() time.Time {
	text, err := os.ReadFile(filepath.Join(a.dir, clockFile))
	if err != nil {
		return time.Now()
	}
	off, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		panic("failpoint.clock: " + err.Error())
	}
	return time.Now().Add(off)
}

func (a *armed) pass() func(phase string) { return a.reach }

func (a *armed) afterStep() func(n int, s plan.Step) {
	return func(_ int, s plan.Step) { a.reach(fmt.Sprintf("step %s %s", s.Verb, s.Ref)) }
}

// Audit reaches a phase before the machine receives the decision about its request.
func (a *armed) Audit(to func(joinserver.Entry)) func(joinserver.Entry) {
	return func(e joinserver.Entry) {
		to(e)
		a.reach("serve " + string(e.Reason))
	}
}

func (a *armed) Etcd(c *etcd.Client) members.Etcd { return passingEtcd{c, a} }

// passingEtcd reaches a phase after each change of etcd's membership, before the change is recorded elsewhere.
type passingEtcd struct {
	*etcd.Client
	armed *armed
}

func (p passingEtcd) AddLearner(ctx context.Context, peerURL string) (uint64, []membership.Member, error) {
	id, all, err := p.Client.AddLearner(ctx, peerURL)
	if err == nil {
		p.armed.reach("serve learner added")
	}
	return id, all, err
}

func (p passingEtcd) Promote(ctx context.Context, id uint64) error {
	p.armed.reach("serve promote")
	err := p.Client.Promote(ctx, id)
	if err == nil {
		p.armed.reach("serve voter made")
	}
	return err
}

// reach crashes as hard as a process can, if it is armed for this phase. It is disarmed first, so that the next agent lives.
func (a *armed) reach(phase string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f, err := os.OpenFile(filepath.Join(a.dir, passedFile), os.O_WRONLY|os.O_APPEND, 0); err == nil {
		_, _ = f.WriteString(phase + "\n") // a phase that is missing fails the test
		_ = f.Close()
	}
	text, err := os.ReadFile(filepath.Join(a.dir, armedFile))
	var all []failpoint
	if err != nil || json.Unmarshal(text, &all) != nil {
		return
	}
	i := slices.IndexFunc(all, func(f failpoint) bool { return f.At == phase })
	if i < 0 {
		return
	}
	how := all[i].How
	if a.write(armedFile, slices.Delete(all, i, i+1)) != nil {
		return
	}
	if how == "power" {
		if a.write(offFile, phase) == nil {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// write replaces a file at once; nothing has to outlive a real power cut.
func (a *armed) write(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
