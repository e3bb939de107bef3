// SPDX-License-Identifier: Apache-2.0

package ha_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// What a worker's client of the API bears at most (issue 3).
const (
	serverLoss = 3 * time.Second  // of an API server or of its machine
	leaderLoss = 15 * time.Second // of the machine whose etcd leads
)

// killAPIServer kills one after the other, so that whichever the worker's connections have, it is one of them. Several clients keep
// their connections, which the balancer spreads.
func killAPIServer(c *kit.Cluster) {
	readers := c.On(c.Worker(0)).ReadAPI(4, 2)
	defer readers.Stop()
	for i := range mains {
		main := c.On(c.Main(i))
		before := main.Process("kube-apiserver")
		readers.Reset()
		main.Kill(before)
		kit.Until(c.T, soon, main.Node+" has another API server, which is ready", func() error {
			units, err := main.Units()
			if err != nil {
				return err
			}
			if u := units["kube-apiserver"]; u.PID == before.Inside || !u.Ready || u.PID == 0 {
				return fmt.Errorf("%+v", u)
			}
			return nil
		})
		served(c, readers, "the API server of "+main.Node+" was killed", serverLoss)
	}
}

// served fails when a client was without an answer for longer than that.
func served(c *kit.Cluster, readers kit.Readers, what string, limit time.Duration) {
	c.T.Helper()
	gap, answers, err := readers.Gap()
	c.T.Logf("%s: at least %d answers to each client, longest gap %.2f s (last error: %v)", what, answers, gap.Seconds(), err)
	if gap > limit || answers == 0 {
		c.T.Errorf("%s: a worker's client was without an answer for %s, want at most %s: %v", what, gap, limit, err)
	}
}

// stopFollower pulls the plug of a control plane whose etcd does not lead.
func stopFollower(c *kit.Cluster) {
	leader := c.Leader()
	victim := c.Main(0)
	if victim == leader {
		victim = c.Main(1)
	}
	readers := c.On(c.Worker(0)).ReadAPI(4, 2)
	defer readers.Stop()
	kit.Until(c.T, soon, "each client has answers", func() error {
		if _, answers, err := readers.Gap(); answers < 5 {
			return fmt.Errorf("%d answers: %w", answers, err)
		}
		return nil
	})
	readers.Reset()
	c.Machine("cut", victim) // first, so that no connection is closed with a last word
	c.Machine("stop", victim)
	kit.Until(c.T, soon, "each client has gone on for a while", func() error {
		if _, answers, err := readers.Gap(); answers < 100 {
			return fmt.Errorf("%d answers: %w", answers, err)
		}
		return nil
	})
	served(c, readers, "the machine "+victim+" was stopped", serverLoss)
	begun := time.Now()
	c.Machine("heal", victim)
	c.Machine("start", victim)
	c.AllReady(soon, mains, workers)
	c.T.Logf("%s is back after %.1f s", victim, time.Since(begun).Seconds())
}

// stopLeader pulls the plug of the control plane whose etcd leads, while somebody writes.
func stopLeader(c *kit.Cluster) {
	leader := c.Leader()
	writer := c.On(c.Worker(0)).WriteAPI("leader-loss")
	defer writer.Stop()
	writes(c, writer, 20)
	writer.Reset()
	c.Machine("cut", leader)
	c.Machine("stop", leader)
	writes(c, writer, 100)
	gap, answers, err := writer.Gap()
	c.T.Logf("%s, which led, was stopped: longest gap between acknowledged writes %.2f s, %d since (last error: %v)", leader, gap.Seconds(), answers, err)
	if gap > leaderLoss {
		c.T.Errorf("no acknowledged write for %s, want at most %s: %v", gap, leaderLoss, err)
	}
	c.Machine("heal", leader)
	c.Machine("start", leader)
	c.AllReady(soon, mains, workers)
	writer.Stop()
	writer.AllThere(c)
	healthyMembers(c)
}

// writes waits until so many more writes were acknowledged since the last Reset.
func writes(c *kit.Cluster, w *kit.Writer, n int) {
	c.T.Helper()
	kit.Until(c.T, soon, strconv.Itoa(n)+" acknowledged writes", func() error {
		if _, answers, err := w.Gap(); answers < n {
			return fmt.Errorf("%d writes: %w", answers, err)
		}
		return nil
	})
}

// healthyMembers asks every member itself.
func healthyMembers(c *kit.Cluster) {
	c.T.Helper()
	for i := range mains {
		kit.Until(c.T, soon, fmt.Sprintf("seen from %s, all %d members are healthy", c.Main(i), mains), func() error {
			said, err := c.On(c.Main(i)).TryEtcdctl("endpoint health --cluster 2>&1")
			if err == nil && strings.Count(said, "is healthy") != mains {
				err = errors.New(said)
			}
			return err
		})
	}
}
