// SPDX-License-Identifier: Apache-2.0

// Package etcdfake is an etcd cluster in memory: members, their processes and data, quorum, learners, and the strict checks of
// real etcd. It passes the same conformance suite (etcdtest). It uses the time package only, so it works in testing/synctest. It is
// for tests and the simulation only.
//
// Read [Cluster], [Cluster.Start] and [Client].
//
//	c := etcdfake.New()
//	c.Form("a", "https://192.0.2.1:2380")
//	id, all, err := c.Client("a").AddLearner(ctx, "https://192.0.2.2:2380")
//	err = c.Start("b", "https://192.0.2.2:2380", permit)
package etcdfake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/membership"
)

// Cluster is safe for concurrent use. Set the exported fields before using it.
type Cluster struct {
	CatchUp  time.Duration // how long a learner's etcd must run before it can be promoted
	Settle   time.Duration // how long voters must have been connected before a member is added; real etcd: 5 s
	Deadline time.Duration // after which a call without a response ends; 0: 3 s
	// Fault, if set, is called before and after each change ("add before", "add after", "promote …", "remove …"). An error before
	// prevents the change; an error after it loses the response.
	Fault func(ctx context.Context, moment string) error

	mu      sync.Mutex                   // guards the fields below
	members map[uint64]membership.Member // the list that a quorum has agreed on
	procs   map[string]*proc             // by node
	gone    map[uint64]bool
	store   map[string]string
	next    uint64
	leader  uint64
	history []string
}

// proc is the etcd of one node: its data and its state.
type proc struct {
	peer    string
	data    uint64 // the ID of the member whose data it has; 0: no data
	up, cut bool
	since   time.Time // up and connected
}

// New returns a cluster without members.
func New() *Cluster {
	return &Cluster{
		members: map[uint64]membership.Member{}, procs: map[string]*proc{}, gone: map[uint64]bool{},
		store: map[string]string{}, next: 0x10,
	}
}

// Form starts the first member of the new cluster.
func (c *Cluster) Form(node, peerURL string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) > 0 || len(c.gone) > 0 {
		return errors.New("form cluster: it already exists")
	}
	id := c.add(peerURL, false)
	c.procs[node] = &proc{peer: peerURL, data: id}
	return c.up(node)
}

// Start starts a node's etcd from its data or, without data, as its permit says. Like etcd, it fails with the data of a removed
// member and with a permit that does not list exactly the existing members.
func (c *Cluster) Start(node, peerURL string, permit []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.procs[node]
	if p == nil {
		p = &proc{}
		c.procs[node] = p
	}
	if p.data == 0 {
		id, err := c.match(node, peerURL, permit)
		if err != nil {
			return fmt.Errorf("start etcd of %s: %w", node, err)
		}
		p.data, p.peer = id, peerURL
	}
	return c.up(node)
}

func (c *Cluster) match(node, peerURL string, permit []byte) (uint64, error) {
	env := map[string]string{}
	for line := range strings.Lines(string(permit)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[k] = v
		}
	}
	if env["ETCD_INITIAL_CLUSTER_STATE"] != "existing" {
		return 0, errors.New("it has neither data nor a permit to join")
	}
	var named, there []string
	for part := range strings.SplitSeq(env["ETCD_INITIAL_CLUSTER"], ",") {
		_, url, _ := strings.Cut(part, "=")
		named = append(named, url)
	}
	if !slices.Contains(strings.Split(env["ETCD_INITIAL_CLUSTER"], ","), node+"="+peerURL) {
		return 0, errors.New("the permit is for another node")
	}
	var own uint64
	for id, m := range c.members {
		there = append(there, m.PeerURL)
		if m.PeerURL == peerURL {
			own = id
		}
	}
	slices.Sort(named)
	slices.Sort(there)
	if !slices.Equal(named, there) {
		return 0, fmt.Errorf("member count is unequal: the permit has %v, the cluster %v", named, there)
	}
	return own, nil
}

func (c *Cluster) up(node string) error {
	p := c.procs[node]
	if c.gone[p.data] {
		return fmt.Errorf("start etcd of %s: the member has been permanently removed from the cluster", node)
	}
	if p.up {
		return nil
	}
	p.up, p.since = true, time.Now()
	m := c.members[p.data]
	if m.Name == "" {
		m.Name, m.Started = node, true
		m.ClientURL = strings.TrimSuffix(p.peer, ":2380") + ":2379"
		c.members[p.data] = m
		c.note()
	}
	c.elect()
	return nil
}

// Kill kills a node's etcd and keeps its data.
func (c *Cluster) Kill(node string) {
	c.change(node, func(p *proc) { p.up = false })
}

// Wipe kills a node's etcd and removes its data.
func (c *Cluster) Wipe(node string) {
	c.change(node, func(p *proc) { p.up, p.data = false, 0 })
}

// Cut disconnects a node from all others. Its own client can still reach it.
func (c *Cluster) Cut(node string) {
	c.change(node, func(p *proc) { p.cut = true })
}

// Heal reverts Cut.
func (c *Cluster) Heal(node string) {
	c.change(node, func(p *proc) { p.cut, p.since = false, time.Now() })
}

func (c *Cluster) change(node string, f func(*proc)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.procs[node]; p != nil {
		f(p)
	}
	c.elect()
}

// History returns the members after each change, as "a:voter b:learner", oldest first.
func (c *Cluster) History() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.history)
}

// Data returns the ID in hex of the member whose data a node has; "" without data.
func (c *Cluster) Data(node string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.procs[node]; p != nil && p.data != 0 {
		return membership.Hex(p.data)
	}
	return ""
}

// Running reports whether a node's etcd has a process. The process of a removed member exits.
func (c *Cluster) Running(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.procs[node]
	return p != nil && p.up
}

func (c *Cluster) add(peerURL string, learner bool) uint64 {
	c.next += 0x11
	c.members[c.next] = membership.Member{ID: c.next, PeerURL: peerURL, Learner: learner}
	c.note()
	return c.next
}

func (c *Cluster) note() {
	var line []string
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		m := c.members[id]
		vote := ":voter"
		if m.Learner {
			vote = ":learner"
		}
		line = append(line, m.String()+vote)
	}
	slices.Sort(line)
	c.history = append(c.history, strings.Join(line, " "))
}

// reachable returns the process of a member if it is connected to the others.
func (c *Cluster) reachable(id uint64) *proc {
	for _, p := range c.procs {
		if p.data == id && p.up && !p.cut {
			return p
		}
	}
	return nil
}

// connected counts the voters, and those that have been reachable for at least this long.
func (c *Cluster) connected(since time.Duration) (n, voters int) {
	for id, m := range c.members {
		if m.Learner {
			continue
		}
		voters++
		if p := c.reachable(id); p != nil && time.Since(p.since) >= since {
			n++
		}
	}
	return n, voters
}

// quorum reports whether a majority of the voters is connected.
func (c *Cluster) quorum() bool {
	n, voters := c.connected(0)
	return voters > 0 && n >= membership.Quorum(voters)
}

// elect keeps the current leader, or elects one if there is a quorum.
func (c *Cluster) elect() {
	if !c.quorum() {
		c.leader = 0
		return
	}
	if m, ok := c.members[c.leader]; ok && !m.Learner && c.reachable(c.leader) != nil {
		return
	}
	c.leader = 0
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		if !c.members[id].Learner && c.reachable(id) != nil {
			c.leader = id
			return
		}
	}
}

// list returns the members, sorted by ID.
func (c *Cluster) list() []membership.Member {
	all := make([]membership.Member, 0, len(c.members))
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		all = append(all, c.members[id])
	}
	return all
}
