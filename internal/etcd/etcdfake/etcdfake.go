// SPDX-License-Identifier: Apache-2.0

// Package etcdfake is an etcd cluster in memory: its members, their processes and data, quorum, learners, and the strict checks
// of real etcd, which pass the same suite (etcdtest). All time is the package time's, so it works in testing/synctest. It is
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

// Cluster is safe for concurrent use. Set the exported fields before it is used.
type Cluster struct {
	CatchUp  time.Duration // how long a learner's etcd must run before it can be promoted
	Settle   time.Duration // how long voters must have been connected before a member is added; real etcd: 5 s
	Deadline time.Duration // after which a call without an answer ends; 0: 3 s
	// Fault, if set, is asked before and after each change ("add before", "add after", "promote …", "remove …"). An error before
	// prevents the change, one after loses its answer.
	Fault func(ctx context.Context, moment string) error

	mu      sync.Mutex                   // guards the fields below
	members map[uint64]membership.Member // what a quorum has agreed on
	procs   map[string]*proc             // by node
	gone    map[uint64]bool
	store   map[string]string
	next    uint64
	leader  uint64
	history []string
}

// proc is the etcd of one node: its data and whether it runs.
type proc struct {
	peer    string
	data    uint64 // the member that the data is of; 0: none
	up, cut bool
	since   time.Time // up and connected
}

// New is a cluster without members.
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
		return errors.New("form cluster: there is one already")
	}
	id := c.add(peerURL, false)
	c.procs[node] = &proc{peer: peerURL, data: id}
	return c.up(node)
}

// Start runs a node's etcd: from its data, else as its permit says. It fails as etcd does: over data of a removed member, and
// with a permit that does not name just the members there are.
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
		return 0, errors.New("no data, and no permit to join")
	}
	var named, there []string
	for part := range strings.SplitSeq(env["ETCD_INITIAL_CLUSTER"], ",") {
		_, url, _ := strings.Cut(part, "=")
		named = append(named, url)
	}
	if !slices.Contains(strings.Split(env["ETCD_INITIAL_CLUSTER"], ","), node+"="+peerURL) {
		return 0, errors.New("the permit is not for it")
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

// Kill ends a node's etcd; its data stays.
func (c *Cluster) Kill(node string) {
	c.change(node, func(p *proc) { p.up = false })
}

// Wipe ends a node's etcd and removes its data.
func (c *Cluster) Wipe(node string) {
	c.change(node, func(p *proc) { p.up, p.data = false, 0 })
}

// Cut separates a node from all others; its own client still reaches it.
func (c *Cluster) Cut(node string) {
	c.change(node, func(p *proc) { p.cut = true })
}

// Heal ends Cut.
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

// History is the list of members after each change, as "a:voter b:learner", oldest first.
func (c *Cluster) History() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.history)
}

// Data is the member whose data lies on a node, in hex; empty: none.
func (c *Cluster) Data(node string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.procs[node]; p != nil && p.data != 0 {
		return membership.Hex(p.data)
	}
	return ""
}

// Running tells whether a node's etcd has a process: one whose member is removed ends by itself.
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
