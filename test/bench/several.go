// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Several is what clusters of several machines gave. Each list has one value for each time it was measured, in seconds.
type Several struct {
	Worker []Timed `json:"worker"` // start of a worker's agent until its node is Ready; it is told to join at once
	Grow   []Timed `json:"grow"`   // slipway up from one control plane to three
	Five   []Timed `json:"five"`   // start of slipway up until five nodes are Ready
	FiveUp []Timed `json:"fiveUp"` // the whole command
	// The longest time for which a client on a worker had no answer, while a control plane's
	Killed []Timed `json:"killed"` // API server was killed
	Lost   []Timed `json:"lost"`   // machine was cut off and stopped; its etcd followed
	// … and without an acknowledged write, while the machine was whose etcd led.
	Writes  []Timed `json:"writes"`
	Acked   int     `json:"acked"`   // writes that were acknowledged
	Missing int     `json:"missing"` // of those, how many are gone
	Joins   *Joins  `json:"joins,omitempty"`
	Live    *Live   `json:"live,omitempty"`
}

// Timed is a value and how disturbed it is.
type Timed struct {
	Value  float64 `json:"value"`
	Others float64 `json:"others"` // share of all CPUs that others took meanwhile
}

// severalLimit is far beyond what one round takes: what takes longer hangs.
const severalLimit = 5 * time.Minute

// measureSeveral measures clusters of several machines as often as wanted. It has the cluster's name to itself.
func (b *bench) measureSeveral(ctx context.Context) error {
	if b.several == 0 {
		return nil
	}
	s := &Several{}
	b.report.Several = s
	var err error
	if s.Joins, err = b.joins(ctx); err != nil {
		return err
	}
	for i := range b.several {
		what := fmt.Sprintf("several machines, round %d", i+1)
		for _, measure := range []func(context.Context, *Several) error{b.growing, b.five} {
			if err := b.quiet(ctx, what); err != nil {
				return err
			}
			if err := b.round(ctx, severalLimit, func(ctx context.Context) error { return measure(ctx, s) }); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return nil
}

// round is one cluster from nothing to nothing.
func (b *bench) round(ctx context.Context, limit time.Duration, measure func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := measure(limited)
	if err != nil && b.keep {
		return err
	}
	return errors.Join(err, b.command(context.WithoutCancel(ctx), "down", "--name", b.cluster).err)
}

// timed measures one value, and what others took of the CPUs while it was measured.
func (b *bench) timed(what string, list *[]Timed, measure func() (seconds float64, err error)) error {
	all, own, mine, begun := 0.0, 0.0, ownCPU()+childrenCPU(), time.Now()
	var err error
	if all, err = busy(); err != nil {
		return err
	}
	if own, err = b.clusterCPU(); err != nil {
		return err
	}
	value, err := measure()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	allNow, err := busy()
	if err != nil {
		return err
	}
	ownNow, err := b.clusterCPU()
	if err != nil {
		return err
	}
	others := (allNow - all) - (ownNow - own) - (ownCPU() + childrenCPU() - mine)
	t := Timed{value, max(0, others/time.Since(begun).Seconds()/float64(b.report.Host.CPUs))}
	*list = append(*list, t)
	b.say("%s: %.2f s, others took %.0f %% of the CPUs", what, t.Value, 100*t.Others)
	return nil
}

// clusterCPU is what all machines of the cluster have taken; nothing while there are none.
func (b *bench) clusterCPU() (float64, error) {
	group, err := findCgroup("slipway/" + b.cluster)
	if err != nil {
		return 0, err
	}
	seconds, err := group.cpu()
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return seconds, err
}
