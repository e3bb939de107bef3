// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// clients of the API on a worker: some keep their connections, which the balancer spreads, some connect for each question.
const (
	keeping  = 6
	anew     = 2
	goOn     = 100 // answers to each client after an accident before it counts as over
	mostGap  = 30 * time.Second
	readPath = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt" // from etcd
)

// five makes three control planes and two workers from nothing and then takes from it what a cluster can lose.
func (b *bench) five(ctx context.Context, s *Several) error {
	var up result
	err := b.timed("five machines", &s.Five, func() (float64, error) {
		var ready time.Duration
		begun := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error {
			up = b.up(ctx, 3, 2)
			return up.err
		})
		group.Go(func() error {
			var a api
			err := poll(ctx, step, func() (ok bool) {
				var err error
				a, err = b.through(b.main(0))
				return err == nil
			})
			if err != nil {
				return err
			}
			err = a.readyNodes(ctx, 5)
			ready = time.Since(begun)
			return err
		})
		err := group.Wait()
		return ready.Seconds(), err
	})
	if err != nil {
		return err
	}
	s.FiveUp = append(s.FiveUp, Timed{up.elapsed.Seconds(), s.Five[len(s.Five)-1].Others})
	return b.lossy(ctx, s)
}

// lossy kills an API server, then a machine that follows, then the one that leads.
func (b *bench) lossy(ctx context.Context, s *Several) error {
	leader, err := b.leads(ctx)
	if err != nil {
		return err
	}
	follower := b.main(1)
	if follower == leader {
		follower = b.main(2)
	}
	if err := b.timed("API server killed", &s.Killed, func() (float64, error) {
		return b.gap(ctx, func() error { return b.kill(follower, "kube-apiserver") })
	}); err != nil {
		return err
	}
	if err := b.settled(ctx, follower); err != nil {
		return err
	}
	if err := b.timed("machine lost", &s.Lost, func() (float64, error) {
		return b.gap(ctx, func() error { return b.lose(ctx, follower) })
	}); err != nil {
		return err
	}
	if err := b.bringBack(ctx, follower); err != nil {
		return err
	}
	if err := b.settled(ctx, follower); err != nil {
		return err
	}
	return b.timed("leader lost", &s.Writes, func() (float64, error) { return b.writeGap(ctx, s) })
}

// gap is the longest time for which a client on a worker has no answer when something happens.
func (b *bench) gap(ctx context.Context, happen func() error) (float64, error) {
	var all []*asker
	for i := range keeping + anew {
		a, err := b.through(b.worker(0))
		if err != nil {
			return 0, err
		}
		if i >= keeping {
			a = a.anew()
		}
		all = append(all, newAsker(func(ctx context.Context) error { return a.expect(ctx, http.MethodGet, readPath, "", http.StatusOK) }))
	}
	working, stop := context.WithCancel(ctx)
	group, working := errgroup.WithContext(working)
	for _, q := range all {
		group.Go(func() error { return q.run(working) })
	}
	err := around(ctx, all, happen)
	stop()
	_ = group.Wait() // nothing but the end of its context
	longest := time.Duration(0)
	for _, q := range all {
		longest = max(longest, q.longest())
	}
	return longest.Seconds(), err
}

// around lets every client have answers, something happen, and every client go on for a while.
func around(ctx context.Context, all []*asker, happen func() error) error {
	limited, cancel := context.WithTimeoutCause(ctx, mostGap, fmt.Errorf("a client had no %d answers within %s", goOn, mostGap))
	defer cancel()
	each := func(n int) error {
		for _, q := range all {
			if err := poll(limited, step, func() bool { return q.answered() >= n }); err != nil {
				return fmt.Errorf("%w, but %d; its last error: %w", context.Cause(limited), q.answered(), q.complaint())
			}
		}
		return nil
	}
	if err := each(goOn / 5); err != nil {
		return err
	}
	for _, q := range all {
		q.reset()
	}
	if err := happen(); err != nil {
		return err
	}
	return each(goOn)
}
