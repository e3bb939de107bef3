// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
)

// On is the same cluster, looked at from another of its machines.
func (c *Cluster) On(machine string) *Cluster {
	mine := *c
	mine.Node = machine
	return &mine
}

// For is the same cluster for another test, such as a part of this one.
func (c *Cluster) For(t testing.TB) *Cluster {
	mine := *c
	mine.T = t
	return &mine
}

// Part runs a part of the test with a cluster that fails that part.
func (c *Cluster) Part(t *testing.T, name string, test func(c *Cluster)) (passed bool) {
	t.Helper()
	return t.Run(name, func(t *testing.T) { test(c.For(t)) })
}

// Main is the name of a control plane, and Worker that of a worker, of a cluster that slipway up --control-planes has made.
func (c *Cluster) Main(i int) string   { return fmt.Sprintf("%s-main-%d", c.Name, i) }
func (c *Cluster) Worker(i int) string { return fmt.Sprintf("%s-worker-%d", c.Name, i) }

// Node is what slipway node list says of one.
type Node struct {
	Name      string   `json:"name"`
	Roles     []string `json:"roles"`
	Addresses []string `json:"addresses"`
	Ready     bool     `json:"ready"`
	Version   string   `json:"version"`
	PodCIDR   string   `json:"podCIDR"`
	Member    string   `json:"member"`
	Key       string   `json:"key"`
	Waiting   string   `json:"waiting"`
}

// Nodes asks slipway for the nodes, by name.
func (c *Cluster) Nodes() (map[string]Node, error) {
	c.T.Helper()
	r := c.Slipway("node", "list", "--output", "json")
	if r.Code != 0 {
		return nil, errors.New(r.String())
	}
	var list []Node
	if err := json.Unmarshal([]byte(r.Out), &list); err != nil {
		return nil, fmt.Errorf("read nodes: %w: %s", err, r)
	}
	nodes := map[string]Node{}
	for _, n := range list {
		nodes[n.Name] = n
	}
	return nodes, nil
}

// AllReady waits until exactly so many nodes are known and all are ready, those with etcd as voters whose etcd answers; and until
// each agent says so of its machine, but for those of [Cluster.Extra].
func (c *Cluster) AllReady(limit time.Duration, controlPlanes, workers int) map[string]Node {
	c.T.Helper()
	var nodes map[string]Node
	testkit.Until(c.T, limit, fmt.Sprintf("%d control planes and %d workers are ready", controlPlanes, workers), func() (err error) {
		if nodes, err = c.Nodes(); err != nil {
			return err
		}
		voters := 0
		for _, n := range nodes {
			if !n.Ready || n.Waiting != "" {
				return fmt.Errorf("node %+v", n)
			}
			if n.Member == "voter" {
				voters++
			}
		}
		if voters != controlPlanes || len(nodes) != controlPlanes+workers {
			return fmt.Errorf("%d nodes, %d voters", len(nodes), voters)
		}
		s, err := c.Status()
		for _, m := range s.Machines {
			if extra := strings.HasPrefix(m.Name, c.Name+"-extra-"); !extra && (m.Node == nil || !m.Node.Converged) {
				return fmt.Errorf("machine %s: %s", m.Name, s.Verdict)
			}
		}
		return err
	})
	return nodes
}

// Machine does something to a machine: stop, start, cut or heal.
func (c *Cluster) Machine(verb string, machines ...string) {
	c.T.Helper()
	for _, m := range machines {
		if r := c.Must("machine", verb, m); !strings.Contains(r.Out, m) {
			c.T.Fatal(r)
		}
	}
}

// Must is Slipway that has to succeed.
func (c *Cluster) Must(args ...string) Result {
	c.T.Helper()
	r := c.Slipway(args...)
	if r.Code != 0 {
		c.T.Fatal(r)
	}
	return r
}

// TryEtcdctl asks the etcd of the machine, which may be electing a leader just now.
func (c *Cluster) TryEtcdctl(args string) (string, error) {
	c.T.Helper()
	const pki = "/etc/kubernetes/pki/etcd/"
	r := c.TryExec(nil, "etcdctl --endpoints=https://127.0.0.1:2379 --cacert="+pki+"ca.crt --cert="+pki+"healthcheck-client.crt --key="+pki+
		"healthcheck-client.key "+args)
	if r.Code != 0 {
		return "", errors.New(r.String())
	}
	return r.Out, nil
}

// Etcdctl is TryEtcdctl until it is answered.
func (c *Cluster) Etcdctl(args string) (said string) {
	c.T.Helper()
	testkit.Until(c.T, upLimit, "etcd of "+c.Node+" answers", func() (err error) {
		said, err = c.TryEtcdctl(args)
		return err
	})
	return said
}

// Leader is the machine whose etcd leads.
func (c *Cluster) Leader() (name string) {
	c.T.Helper()
	testkit.Until(c.T, upLimit, "etcd has a leader", func() (err error) {
		name, err = c.leader()
		return err
	})
	return name
}

func (c *Cluster) leader() (string, error) {
	c.T.Helper()
	var members struct {
		Members []struct {
			ID   uint64 `json:"ID"`
			Name string `json:"name"`
		} `json:"members"`
	}
	var status []struct {
		Status struct {
			Leader uint64 `json:"leader"`
		} `json:"Status"`
	}
	err := errors.Join(json.Unmarshal([]byte(c.Etcdctl("member list --write-out json")), &members),
		json.Unmarshal([]byte(c.Etcdctl("endpoint status --write-out json")), &status))
	if err != nil {
		return "", err
	}
	for _, m := range members.Members {
		if len(status) == 1 && m.ID == status[0].Status.Leader {
			return m.Name, nil
		}
	}
	return "", fmt.Errorf("no leader: members %+v, status %+v", members, status)
}

// Machines are the names of all machines that the cluster has on this host.
func (c *Cluster) Machines() []string {
	c.T.Helper()
	found, err := filepath.Glob(filepath.Join(Root, "machines", c.Name, "*", "data"))
	if err != nil {
		c.T.Fatal(err)
	}
	for i, path := range found {
		found[i] = filepath.Base(filepath.Dir(path))
	}
	return found
}

// Token is what slipway token create says.
type Token struct {
	ID        string   `json:"id"`
	Token     string   `json:"token"`
	Pin       string   `json:"pin"`
	Cluster   string   `json:"cluster"`
	Endpoints []string `json:"endpoints"`
}

// NewToken makes a token.
func (c *Cluster) NewToken(args ...string) Token {
	c.T.Helper()
	r := c.Must(append([]string{"token", "create", "--output", "json"}, args...)...)
	var t Token
	if err := json.Unmarshal([]byte(r.Out), &t); err != nil || t.Token == "" {
		c.T.Fatalf("%v: no token", err) // never what was said: it may be one
	}
	return t
}

// TryJoin has the machine join, as its owner does on its console: the token comes by standard input. Without one, the cluster knows
// the machine's key.
func (c *Cluster) TryJoin(t Token, args ...string) Result {
	c.T.Helper()
	line := []string{"exec", "--name", c.Name, c.Node, "--", "/opt/slipway/bin/slipway", "join", "--pin", t.Pin}
	for _, e := range t.Endpoints {
		line = append(line, "--endpoint", e)
	}
	if t.Token == "" {
		line = append(line, "--known")
	}
	return run(c.T, upLimit, strings.NewReader(t.Token), c.Bin, append(line, args...)...)
}

// Join is TryJoin that waits until the machine is in.
func (c *Cluster) Join(t Token, args ...string) {
	c.T.Helper()
	if r := c.TryJoin(t, append(args, "--wait", "--timeout", "3m")...); r.Code != 0 {
		c.T.Fatal(r)
	}
}

// leaders end by themselves when they cannot renew their lease for ten seconds, as on a busy host: that is how they are made.
var leaders = [...]string{"kube-controller-manager", "kube-scheduler"}

// Steady are the processes of units, by name, that end only when somebody ends them: all but those of leaders.
func Steady(units map[string]Unit) map[string]int {
	pids := map[string]int{}
	for name, u := range units {
		if !slices.Contains(leaders[:], name) {
			pids[name] = u.PID
		}
	}
	return pids
}
