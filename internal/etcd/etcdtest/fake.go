// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/etcd/etcdfake"
)

// Memory is a lab around an etcd in memory.
type Memory struct {
	*etcdfake.Cluster
}

// Fake returns a lab in memory with short delays.
func Fake() Memory {
	c := etcdfake.New()
	c.CatchUp, c.Settle, c.Deadline = 20*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	return Memory{c}
}

// Address returns the address of a node.
func (m Memory) Address(node string) string { return fmt.Sprintf("192.0.2.%d", node[0]-'a'+1) }

// Peer returns the peer URL of a node.
func (m Memory) Peer(node string) string { return "https://" + m.Address(node) + ":2380" }

// Form starts the first member.
func (m Memory) Form(t testing.TB, node string) {
	t.Helper()
	if err := m.Cluster.Form(node, m.Peer(node)); err != nil {
		t.Fatal(err)
	}
}

// Start starts a node's etcd.
func (m Memory) Start(t testing.TB, node string, permit []byte, wipe bool) error {
	t.Helper()
	if wipe {
		m.Wipe(node)
	}
	return m.Cluster.Start(node, m.Peer(node), permit)
}

// Kill kills a node's etcd.
func (m Memory) Kill(t testing.TB, node string) {
	t.Helper()
	m.Cluster.Kill(node)
}

// Client returns a client of a node's own member.
func (m Memory) Client(t testing.TB, node string) Client {
	t.Helper()
	return m.Cluster.Client(node)
}

var _ Lab = Memory{}
