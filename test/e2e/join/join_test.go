// SPDX-License-Identifier: Apache-2.0

// Package join_test tells how machines come to a cluster, and how a cluster begins: with a token, under an old name, with the plug
// pulled on the way, twice at once, and on a disk that is full.
package join_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

const soon = 3 * time.Minute // far more than anything here takes

// TestJoin has one cluster of a control plane and a worker. Machines that somebody else has booted come to it.
func TestJoin(t *testing.T) {
	c := kit.New(t, "join")
	c.MustUp("--control-planes", "1", "--workers", "1")
	c.AllReady(soon, 1, 1)
	first, second := c.Extra(0, nil), c.Extra(1, nil)
	var used kit.Token

	c.Part(t, "a token lets one machine in", func(c *kit.Cluster) {
		used = c.NewToken("--pool", "worker")
		begun := time.Now()
		first.For(c.T).Join(used)
		c.AllReady(soon, 1, 2)
		c.T.Logf("the machine is a ready node %.1f s after it was told to join", time.Since(begun).Seconds())
		n := nodeOf(c, first.For(c.T).Pin())
		if !slices.Equal(n.Roles, []string{"worker"}) {
			c.T.Errorf("roles of %s: %v, want those of the token's pool", n.Name, n.Roles)
		}
	})
	c.Part(t, "and no other", func(c *kit.Cluster) {
		refused(c, second.For(c.T), used, "token-used")
		leaksNothing(c, used)
	})
	c.Part(t, "keys stay where they were made", func(c *kit.Cluster) { keysStayAtHome(c) })
	c.Part(t, "a revoked token lets nobody in", func(c *kit.Cluster) {
		token := c.NewToken("--pool", "worker")
		c.Must("token", "revoke", token.ID)
		refused(c, second.For(c.T), token, "token-unknown")
	})
	c.Part(t, "nor does an expired one", func(c *kit.Cluster) {
		token := c.NewToken("--pool", "worker", "--ttl", "1s")
		testkit.Until(c.T, soon, "the token has expired", func() error {
			for line := range strings.Lines(c.Must("token", "list").Out) {
				if strings.HasPrefix(line, token.ID) && !strings.Contains(line, "expired") {
					return errors.New(line)
				}
			}
			return nil // it may have been swept
		})
		refused(c, second.For(c.T), token, "token-expired", "token-unknown")
	})
	c.Part(t, "the same name with another key waits for approval", func(c *kit.Cluster) { approve(c, second.For(c.T)) })
}

func nodeOf(c *kit.Cluster, pin string) kit.Node {
	c.T.Helper()
	nodes, err := c.Nodes()
	if err != nil {
		c.T.Fatal(err)
	}
	for _, n := range nodes {
		if n.Key == pin {
			return n
		}
	}
	c.T.Fatalf("no node has key %s: %+v", pin, nodes)
	return kit.Node{}
}

// refused has the machine try with the token. The machine is told nothing; the control plane's audit tells one of the reasons, and
// the machine stays free.
func refused(c, machine *kit.Cluster, token kit.Token, reasons ...string) {
	c.T.Helper()
	before := len(c.Read("log", "slipway", "join-audit.log"))
	r := machine.TryJoin(token, "--wait", "--timeout", "2s")
	if r.Code == 0 {
		c.T.Errorf("it was let in: %s", r)
	}
	if strings.Contains(r.Out+r.Err, reasons[0]) || strings.Contains(r.Out+r.Err, token.Token) {
		c.T.Errorf("a stranger is told too much: %s", r)
	}
	pin := machine.Pin()
	testkit.Until(c.T, soon, fmt.Sprintf("the audit says %v", reasons), func() error {
		for line := range strings.Lines(string(c.Read("log", "slipway", "join-audit.log")[before:])) {
			if strings.Contains(line, pin) && slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(line, "reason="+r) }) {
				return nil
			}
		}
		return errors.New("it does not")
	})
	if r := c.Must("node", "reset", machine.Node, "--yes"); !strings.Contains(r.Out, "free already") {
		c.T.Errorf("after the refusal: %s", r)
	}
	if nodes, err := c.Nodes(); err != nil || len(nodes) != 3 {
		c.T.Errorf("nodes after the refusal: %+v, %v", nodes, err)
	}
}

// approve replaces the machine of the spec's worker, which is gone.
func approve(c, fresh *kit.Cluster) {
	name := c.Worker(0)
	old := nodeOf(c, c.On(name).Pin())
	c.Machine("stop", name)
	token := c.NewToken("--pool", "worker", "--node", name)
	if r := fresh.TryJoin(token); r.Code != 0 {
		c.T.Fatal(r)
	}
	pin := fresh.Pin()
	testkit.Until(c.T, soon, "the list shows who waits", func() error {
		nodes, err := c.Nodes()
		if err != nil || !strings.Contains(nodes[name].Waiting, pin) || nodes[name].Key != old.Key {
			return fmt.Errorf("%+v: %w", nodes[name], err)
		}
		return nil
	})
	if _, err := os.Stat(fresh.Data("etc-kubernetes", "kubelet.conf")); err == nil {
		c.T.Error("the machine that waits has a credential")
	}
	if r := c.Must("node", "approve", name); !strings.Contains(r.Out, pin) {
		c.T.Error(r)
	}
	testkit.Until(c.T, soon, "the approved machine is the node", func() error {
		nodes, err := c.Nodes()
		if n := nodes[name]; err != nil || n.Key != pin || !n.Ready || n.Waiting != "" || slices.Contains(n.Addresses, old.Addresses[0]) {
			return fmt.Errorf("%+v: %w", n, err)
		}
		return nil
	})
	// The old machine comes back: nobody lets it in.
	c.Machine("start", name)
	testkit.Until(c.T, soon, "the audit says that the old machine is refused", func() error {
		for line := range strings.Lines(string(c.Read("log", "slipway", "join-audit.log"))) {
			if strings.Contains(line, old.Key) && strings.Contains(line, "reason=stranger") {
				return nil
			}
		}
		return errors.New("it does not")
	})
	if n := nodeOf(c, pin); n.Name != name {
		c.T.Errorf("the new machine is node %s", n.Name)
	}
}
