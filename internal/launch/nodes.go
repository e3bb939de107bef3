// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/machine"
)

// Node is one node of a cluster, as its control plane knows it.
type Node struct {
	Name          string        `json:"name"`
	Roles         []string      `json:"roles"`
	Addresses     []string      `json:"addresses"`
	Ready         bool          `json:"ready"`
	Version       string        `json:"version"` // of its kubelet; empty: it has not said yet
	PodCIDR       string        `json:"podCIDR,omitempty"`
	Member        string        `json:"member,omitempty"` // of etcd: learner or voter
	Key           string        `json:"key,omitempty"`    // pin of the machine's key
	Waiting       string        `json:"waiting,omitempty"`
	Unschedulable bool          `json:"unschedulable,omitempty"`
	Facts         machine.Facts `json:"facts,omitzero"` // as the machine reported them when it joined
}

// Nodes asks a control plane for the nodes of its cluster.
func (l *Launcher) Nodes(ctx context.Context, cluster string) ([]Node, error) {
	var r *controlv1.ListNodesReply
	err := l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.ListNodes(ctx, &controlv1.ListNodesRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := []Node{}
	for _, n := range r.GetNodes() {
		var facts machine.Facts
		if len(n.GetFacts()) > 0 {
			if facts, err = machine.DecodeFacts(n.GetFacts()); err != nil {
				return nil, fmt.Errorf("list nodes: node %s: %w", n.GetName(), err)
			}
		}
		nodes = append(nodes, Node{
			Name: n.GetName(), Roles: notNil(n.GetRoles()), Addresses: notNil(n.GetAddresses()), Ready: n.GetReady(), Version: n.GetVersion(),
			PodCIDR: n.GetPodCidr(), Member: n.GetMember(), Key: n.GetKey(), Waiting: n.GetWaiting(), Unschedulable: n.GetUnschedulable(), Facts: facts,
		})
	}
	return nodes, nil
}

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// ApproveNode lets the machine in that waits for the name, and returns the pin of its key.
func (l *Launcher) ApproveNode(ctx context.Context, cluster, node string) (key string, err error) {
	var r *controlv1.ApproveNodeReply
	err = l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.ApproveNode(ctx, &controlv1.ApproveNodeRequest{Name: node})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("approve node %s: %w", node, err)
	}
	return r.GetKey(), nil
}

// DrainNode moves the pods of a node away, or with undo lets them come again. Zero timeout: the control plane's own.
func (l *Launcher) DrainNode(ctx context.Context, cluster, node string, timeout time.Duration, undo bool, say func(string)) error {
	err := l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) error {
		s, err := c.DrainNode(ctx, &controlv1.DrainNodeRequest{Name: node, TimeoutSeconds: wholeSeconds(timeout), Undo: undo})
		return tellAll(s, err, say)
	})
	if err != nil {
		return fmt.Errorf("drain node %s: %w", node, err)
	}
	return nil
}

// RemoveNode takes a node out of the cluster for good. Lost: its machine is gone, so nothing of it is waited for. When it is
// interrupted, the same call goes on.
func (l *Launcher) RemoveNode(ctx context.Context, cluster, node string, timeout time.Duration, lost bool, say func(string)) error {
	err := l.askControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) error {
		s, err := c.RemoveNode(ctx, &controlv1.RemoveNodeRequest{Name: node, TimeoutSeconds: wholeSeconds(timeout), Lost: lost})
		return tellAll(s, err, say)
	})
	if err != nil {
		return fmt.Errorf("remove node %s: %w", node, err)
	}
	return nil
}

// wholeSeconds rounds up: less than a second is not "as long as usual".
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func tellAll(s grpc.ServerStreamingClient[controlv1.Progress], err error, say func(string)) error {
	for err == nil {
		var p *controlv1.Progress
		if p, err = s.Recv(); err == nil {
			say(p.GetText())
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Membership is what a machine says about its place in a cluster.
type Membership struct {
	Machine string `json:"machine"`
	Lock    string `json:"lock"` // free, claimed or committed
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Key     string `json:"key,omitempty"` // pin of the machine's key
}

// Member asks a machine's own agent which cluster it is in.
func (l *Launcher) Member(ctx context.Context, cluster, machine string) (Membership, error) {
	var m Membership
	err := l.askMachine(ctx, cluster, machine, func(ctx context.Context, a *Agent) (err error) {
		m, err = a.Member(ctx)
		return err
	})
	m.Machine = machine
	return m, err
}

// Member asks which cluster the machine is in.
func (a *Agent) Member(ctx context.Context) (Membership, error) {
	r, err := a.client.Facts(ctx, &nodev1.FactsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Membership{}, fmt.Errorf("ask the agent for facts: %w", err)
	}
	return Membership{Lock: r.GetLock(), Cluster: r.GetCluster(), Node: r.GetNode(), Key: r.GetKey()}, nil
}

// ResetMachine takes a machine out of its cluster: all that was made for it there is removed. The machine's agent refuses while
// the cluster would not stand it; lost says that there is no cluster to ask any more.
func (l *Launcher) ResetMachine(ctx context.Context, cluster, machine, id string, lost bool) error {
	err := l.askMachine(ctx, cluster, machine, func(ctx context.Context, a *Agent) error {
		_, err := a.client.Reset(ctx, &nodev1.ResetRequest{Cluster: id, Lost: lost})
		return err
	})
	if err != nil {
		return fmt.Errorf("reset machine %s: %w", machine, plain(err))
	}
	return nil
}

// plain is an error of an agent in its own words: "rpc error: code = …" says nothing to people.
func plain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || s.Message() == "" {
		return err
	}
	return &saidError{s.Message(), err}
}

type saidError struct {
	text string
	err  error
}

func (e *saidError) Error() string { return e.text }
func (e *saidError) Unwrap() error { return e.err }
