// SPDX-License-Identifier: Apache-2.0

// Package join_test tests how machines join a cluster and how a cluster is created: with tokens, under the name of a lost node, with
// interruptions, concurrently, on a full disk, from a copied disk and with wrong clocks.
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

const soon = 3 * time.Minute // far longer than any step takes

// TestJoin has one cluster of a control plane and a worker, which machines outside the spec join.
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
		c.T.Logf("the node is ready %.1f s after slipway join", time.Since(begun).Seconds())
		n := nodeOf(c, first.For(c.T).Pin())
		if !slices.Equal(n.Roles, []string{"worker"}) {
			c.T.Errorf("roles of %s: got %v, want [worker], as the token's pool", n.Name, n.Roles)
		}
	})
	c.Part(t, "a used token is refused", func(c *kit.Cluster) {
		refused(c, second.For(c.T), used, "token-used")
		noTokenLeaks(c, used)
	})
	c.Part(t, "no key leaks", noKeyLeaks)
	c.Part(t, "a revoked token is refused", func(c *kit.Cluster) {
		token := c.NewToken("--pool", "worker")
		c.Must("token", "revoke", token.ID)
		refused(c, second.For(c.T), token, "token-unknown")
	})
	c.Part(t, "an expired token is refused", func(c *kit.Cluster) {
		token := c.NewToken("--pool", "worker", "--ttl", "1s")
		testkit.Until(c.T, soon, "the token has expired", func() error {
			for line := range strings.Lines(c.Must("token", "list").Out) {
				if strings.HasPrefix(line, token.ID) && !strings.Contains(line, "expired") {
					return errors.New(line)
				}
			}
			return nil // the token may have been deleted
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

// refused has the machine try to join with the token. The machine does not learn the reason, the control plane's audit log has one of the
// reasons, and the machine stays free.
func refused(c, machine *kit.Cluster, token kit.Token, reasons ...string) {
	c.T.Helper()
	before := len(c.Read("log", "slipway", "join-audit.log"))
	r := machine.TryJoin(token, "--wait", "--timeout", "2s")
	if r.Code == 0 {
		c.T.Errorf("join with token %s: got success, want an error: %s", token.ID, r)
	}
	if strings.Contains(r.Out+r.Err, reasons[0]) || strings.Contains(r.Out+r.Err, token.Token) {
		c.T.Errorf("the refused machine must learn neither the reason nor the token: %s", r)
	}
	audited(c, before, machine.Pin(), reasons...)
	if r := c.Must("node", "reset", machine.Node, "--yes"); !strings.Contains(r.Out, "nothing to reset") {
		c.T.Errorf("reset after the refusal: want \"nothing to reset\", got %s", r)
	}
	if nodes, err := c.Nodes(); err != nil || len(nodes) != 3 {
		c.T.Errorf("nodes after the refusal: got %+v, %v, want 3", nodes, err)
	}
}

// audited waits until the audit log, from an offset on, has a line with this pin and one of the reasons.
func audited(c *kit.Cluster, offset int, pin string, reasons ...string) {
	c.T.Helper()
	testkit.Until(c.T, soon, fmt.Sprintf("the audit log has one of the reasons %v", reasons), func() error {
		for line := range strings.Lines(string(c.Read("log", "slipway", "join-audit.log")[offset:])) {
			if strings.Contains(line, pin) && slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(line, "reason="+r) }) {
				return nil
			}
		}
		return errors.New("no such line")
	})
}

// approve replaces the machine of the spec's worker, which is lost.
func approve(c, fresh *kit.Cluster) {
	name := c.Worker(0)
	old := nodeOf(c, c.On(name).Pin())
	c.Machine("stop", name)
	token := c.NewToken("--pool", "worker", "--node", name)
	if r := fresh.TryJoin(token); r.Code != 0 {
		c.T.Fatal(r)
	}
	pin := fresh.Pin()
	testkit.Until(c.T, soon, "slipway node list shows the new key", func() error {
		nodes, err := c.Nodes()
		if err != nil || !strings.Contains(nodes[name].Waiting, pin) || nodes[name].Key != old.Key {
			return fmt.Errorf("got %+v: %w", nodes[name], err)
		}
		return nil
	})
	if _, err := os.Stat(fresh.Data("etc-kubernetes", "kubelet.conf")); err == nil {
		c.T.Error("the machine has a kubeconfig before it is approved")
	}
	if r := c.Must("node", "approve", name); !strings.Contains(r.Out, pin) {
		c.T.Error(r)
	}
	testkit.Until(c.T, soon, "the approved machine is the node", func() error {
		nodes, err := c.Nodes()
		if n := nodes[name]; err != nil || n.Key != pin || !n.Ready || n.Waiting != "" || slices.Contains(n.Addresses, old.Addresses[0]) {
			return fmt.Errorf("got %+v: %w", n, err)
		}
		return nil
	})
	// The old machine starts again and is refused.
	c.Machine("start", name)
	audited(c, 0, old.Key, "stranger")
	if n := nodeOf(c, pin); n.Name != name {
		c.T.Errorf("node of the new machine: got %s, want %s", n.Name, name)
	}
}
