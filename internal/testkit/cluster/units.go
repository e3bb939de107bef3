// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node"
)

func newProcesses() *fake.Host { return fake.New() }

// noProcess is larger than every process ID of a kernel, so that a signal to it reaches no process.
const noProcess = 1 << 30

// Units implements node.Host. It also notices that an etcd has lost its data, and ends it.
func (h host) Units() []node.UnitStatus {
	if h.alive() != nil {
		return nil
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.m.etcd == "" {
		return nil
	}
	if !exists(h.root + etcdData) {
		h.m.etcdIn.etcd.Wipe(h.m.etcd)
		h.m.etcd, h.m.etcdIn = "", nil
		h.m.changeLocked()
		return nil
	}
	return []node.UnitStatus{{Name: "etcd", PID: noProcess, Since: time.Now()}}
}

func (h host) observeUnit(ctx context.Context, u plan.Unit) (plan.State, error) {
	h.m.mu.Lock()
	name, in, api := h.m.etcd, h.m.etcdIn, h.m.apiserver
	run, wanted := h.m.wanted[u.Name]
	well := h.m.wellLocked(u.Name)
	h.m.mu.Unlock()
	matches := slices.Equal(run.Args, u.Args)
	if u.Name == "etcd" {
		return h.told(u.Name, state(wanted, matches, name != "", "it is not running")), nil
	}
	if !api {
		return state(false, false, false, ""), nil
	}
	ready := false
	if in != nil && well {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err := in.etcd.Client(name).Get(short, "health")
		cancel()
		ready = err == nil
	}
	return h.told(u.Name, state(true, matches, ready, "etcd does not respond")), nil
}

// told adds whether the unit has been down for long.
func (h host) told(unit string, s plan.State) plan.State {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	s.Down = s.Existence == plan.Present && h.m.downLocked(unit, s.Ready, units.DownAfter)
	if s.Ready && s.Matches {
		delete(h.m.away, unit)
	}
	return s
}

func (h host) doUnit(ctx context.Context, v plan.Verb, u plan.Unit) error {
	if v == plan.Replace {
		if err := h.exchange(ctx, u); err != nil {
			return err
		}
	}
	begins := time.Duration(h.m.w.intn(10000)) * time.Millisecond // the start of an API server
	h.m.mu.Lock()
	if err := h.alive(); err != nil {
		h.m.mu.Unlock()
		return err
	}
	h.m.wanted[u.Name] = u
	if v == plan.Remove {
		delete(h.m.wanted, u.Name)
	}
	if u.Name == "kube-apiserver" {
		h.m.apiserver, h.m.apiReady = v != plan.Remove, time.Time{}
		if v == plan.Replace {
			h.m.apiReady = time.Now().Add(begins)
		}
	}
	h.m.changeLocked()
	h.m.mu.Unlock()
	if u.Name == "etcd" && v != plan.Remove {
		if err := h.startEtcd(u); err != nil {
			h.m.w.note("%s: etcd: %v", h.m.name, err)
		}
	}
	return nil
}

// supervise restarts etcd when it has ended, until ctx ends.
func (h host) supervise(ctx context.Context) error {
	for {
		changed := h.m.changes()
		h.m.mu.Lock()
		u, wanted := h.m.wanted["etcd"]
		if h.m.etcd != "" && !h.m.etcdIn.etcd.Running(h.m.etcd) {
			h.m.etcd, h.m.etcdIn = "", nil
		}
		h.m.mu.Unlock()
		var again <-chan time.Time
		if wanted {
			_ = h.startEtcd(u) // the next attempt follows
			again = time.After(300 * time.Millisecond)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// startEtcd starts the machine's etcd from its data or, without data, from its permit.
func (h host) startEtcd(u plan.Unit) error {
	in := h.cluster()
	if in == nil {
		return errors.New("the join CA does not exist")
	}
	if slices.Contains(u.Args, broken) {
		return errors.New("unknown flag")
	}
	permit, err := os.ReadFile(h.root + u.EnvFile)
	if err != nil {
		return err
	}
	h.m.mu.Lock() // a crash comes before all of this or after all of it
	defer h.m.mu.Unlock()
	if err := h.alive(); err != nil || h.m.etcd != "" {
		return err
	}
	data := exists(h.root + u.DataGuard.Data)
	if !data && exists(h.root+u.DataGuard.Mark) {
		return errors.New("its data is lost, and the data guard refuses an empty start")
	}
	name := u.Args[1]
	peer := fmt.Sprintf("https://%s:2380", h.m.address)
	if !data {
		in.etcd.Wipe(name) // without its data it is another member
	}
	switch {
	case data:
		err = in.etcd.Start(name, peer, nil)
	case strings.Contains(string(permit), "STATE=new"):
		err = in.etcd.Form(name, peer)
	default:
		err = in.etcd.Start(name, peer, permit)
	}
	if err == nil {
		err = os.MkdirAll(h.root+u.DataGuard.Data, 0o700)
	}
	if err != nil {
		return err
	}
	h.m.etcd, h.m.etcdIn = name, in
	in.connect(name, !h.m.isCut)
	h.m.changeLocked()
	return nil
}
