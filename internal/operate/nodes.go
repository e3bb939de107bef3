// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/inventory"
)

// Node is one node of a cluster, as its control plane knows it.
type Node struct {
	Name          string        `json:"name"`
	Roles         []string      `json:"roles"`
	Addresses     []string      `json:"addresses"`
	Ready         bool          `json:"ready"`
	Version       string        `json:"version"` // of its kubelet; empty until the kubelet has reported it
	PodCIDR       string        `json:"podCIDR,omitempty"`
	Member        string        `json:"member,omitempty"` // of etcd: learner or voter
	Key           string        `json:"key,omitempty"`    // pin of the machine's key
	Waiting       string        `json:"waiting,omitempty"`
	Unschedulable bool          `json:"unschedulable,omitempty"`
	Facts         machine.Facts `json:"facts,omitzero"` // as the machine reported them when it joined
}

// Nodes asks a control plane for the nodes of its cluster.
func Nodes(ctx context.Context, inv inventory.Inventory, cluster string) ([]Node, error) {
	var r *controlv1.ListNodesReply
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
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

// notNil makes a missing list an empty one, which JSON writes as [].
func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// ApproveNode admits the machine that is waiting for the node's name, and returns the pin of its key.
func ApproveNode(ctx context.Context, inv inventory.Inventory, cluster, node string) (key string, err error) {
	var r *controlv1.ApproveNodeReply
	err = inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.ApproveNode(ctx, &controlv1.ApproveNodeRequest{Name: node})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("approve node %s: %w", node, err)
	}
	return r.GetKey(), nil
}

// DrainNode evicts the pods of a node and cordons it, or uncordons it with undo. A zero timeout is the control plane's default.
func DrainNode(ctx context.Context, inv inventory.Inventory, cluster, node string, timeout time.Duration, undo bool, progress func(string)) error {
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) error {
		s, err := c.DrainNode(ctx, &controlv1.DrainNodeRequest{Name: node, TimeoutSeconds: seconds(timeout), Undo: undo})
		return receive(s, err, progress)
	})
	if err != nil {
		return fmt.Errorf("drain node %s: %w", node, err)
	}
	return nil
}

// RemoveNode removes a node from the cluster permanently. lost says that its machine no longer exists, so that its pods are
// not waited for. An interrupted removal is resumed by the same call.
func RemoveNode(ctx context.Context, inv inventory.Inventory, cluster, node string, timeout time.Duration, lost bool, progress func(string)) error {
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) error {
		s, err := c.RemoveNode(ctx, &controlv1.RemoveNodeRequest{Name: node, TimeoutSeconds: seconds(timeout), Lost: lost})
		return receive(s, err, progress)
	})
	if err != nil {
		return fmt.Errorf("remove node %s: %w", node, err)
	}
	return nil
}

// seconds rounds up: on the wire 0 means the default.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// receive passes on what a control plane reports until it has finished.
func receive(s grpc.ServerStreamingClient[controlv1.Progress], err error, progress func(string)) error {
	for err == nil {
		var p *controlv1.Progress
		if p, err = s.Recv(); err == nil {
			progress(p.GetText())
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Membership asks a machine's own agent which cluster the machine is in.
func Membership(ctx context.Context, inv inventory.Inventory, cluster, name string) (agentclient.Membership, error) {
	m := agentclient.Membership{Machine: name}
	err := inv.AskMachine(ctx, cluster, name, func(ctx context.Context, a *agentclient.Agent) error {
		i, err := a.Info(ctx)
		m = i.Membership
		m.Machine = name
		return err
	})
	return m, err
}

// ResetMachine removes a machine from the cluster with that id and deletes everything that was made for it there. The machine's
// agent refuses while the cluster would lose its quorum; lost says that the cluster no longer exists and must not be asked.
func ResetMachine(ctx context.Context, inv inventory.Inventory, cluster, name, id string, lost bool) error {
	err := inv.AskMachine(ctx, cluster, name, func(ctx context.Context, a *agentclient.Agent) error { return a.Reset(ctx, id, lost) })
	if err != nil {
		return fmt.Errorf("reset machine %s: %w", name, agentclient.Plain(err))
	}
	return nil
}

// TokenOptions say what a new token permits.
type TokenOptions struct {
	Pool string        // of the spec
	Node string        // optional: the only name
	Key  string        // optional: pin of the only machine
	TTL  time.Duration // optional: the longest permitted
}

// NewToken is a token when it is created. Its secret cannot be shown again.
type NewToken struct {
	ID        string    `json:"id"`
	Token     string    `json:"token"`
	Pool      string    `json:"pool"`
	Node      string    `json:"node,omitempty"`
	Pin       string    `json:"pin"`     // of the join CA
	Cluster   string    `json:"cluster"` // the cluster's id
	Endpoints []string  `json:"endpoints"`
	Expires   time.Time `json:"expires"`
}

// Token is a token that was created earlier.
type Token struct {
	ID      string    `json:"id"`
	Pool    string    `json:"pool"`
	Node    string    `json:"node,omitempty"`
	Expires time.Time `json:"expires"`
	UsedBy  string    `json:"usedBy,omitempty"` // pin of the machine's key
}

// CreateToken creates a token that admits one machine.
func CreateToken(ctx context.Context, inv inventory.Inventory, cluster string, o TokenOptions) (NewToken, error) {
	var r *controlv1.CreateTokenReply
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.CreateToken(ctx, &controlv1.CreateTokenRequest{Pool: o.Pool, Node: o.Node, Key: o.Key, TtlSeconds: seconds(o.TTL)})
		return err
	})
	if err != nil {
		return NewToken{}, fmt.Errorf("create token: %w", err)
	}
	return NewToken{
		ID: r.GetId(), Token: r.GetToken(), Pool: o.Pool, Node: o.Node, Pin: r.GetPin(), Cluster: r.GetCluster(), Endpoints: notNil(r.GetEndpoints()),
		Expires: time.Unix(r.GetExpiresUnix(), 0).UTC(),
	}, nil
}

// Tokens lists the tokens that the cluster remembers, including used and expired ones.
func Tokens(ctx context.Context, inv inventory.Inventory, cluster string) ([]Token, error) {
	var r *controlv1.ListTokensReply
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.ListTokens(ctx, &controlv1.ListTokensRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	tokens := []Token{}
	for _, t := range r.GetTokens() {
		tokens = append(tokens, Token{t.GetId(), t.GetPool(), t.GetNode(), time.Unix(t.GetExpiresUnix(), 0).UTC(), t.GetUsedBy()})
	}
	return tokens, nil
}

// RevokeToken revokes a token.
func RevokeToken(ctx context.Context, inv inventory.Inventory, cluster, id string) error {
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) error {
		_, err := c.RevokeToken(ctx, &controlv1.RevokeTokenRequest{Id: id})
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke token %s: %w", id, err)
	}
	return nil
}

// Invitation is what a machine needs to join a cluster without a token.
type Invitation struct {
	Pin       string   // of the join CA
	Endpoints []string // host:port of join services
	Stores    []string // host:port of component stores
	Program   string   // digest of the slipway that the stores offer
}

// Invite asks a control plane how a machine joins.
func Invite(ctx context.Context, inv inventory.Inventory, cluster string) (Invitation, error) {
	var r *controlv1.InviteReply
	err := inv.AskControl(ctx, cluster, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		r, err = c.Invite(ctx, &controlv1.InviteRequest{})
		return err
	})
	if err != nil {
		return Invitation{}, fmt.Errorf("ask the cluster how a machine joins: %w: the cluster must be running (slipway up, slipway apply)", err)
	}
	return Invitation{Pin: r.GetPin(), Endpoints: r.GetEndpoints(), Stores: r.GetStores(), Program: r.GetProgram()}, nil
}
