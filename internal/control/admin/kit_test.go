// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/kube"
)

// world is a cluster in memory. What is called is written down in order; fail makes one call fail.
type world struct {
	self    string
	records map[string]admission.Node
	nodes   map[string]kube.NodeInfo
	etcd    map[string]members.State
	fail    map[string]error // by call, "drain w1"
	once    map[string]error // the same, for the first time
	calls   []string
}

func (w *world) call(what string) error {
	w.calls = append(w.calls, what)
	if err := w.once[what]; err != nil {
		delete(w.once, what)
		return err
	}
	return w.fail[what]
}

func (w *world) Nodes(context.Context) (out []admission.Node, err error) {
	for _, n := range w.records {
		out = append(out, n)
	}
	return out, w.fail["records"]
}

func (w *world) UpdateNode(_ context.Context, name string, change func(*admission.Node) error) (admission.Node, error) {
	n := w.records[name]
	if err := change(&n); err != nil {
		return n, err
	}
	if err := w.call(fmt.Sprintf("mark %s %t", name, n.Removing)); err != nil {
		return n, err
	}
	w.records[name] = n
	return n, nil
}

func (w *world) Approve(_ context.Context, name string) (pin.Pin, error) {
	return "sha256:new", w.call("approve " + name)
}

func (w *world) CreateToken(_ context.Context, spec registry.TokenSpec) (admission.Token, string, error) {
	return admission.Token{ID: "id1", Pool: spec.Pool, Node: spec.Node, Key: spec.Key, Expires: time.Unix(1000, 0).Add(spec.TTL)}, "slipway.id1.secret", w.call("token")
}

func (w *world) Tokens(context.Context) ([]admission.Token, error) {
	return []admission.Token{{ID: "id1", Hash: "never told", Pool: "worker", UsedBy: "sha256:k", Expires: time.Unix(1000, 0)}}, w.fail["tokens"]
}

func (w *world) RevokeToken(_ context.Context, id string) error { return w.call("revoke " + id) }

// cluster is the Kubernetes side, which has methods of the same names.
type cluster struct{ *world }

func (c cluster) ListNodes(context.Context) (out []kube.NodeInfo, err error) {
	for _, n := range c.nodes {
		out = append(out, n)
	}
	return out, c.fail["kube"]
}

func (c cluster) Drain(_ context.Context, node string, limit time.Duration, say func(string)) error {
	say("pod default/x is evicted")
	return c.call(fmt.Sprintf("drain %s %s", node, limit))
}

func (c cluster) Uncordon(_ context.Context, node string) error { return c.call("uncordon " + node) }

func (c cluster) DeleteNode(_ context.Context, node string) error {
	err := c.call("delete Node " + node)
	if err == nil {
		delete(c.nodes, node)
	}
	return err
}

func (w *world) DeleteNode(_ context.Context, name string) error {
	err := w.call("delete record " + name)
	if w.fail["delete record "+name] == nil {
		delete(w.records, name) // also when the answer is lost
	}
	return err
}

func (w *world) Status(context.Context) (map[string]members.State, error) {
	if err := w.fail["etcd"]; err != nil {
		return nil, err
	}
	return w.etcd, nil
}

func (w *world) MayLeave(_ context.Context, node string) error { return w.fail["may leave "+node] }

func (w *world) Leave(_ context.Context, node string) error {
	err := w.call("leave " + node)
	if err == nil {
		delete(w.etcd, node)
	}
	return err
}

func newWorld() *world {
	w := &world{self: "c1", records: map[string]admission.Node{}, nodes: map[string]kube.NodeInfo{}, etcd: map[string]members.State{}, fail: map[string]error{}}
	for i, name := range []string{"c1", "c2", "c3", "w1"} {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		n := admission.Node{Name: name, Pool: "main", Index: i, PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), Address: addr, Key: pin.Pin("sha256:" + name)}
		if name == "w1" {
			n.Pool = "worker"
		} else {
			w.etcd[name] = members.State{Member: "voter", Healthy: true}
		}
		w.records[name] = n
		w.nodes[name] = kube.NodeInfo{Name: name, Ready: true, Version: "v1.36.4", Addresses: []netip.Addr{addr}, PodCIDR: n.PodCIDR.String()}
	}
	return w
}

func (w *world) server() controlv1.ControlServer {
	return New(Config{
		Nodes: w, Tokens: w, Kube: cluster{w}, Members: w, Log: slog.New(slog.DiscardHandler),
		Desired: func() (control.Desired, bool) {
			return control.Desired{Document: control.Document{Self: w.self}, Config: config.Cluster{Pools: []config.Pool{
				{Pool: spec.Pool{Name: "main", Roles: []string{"worker", "control-plane"}}}, {Pool: spec.Pool{Name: "worker", Roles: []string{"worker"}}},
			}}}, w.self != ""
		},
		Invite: func(context.Context) (Invitation, error) {
			return Invitation{"sha256:ca", "id of it", []string{"192.0.2.1:9440"}, []string{"192.0.2.1:9442"}, "sha256:program"}, w.fail["invite"]
		},
	})
}

// stream is what the operator hears.
type stream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // a stream is one
	lines []string
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Send(p *controlv1.Progress) error {
	s.lines = append(s.lines, p.GetText())
	return nil
}
