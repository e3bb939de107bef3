// SPDX-License-Identifier: Apache-2.0

// Package admin serves the operator's requests on a control plane: list, drain, approve and remove nodes, and manage tokens. It
// combines three sources, the cluster's records, Kubernetes and etcd. If one of them does not answer, it still reports what the others
// know. Package admission decides who may join, and package members what etcd allows. The agent serves it on its unix socket.
//
// Read [Config] and then RemoveNode.
//
//	controlv1.RegisterControlServer(server, admin.New(admin.Config{Nodes: registry, Kube: kube, …}))
//	RemoveNode{name: "dev-worker-1"} → "draining it", "pod default/web-0 is evicted", …, "node dev-worker-1 removed"
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Nodes are the records of the cluster's nodes; package registry implements it.
type Nodes interface {
	Nodes(ctx context.Context) ([]admission.Node, error)
	UpdateNode(ctx context.Context, name string, change func(*admission.Node) error) (admission.Node, error)
	DeleteNode(ctx context.Context, name string) error
	Approve(ctx context.Context, name string) (key pin.Pin, err error)
}

// Tokens are the records of join tokens; package registry implements it.
type Tokens interface {
	CreateToken(ctx context.Context, spec registry.TokenSpec) (t admission.Token, text string, err error)
	Tokens(ctx context.Context) ([]admission.Token, error)
	RevokeToken(ctx context.Context, id string) error
}

// Kube is the Kubernetes API; package kube implements it.
type Kube interface {
	ListNodes(ctx context.Context) ([]kube.NodeInfo, error)
	// Drain cordons the node and evicts its pods. It reports its progress to say.
	Drain(ctx context.Context, node string, timeout time.Duration, say func(string)) error
	Uncordon(ctx context.Context, node string) error
	DeleteNode(ctx context.Context, node string) error
}

// Members are etcd's members; package members implements it.
type Members interface {
	Status(ctx context.Context) (map[string]members.State, error)
	// MayLeave returns nil if the node may leave etcd or has left, and members.ErrRefused if the other voters would have no quorum.
	MayLeave(ctx context.Context, node string) error
	Leave(ctx context.Context, node string) error
}

// Invitation is what a machine needs to join in addition to a token. It is not secret.
type Invitation struct {
	Pin       pin.Pin // of the join CA
	Cluster   string  // the cluster's ID
	Endpoints []string
	Stores    []string // host:port of the store servers
	Program   string   // digest of this program, which the store servers serve
}

// Config is what the service needs. Its sources may return errors while they are starting.
type Config struct {
	Nodes   Nodes
	Tokens  Tokens
	Kube    Kube
	Members Members
	Desired func() (control.Desired, bool) // what the control role works from; false before it has a document
	Invite  func(ctx context.Context) (Invitation, error)
	Log     *slog.Logger
}

// New returns the service.
func New(c Config) controlv1.ControlServer { return &server{Config: c} }

type server struct {
	controlv1.UnimplementedControlServer
	Config
}

const (
	// askLimit bounds how long ListNodes waits for a source that does not answer.
	askLimit = 5 * time.Second
	// startLimit bounds how long a call waits for an API server that is starting, as it does after a change of etcd's members. After
	// that, the client asks another control plane.
	startLimit = 15 * time.Second
	askAgain   = 100 * time.Millisecond
)

// retryStarting calls do again while the API server is starting. do continues where it stopped. say may be nil.
func retryStarting(ctx context.Context, say func(string), do func() error) error {
	begun, last := time.Now(), ""
	for {
		err := do()
		if !kube.IsStarting(err) || errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > startLimit {
			return err
		}
		if text := err.Error(); say != nil && text != last {
			last = text
			say("waiting for the API server: " + text)
		}
		if sleep.For(ctx, askAgain) != nil {
			return err
		}
	}
}

func isControlPlane(d control.Desired, n admission.Node) bool {
	is, _ := d.IsControlPlane(n)
	return is
}

// coded adds a gRPC code to an error, by which the client decides whether to ask another control plane. Errors of etcd have one.
func coded(err error) error {
	if err == nil {
		return nil
	}
	if _, has := status.FromError(err); has {
		return err
	}
	code := codes.FailedPrecondition
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case kube.IsStarting(err):
		code = codes.Unavailable
	case errors.Is(err, registry.ErrNotFound), errors.Is(err, kube.ErrNoNode):
		code = codes.NotFound
	}
	return status.Error(code, err.Error())
}

// sources is what the records, Kubernetes and etcd report about the nodes. For a source that does not answer it has an error.
type sources struct {
	now     time.Time
	desired control.Desired
	records map[string]admission.Node
	nodes   map[string]kube.NodeInfo
	members map[string]members.State

	noRecords, noNodes, noMembers error
}

// ListNodes returns every node that any source knows. It fails only if neither the records nor Kubernetes answers.
func (s *server) ListNodes(ctx context.Context, _ *controlv1.ListNodesRequest) (*controlv1.ListNodesReply, error) {
	all := s.ask(ctx)
	if all.noRecords != nil && all.noNodes != nil {
		return nil, status.Errorf(codes.Unavailable, "list nodes: neither the records (%v) nor Kubernetes (%v) can be read", all.noRecords, all.noNodes)
	}
	names := map[string]bool{}
	for name := range all.records {
		names[name] = true
	}
	for name := range all.nodes {
		names[name] = true
	}
	reply := &controlv1.ListNodesReply{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		reply.Nodes = append(reply.Nodes, all.node(name))
	}
	return reply, nil
}

// ask asks all sources at the same time.
func (s *server) ask(ctx context.Context) sources {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	out := sources{now: time.Now(), records: map[string]admission.Node{}, nodes: map[string]kube.NodeInfo{}}
	out.desired, _ = s.Desired()
	var questions sync.WaitGroup
	questions.Go(func() {
		var records []admission.Node
		records, out.noRecords = s.Nodes.Nodes(ctx)
		for _, n := range records {
			out.records[n.Name] = n
		}
	})
	questions.Go(func() {
		var nodes []kube.NodeInfo
		nodes, out.noNodes = s.Kube.ListNodes(ctx)
		for _, n := range nodes {
			out.nodes[n.Name] = n
		}
	})
	questions.Go(func() { out.members, out.noMembers = s.Members.Status(ctx) })
	questions.Wait()
	return out
}

// node merges what the sources report about a node.
func (a sources) node(name string) *controlv1.Node {
	rec, recorded := a.records[name]
	info, there := a.nodes[name]
	out := &controlv1.Node{
		Name: name, Roles: info.Roles, Ready: info.Ready, Version: info.Version, PodCidr: info.PodCIDR, Unschedulable: info.Unschedulable,
		Key: string(rec.Key), Member: a.members[name].Member,
	}
	if recorded {
		out.PodCidr, out.Facts = rec.PodCIDR.String(), rec.Facts.Encode()
		if i := slices.IndexFunc(a.desired.Config.Pools, func(p config.Pool) bool { return p.Name == rec.Pool }); i >= 0 {
			out.Roles = slices.Sorted(slices.Values(a.desired.Config.Pools[i].Roles))
		}
	}
	addresses := info.Addresses
	if rec.Address.IsValid() && !slices.Contains(addresses, rec.Address) {
		addresses = append([]netip.Addr{rec.Address}, addresses...)
	}
	for _, addr := range addresses {
		out.Addresses = append(out.Addresses, addr.String())
	}
	out.Waiting = strings.Join(slices.Concat(a.ofRecord(rec, recorded), a.ofKubernetes(info, there, rec, recorded), a.ofEtcd(name, rec, recorded)), "; ")
	return out
}

func (a sources) ofRecord(rec admission.Node, recorded bool) (why []string) {
	switch {
	case a.noRecords != nil:
		return []string{fmt.Sprintf("the records cannot be read: %v", a.noRecords)}
	case !recorded:
		return []string{"no record: the node was removed, or never joined this cluster"}
	}
	if rec.Removing {
		why = append(why, fmt.Sprintf("being removed: to continue, run slipway node remove %s", rec.Name))
	}
	if rec.PendingKey != "" {
		why = append(why, fmt.Sprintf("another machine, with key %s, waits for the name: to admit it, run slipway node approve %s", rec.PendingKey, rec.Name))
	}
	if rec.AsksElsewhere(a.now) {
		why = append(why, fmt.Sprintf("its key is also used at %s, which is refused while the node is alive here: is that a copy of its disk? Turn one of the two off; "+
			"to change the node's address to %s, run slipway node approve %s", rec.Elsewhere, rec.Elsewhere, rec.Name))
	}
	return why
}

func (a sources) ofKubernetes(info kube.NodeInfo, there bool, rec admission.Node, recorded bool) []string {
	switch {
	case a.noNodes != nil:
		return []string{fmt.Sprintf("Kubernetes does not answer: %v", a.noNodes)}
	case !there && recorded && string(rec.Key) == "":
		return []string{"waiting for a machine to join with this name"}
	case !there:
		return []string{"waiting for its kubelet to register"}
	case !info.Ready:
		return []string{info.Reason}
	}
	return nil
}

func (a sources) ofEtcd(name string, rec admission.Node, recorded bool) []string {
	one, member := a.members[name]
	switch {
	case !recorded || !isControlPlane(a.desired, rec):
		return nil
	case a.noMembers != nil:
		return []string{fmt.Sprintf("etcd does not answer: %v", a.noMembers)}
	case one.Wait != nil:
		return []string{fmt.Sprintf("%s (%s)", one.Wait.What, one.Wait.Who)}
	case !member && string(rec.Key) != "":
		return []string{"not a member of etcd yet"}
	case one.Member == "learner":
		return []string{"its etcd is a learner and has not caught up yet"}
	case member && !one.Healthy:
		return []string{"its etcd does not answer"}
	}
	return nil
}

// CreateToken creates a token. It makes the invitation first: without one, the token would be unusable.
func (s *server) CreateToken(ctx context.Context, r *controlv1.CreateTokenRequest) (*controlv1.CreateTokenReply, error) {
	if r.GetTtlSeconds() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "lifetime of %d seconds, want a positive one", r.GetTtlSeconds())
	}
	var inv Invitation
	err := retryStarting(ctx, nil, func() (err error) {
		inv, err = s.Config.Invite(ctx)
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	spec := registry.TokenSpec{Pool: r.GetPool(), Node: r.GetNode(), Key: pin.Pin(r.GetKey()), TTL: time.Duration(r.GetTtlSeconds()) * time.Second}
	var t admission.Token
	var text string
	err = retryStarting(ctx, nil, func() (err error) {
		t, text, err = s.Tokens.CreateToken(ctx, spec)
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	s.Log.Info("token created", "id", t.ID, "pool", t.Pool, "node", t.Node, "key", t.Key, "expires", t.Expires)
	return &controlv1.CreateTokenReply{
		Id: t.ID, Token: text, Pin: string(inv.Pin), Cluster: inv.Cluster, Endpoints: inv.Endpoints, ExpiresUnix: t.Expires.Unix(),
	}, nil
}

// Invite returns what a machine needs to join in addition to a token.
func (s *server) Invite(ctx context.Context, _ *controlv1.InviteRequest) (*controlv1.InviteReply, error) {
	var inv Invitation
	err := retryStarting(ctx, nil, func() (err error) {
		inv, err = s.Config.Invite(ctx)
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	return &controlv1.InviteReply{Pin: string(inv.Pin), Cluster: inv.Cluster, Endpoints: inv.Endpoints, Stores: inv.Stores, Program: inv.Program}, nil
}

// ListTokens returns the tokens without their secrets.
func (s *server) ListTokens(ctx context.Context, _ *controlv1.ListTokensRequest) (*controlv1.ListTokensReply, error) {
	all, err := s.Tokens.Tokens(ctx)
	if err != nil {
		return nil, coded(err)
	}
	out := &controlv1.ListTokensReply{}
	for _, t := range all {
		out.Tokens = append(out.Tokens, &controlv1.Token{Id: t.ID, Pool: t.Pool, Node: t.Node, ExpiresUnix: t.Expires.Unix(), UsedBy: string(t.UsedBy)})
	}
	return out, nil
}

// RevokeToken deletes a token. Machines that it has admitted stay.
func (s *server) RevokeToken(ctx context.Context, r *controlv1.RevokeTokenRequest) (*controlv1.RevokeTokenReply, error) {
	err := s.Tokens.RevokeToken(ctx, r.GetId())
	if errors.Is(err, registry.ErrNotFound) {
		return nil, status.Errorf(codes.NotFound, "no token %.80q: it has expired or was revoked", r.GetId())
	}
	if err != nil {
		return nil, coded(err)
	}
	s.Log.Info("token revoked", "id", r.GetId())
	return &controlv1.RevokeTokenReply{}, nil
}

// ApproveNode admits the machine that waits for the name.
func (s *server) ApproveNode(ctx context.Context, r *controlv1.ApproveNodeRequest) (*controlv1.ApproveNodeReply, error) {
	key, err := s.Nodes.Approve(ctx, r.GetName())
	if err != nil {
		return nil, coded(err)
	}
	s.Log.Info("machine approved", "node", r.GetName(), "key", key)
	return &controlv1.ApproveNodeReply{Key: string(key)}, nil
}
