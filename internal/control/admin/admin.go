// SPDX-License-Identifier: Apache-2.0

// Package admin answers the operator on a control plane: which nodes there are, who is let in, who leaves. It joins three
// sources, the cluster's records, Kubernetes and etcd, of which each may be away: what the others know is told all the same. It
// never decides who may join (admission does) nor what etcd can bear (membership does), and it listens nowhere: the agent
// serves it at its unix socket.
//
// Read [Config] and then RemoveNode.
//
//	controlv1.RegisterControlServer(server, admin.New(admin.Config{Nodes: registry, Kube: kube, …}))
//	RemoveNode{name: "dev-worker-1"} → "moving its pods away", "pod default/web-0 is evicted", …, "dev-worker-1 is removed"
package admin

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Nodes are the cluster's records of its machines, as package registry keeps them.
type Nodes interface {
	Nodes(ctx context.Context) ([]admission.Node, error)
	UpdateNode(ctx context.Context, name string, change func(*admission.Node) error) (admission.Node, error)
	DeleteNode(ctx context.Context, name string) error
	Approve(ctx context.Context, name string) (key pin.Pin, err error)
}

// Tokens are what lets machines in, as package registry keeps them.
type Tokens interface {
	CreateToken(ctx context.Context, spec registry.TokenSpec) (t admission.Token, text string, err error)
	Tokens(ctx context.Context) ([]admission.Token, error)
	RevokeToken(ctx context.Context, id string) error
}

// Kube is the Kubernetes API, as package kube speaks it.
type Kube interface {
	ListNodes(ctx context.Context) ([]kube.NodeInfo, error)
	Drain(ctx context.Context, node string, timeout time.Duration, say func(string)) error
	Uncordon(ctx context.Context, node string) error
	DeleteNode(ctx context.Context, node string) error
}

// Members is etcd, as package members changes it.
type Members interface {
	Status(ctx context.Context) (map[string]members.State, error)
	// MayLeave is nil when the node may leave now or has left, and members.ErrRefused when the others would not do without it.
	MayLeave(ctx context.Context, node string) error
	Leave(ctx context.Context, node string) error
}

// Invitation is what a machine has to know beside its token.
type Invitation struct {
	Pin       pin.Pin // of the join CA
	Cluster   string  // its id
	Endpoints []string
	Stores    []string // host:port of the store servers
	Program   string   // digest of this program, which they hand out
}

// Config is what the service needs. Each source may answer with errors while it is not there yet.
type Config struct {
	Nodes   Nodes
	Tokens  Tokens
	Kube    Kube
	Members Members
	Desired func() (control.Desired, bool) // what the control role works from; not ok before it has a document
	Invite  func(ctx context.Context) (Invitation, error)
	Log     *slog.Logger
}

// New makes the service.
func New(c Config) controlv1.ControlServer { return &server{Config: c} }

type server struct {
	controlv1.UnimplementedControlServer
	Config
}

const (
	// askLimit is for one source when several are asked: the others' answers must not wait long.
	askLimit = 5 * time.Second
	// startLimit is for an API server that has just been started again, which it is while etcd's members change. Then the operator's
	// side asks another control plane.
	startLimit = 15 * time.Second
	askAgain   = 100 * time.Millisecond
)

// patiently does again what an API server refuses that is just starting; do goes on from where it was. say may be nil.
func patiently(ctx context.Context, say func(string), do func() error) error {
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

// document is what decides a pool's roles. Without it nobody knows what a node is.
func (s *server) desired() (control.Desired, error) {
	d, ok := s.Desired()
	if !ok {
		return d, status.Error(codes.Unavailable, "this control plane keeps no control document yet: ask again when its agent has begun")
	}
	return d, nil
}

func isControlPlane(d control.Desired, n admission.Node) bool {
	is, _ := d.IsControlPlane(n)
	return is
}

// coded gives an error the code by which the operator's side decides whether to ask another control plane, which it does when
// this one's sources do not answer. etcd's errors bring their own.
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
