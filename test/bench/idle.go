// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

const agentProgram = "slipway agent"

// Idle is what a cluster needs that has nothing to do.
type Idle struct {
	PSS    map[string]int64   `json:"pss"`    // bytes by program, shared with nobody else on the host
	Kernel int64              `json:"kernel"` // the kernel's PSS of all: less when another cluster maps the same files
	CPU    float64            `json:"cpu"`    // seconds of all processes of the machine in a minute
	CPUBy  map[string]float64 `json:"cpuBy"`  // by program, in a minute; steps of 10 ms
	Agent  int64              `json:"agent"`  // PSS
	Share  float64            `json:"share"`  // of a core that the agent takes
	Rested float64            `json:"rested"` // seconds between the last pod and PSS
}

// rest lets the cluster be for twice the idle time: in the first it calms down, in the second it is watched.
func (b *bench) rest(ctx context.Context) (*Idle, error) {
	before, own, err := b.memory(ctx)
	if err != nil {
		return nil, err
	}
	b.say("watching for %s", b.idle)
	used, err := b.place.cgroup.cpu()
	if err != nil {
		return nil, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	begun := time.Now()
	if err := wait(ctx, b.idle); err != nil {
		return nil, err
	}
	perMinute := time.Minute.Seconds() / time.Since(begun).Seconds()
	after, err := b.processes()
	if err != nil {
		return nil, err
	}
	now, err := b.place.cgroup.cpu()
	if err != nil {
		return nil, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	i := &Idle{PSS: byProgram(before, own), CPUBy: map[string]float64{}, CPU: (now - used) * perMinute, Rested: b.idle.Seconds()}
	began := map[int]float64{}
	for _, p := range before {
		i.Kernel += p.pss
		began[p.pid] = p.cpu
	}
	for _, p := range after {
		i.CPUBy[p.program] += (p.cpu - began[p.pid]) * perMinute
	}
	i.Agent, i.Share = i.PSS[agentProgram], i.CPUBy[agentProgram]/time.Minute.Seconds()
	return i, nil
}

// memory takes the test pods away, lets the cluster calm down, and lists its processes with what each has for itself.
func (b *bench) memory(ctx context.Context) (ps []process, own map[int]int64, err error) {
	a, err := connect(b.place.apiSocket(), b.place.credential())
	if err != nil {
		return nil, nil, err
	}
	if err := a.clear(ctx); err != nil {
		return nil, nil, err
	}
	a.http.CloseIdleConnections()
	b.say("resting for %s", b.idle)
	if err := wait(ctx, b.idle); err != nil {
		return nil, nil, err
	}
	if ps, err = b.processes(); err != nil {
		return nil, nil, err
	}
	own, err = alone(ps)
	return ps, own, err
}

func byProgram(ps []process, own map[int]int64) map[string]int64 {
	by := map[string]int64{}
	for _, p := range ps {
		by[p.program] += own[p.pid]
	}
	return by
}

// sum is all of it.
func sum(by map[string]int64) (bytes int64) {
	for _, b := range by {
		bytes += b
	}
	return bytes
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
