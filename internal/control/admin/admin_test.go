// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/kube"
)

// world is a cluster in memory. What is called is written down in order; fail makes one call fail.
type world struct {
	self    string
	records map[string]admission.Node
	nodes   map[string]kube.NodeInfo
	etcd    map[string]members.Standing
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

func (w *world) Approve(_ context.Context, name string) (string, error) {
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

func (w *world) Status(context.Context) (map[string]members.Standing, error) {
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
	w := &world{self: "c1", records: map[string]admission.Node{}, nodes: map[string]kube.NodeInfo{}, etcd: map[string]members.Standing{}, fail: map[string]error{}}
	for i, name := range []string{"c1", "c2", "c3", "w1"} {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		n := admission.Node{Name: name, Pool: "main", Index: i, PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), Address: addr, Key: "sha256:" + name}
		if name == "w1" {
			n.Pool = "worker"
		} else {
			w.etcd[name] = members.Standing{Member: "voter", Healthy: true}
		}
		w.records[name] = n
		w.nodes[name] = kube.NodeInfo{Name: name, Ready: true, Version: "v1.36.4", Addresses: []netip.Addr{addr}, PodCIDR: n.PodCIDR.String()}
	}
	return w
}

func (w *world) server() controlv1.ControlServer {
	return New(Config{
		Nodes: w, Tokens: w, Kube: cluster{w}, Members: w, Log: slog.New(slog.DiscardHandler),
		Document: func() (control.Document, bool) {
			return control.Document{Self: w.self, Pools: map[string]control.Pool{
				"main": {Roles: []string{"worker", "control-plane"}}, "worker": {Roles: []string{"worker"}},
			}}, w.self != ""
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

func (w *world) remove(t *testing.T, r *controlv1.RemoveNodeRequest) ([]string, error) {
	t.Helper()
	s := &stream{ctx: t.Context()}
	err := w.server().RemoveNode(r, s)
	return s.lines, err
}

// Who drains a node that is not there is told at once what that is good for.
func TestRemoveSilentNode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lost, ready bool
		want        bool
	}{"silent": {want: true}, "lost": {lost: true}, "ready": {ready: true}} {
		w := newWorld()
		w.nodes["w1"] = kube.NodeInfo{Name: "w1", Ready: tt.ready, Reason: "NodeStatusUnknown: Kubelet stopped posting node status."}
		lines, err := w.remove(t, &controlv1.RemoveNodeRequest{Name: "w1", Lost: tt.lost})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Contains(lines[0], "stopped posting") && strings.Contains(lines[0], "slipway node remove w1 --lost") && strings.Contains(lines[0], "5m0s")
		if said != tt.want {
			t.Errorf("%s: %q", name, lines)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("take c2 out of etcd: %w: without c2, 1 of 3 would answer", members.ErrRefused)
	for name, tt := range map[string]struct {
		node     string
		lost     bool
		change   func(*world)
		calls    []string
		code     codes.Code
		wantText string
		gone     bool
	}{
		"worker":        {node: "w1", calls: []string{"mark w1 true", "drain w1 5m0s", "delete Node w1", "delete record w1"}, gone: true},
		"lost worker":   {node: "w1", lost: true, calls: []string{"mark w1 true", "delete Node w1", "delete record w1"}, gone: true},
		"control plane": {node: "c2", calls: []string{"mark c2 true", "drain c2 5m0s", "leave c2", "delete Node c2", "delete record c2"}, gone: true},
		"again, cut before its Node was deleted": {
			node: "c2", gone: true,
			change: func(w *world) {
				n := w.records["c2"]
				n.Removing = true
				w.records["c2"] = n
				delete(w.etcd, "c2")
			},
			calls: []string{"mark c2 true", "drain c2 5m0s", "leave c2", "delete Node c2", "delete record c2"},
		},
		"again, cut before its record was deleted": {
			node: "w1", gone: true,
			change: func(w *world) { w.fail["drain w1 5m0s"] = fmt.Errorf("drain: %w", kube.ErrNoNode) },
			calls:  []string{"mark w1 true", "drain w1 5m0s", "delete Node w1", "delete record w1"},
		},
		"etcd cannot do without it": {
			node: "c2", change: func(w *world) { w.fail["may leave c2"] = refused }, code: codes.FailedPrecondition, wantText: "1 of 3 would answer",
		},
		"etcd cannot do without it any more": {
			node: "c2", change: func(w *world) { w.fail["leave c2"] = refused }, code: codes.FailedPrecondition, wantText: "1 of 3 would answer",
			calls: []string{"mark c2 true", "drain c2 5m0s", "leave c2", "mark c2 false", "uncordon c2"},
		},
		"etcd refuses what an earlier command began": {
			node: "c2", code: codes.FailedPrecondition, wantText: "1 of 3 would answer",
			change: func(w *world) {
				n := w.records["c2"]
				n.Removing = true
				w.records["c2"], w.fail["leave c2"] = n, refused
			},
			calls: []string{"mark c2 true", "drain c2 5m0s", "leave c2"},
		},
		"pods that do not go": {
			node: "w1", change: func(w *world) {
				w.fail["drain w1 5m0s"] = fmt.Errorf("drain node w1: pod a/b: %w", context.DeadlineExceeded)
			},
			calls: []string{"mark w1 true", "drain w1 5m0s"}, code: codes.DeadlineExceeded, wantText: "the same command goes on from here",
		},
		"the last control plane": {
			node: "c1", code: codes.FailedPrecondition, wantText: "c1 is the last control plane",
			change: func(w *world) { delete(w.records, "c2"); delete(w.records, "c3") },
		},
		"all others are leaving": {
			node: "c1", code: codes.FailedPrecondition, wantText: "c1 is the last control plane",
			change: func(w *world) {
				for _, name := range []string{"c2", "c3"} {
					n := w.records[name]
					n.Removing = true
					w.records[name] = n
				}
			},
		},
		"itself":           {node: "c1", code: codes.Unavailable, wantText: "another control plane does that"},
		"nobody":           {node: "x", code: codes.NotFound, wantText: "there is no node x"},
		"a Node alone":     {node: "w1", change: func(w *world) { delete(w.records, "w1") }, calls: []string{"drain w1 5m0s", "delete Node w1"}, gone: true},
		"records away":     {node: "w1", change: func(w *world) { w.fail["records"] = errors.New("no answer") }, code: codes.FailedPrecondition, wantText: "no answer"},
		"the mark fails":   {node: "w1", change: func(w *world) { w.fail["mark w1 true"] = errors.New("no answer") }, calls: []string{"mark w1 true"}, code: codes.FailedPrecondition, wantText: "no answer"},
		"a pool of nobody": {node: "w1", change: func(w *world) { n := w.records["w1"]; n.Pool = "old"; w.records["w1"] = n }, code: codes.FailedPrecondition, wantText: "nobody knows whether it is a control plane"},
		"no document yet":  {node: "w1", change: func(w *world) { w.self = "" }, code: codes.Unavailable, wantText: "keeps no control document yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			if tt.change != nil {
				tt.change(w)
			}
			lines, err := w.remove(t, &controlv1.RemoveNodeRequest{Name: tt.node, Lost: tt.lost})
			if status.Code(err) != tt.code || !strings.Contains(fmt.Sprint(err), tt.wantText) {
				t.Errorf("error %v; want %s %q", err, tt.code, tt.wantText)
			}
			if diff := cmp.Diff(tt.calls, w.calls); diff != "" {
				t.Errorf("done (-want +got):\n%s", diff)
			}
			_, record := w.records[tt.node]
			_, node := w.nodes[tt.node]
			if tt.gone && (record || node) {
				t.Errorf("left: record %t, Node %t", record, node)
			}
			if last := tt.node + " is removed"; tt.gone != (len(lines) > 0 && lines[len(lines)-1] == last) {
				t.Errorf("told %q", lines)
			}
		})
	}
}

// Cut after every step, the same command ends where one that is not cut ends.
func TestRemoveIsResumed(t *testing.T) {
	t.Parallel()
	steps := []string{"mark c2 true", "drain c2 5m0s", "leave c2", "delete Node c2", "delete record c2"}
	for _, cut := range steps {
		t.Run(cut, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.fail[cut] = errors.New("cut")
			if _, err := w.remove(t, &controlv1.RemoveNodeRequest{Name: "c2"}); err == nil {
				t.Fatal("nothing was cut")
			}
			if n := w.records["c2"]; cut != steps[0] && !n.Removing {
				t.Error("the machine could come in again")
			}
			delete(w.fail, cut)
			if _, err := w.remove(t, &controlv1.RemoveNodeRequest{Name: "c2"}); err != nil {
				t.Fatal(err)
			}
			_, record := w.records["c2"]
			_, node := w.nodes["c2"]
			_, member := w.etcd["c2"]
			if record || node || member {
				t.Errorf("left: record %t, Node %t, member %t", record, node, member)
			}
		})
	}
}

// An API server that has just been started again answers in between that it knows nobody, or not at all.
func TestRemoveWaitsForTheServer(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "nodes.all", errors.New("no roles yet"))
	for _, step := range []string{"mark c2 true", "drain c2 5m0s", "delete Node c2", "delete record c2"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.once = map[string]error{step: fmt.Errorf("ask: %w", forbidden)}
				lines, err := w.remove(t, &controlv1.RemoveNodeRequest{Name: "c2"})
				if _, left := w.records["c2"]; err != nil || left {
					t.Errorf("error %v, record left: %t", err, left)
				}
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "waiting for the API server: ") }) {
					t.Errorf("does not say that it waits: %q", lines)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w, begun := newWorld(), time.Now()
		w.fail["mark c2 true"] = forbidden
		if _, err := w.remove(t, &controlv1.RemoveNodeRequest{Name: "c2"}); status.Code(err) != codes.Unavailable || time.Since(begun) > startLimit+time.Second {
			t.Errorf("after %s: %v; another control plane should be asked soon", time.Since(begun), err)
		}
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := &stream{ctx: t.Context()}
	if err := w.server().DrainNode(&controlv1.DrainNodeRequest{Name: "w1", TimeoutSeconds: 7}, s); err != nil {
		t.Fatal(err)
	}
	if err := w.server().DrainNode(&controlv1.DrainNodeRequest{Name: "w1", Undo: true}, s); err != nil {
		t.Fatal(err)
	}
	w.fail["drain x 5m0s"] = fmt.Errorf("drain x: %w", kube.ErrNoNode)
	if err := w.server().DrainNode(&controlv1.DrainNodeRequest{Name: "x"}, s); status.Code(err) != codes.NotFound {
		t.Errorf("drain of nobody: %v", err)
	}
	if !slices.Equal(w.calls, []string{"drain w1 7s", "uncordon w1", "drain x 5m0s"}) || s.lines[0] != "pod default/x is evicted" {
		t.Errorf("called %q, told %q", w.calls, s.lines)
	}
}

func TestListNodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*world)
		waiting map[string]string
	}{
		"all is well": {change: func(*world) {}, waiting: map[string]string{"c1": "", "c2": "", "c3": "", "w1": ""}},
		"etcd is away": {
			change:  func(w *world) { w.fail["etcd"] = errors.New("no leader") },
			waiting: map[string]string{"c1": "etcd does not answer: no leader", "c2": "etcd does not answer: no leader", "c3": "etcd does not answer: no leader", "w1": ""},
		},
		"Kubernetes is away": {
			change: func(w *world) {
				w.fail["kube"] = errors.New("refused")
				clear(w.nodes)
			},
			waiting: map[string]string{
				"c1": "Kubernetes does not answer: refused", "c2": "Kubernetes does not answer: refused", "c3": "Kubernetes does not answer: refused", "w1": "Kubernetes does not answer: refused",
			},
		},
		"the records are away": {
			change: func(w *world) {
				w.fail["records"] = errors.New("damaged")
				clear(w.records)
			},
			waiting: map[string]string{
				"c1": "the records cannot be read: damaged", "c2": "the records cannot be read: damaged", "c3": "the records cannot be read: damaged", "w1": "the records cannot be read: damaged",
			},
		},
		"on their way": {
			change: func(w *world) {
				w.records["c2"] = with(w.records["c2"], func(n *admission.Node) { n.Removing = true })
				w.etcd["c2"] = members.Standing{Member: "voter"}
				w.etcd["c3"] = members.Standing{Member: "learner"}
				w.records["w1"] = with(w.records["w1"], func(n *admission.Node) { n.PendingKey = "sha256:p" })
				w.records["c1"] = with(w.records["c1"], func(n *admission.Node) { n.Elsewhere, n.ElsewhereAt = netip.MustParseAddr("192.0.2.99"), time.Now() })
				w.nodes["w1"] = kube.NodeInfo{Name: "w1", Reason: "KubeletNotReady: no network"}
				w.records["w2"] = admission.Node{Name: "w2", Pool: "worker"}
				w.records["w3"] = admission.Node{Name: "w3", Pool: "worker", Key: "sha256:w3"}
				w.records["c4"] = admission.Node{Name: "c4", Pool: "main", Key: "sha256:c4"}
				w.records["c5"] = admission.Node{Name: "c5", Pool: "main", Key: "sha256:c5"}
				w.etcd["c5"] = members.Standing{Wait: &members.Wait{For: "the etcd slot", Provider: "c3, which joins"}}
				w.nodes["stray"] = kube.NodeInfo{Name: "stray", Ready: true}
			},
			waiting: map[string]string{
				"c1": "its key is shown at 192.0.2.99 too, which is refused while it is alive here: a copy of its disk? Switch one of the two off; slipway node approve c1 makes 192.0.2.99 its address",
				"c2": "it is being removed: slipway node remove c2 goes on with it; its etcd does not answer", "c3": "its etcd learns what the others know",
				"w1": "another machine asks for its name, sha256:p: slipway node approve w1 lets it in; KubeletNotReady: no network",
				"w2": "no machine has come for this name", "w3": "its kubelet has not registered", "c4": "its kubelet has not registered; it is no member of etcd yet",
				"c5": "its kubelet has not registered; the etcd slot (c3, which joins)", "stray": "it has no record: it was removed, or never let in by this cluster",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			tt.change(w)
			r, err := w.server().ListNodes(t.Context(), &controlv1.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, n := range r.GetNodes() {
				got[n.GetName()] = n.GetWaiting()
			}
			if diff := cmp.Diff(tt.waiting, got); diff != "" {
				t.Errorf("waiting (-want +got):\n%s", diff)
			}
		})
	}
}

func with(n admission.Node, change func(*admission.Node)) admission.Node {
	change(&n)
	return n
}

func TestListNodesWhole(t *testing.T) {
	t.Parallel()
	w := newWorld()
	r, err := w.server().ListNodes(t.Context(), &controlv1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &controlv1.Node{
		Name: "c1", Roles: []string{"control-plane", "worker"}, Addresses: []string{"192.0.2.1"}, Ready: true, Version: "v1.36.4", PodCidr: "10.244.0.0/24",
		Member: "voter", Key: "sha256:c1",
	}
	if diff := cmp.Diff(want, r.GetNodes()[0], protocmp.Transform()); diff != "" {
		t.Errorf("c1 (-want +got):\n%s", diff)
	}
	w.fail["kube"], w.fail["records"] = errors.New("refused"), errors.New("refused")
	if _, err := w.server().ListNodes(t.Context(), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("nothing is known, and it says %v", err)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.server()
	made, err := s.CreateToken(t.Context(), &controlv1.CreateTokenRequest{Pool: "worker", TtlSeconds: 60})
	want := &controlv1.CreateTokenReply{
		Id: "id1", Token: "slipway.id1.secret", Pin: "sha256:ca", Cluster: "id of it", Endpoints: []string{"192.0.2.1:9440"}, ExpiresUnix: 1060,
	}
	if diff := cmp.Diff(want, made, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v, made (-want +got):\n%s", err, diff)
	}
	list, err := s.ListTokens(t.Context(), nil)
	if err != nil || len(list.GetTokens()) != 1 || strings.Contains(list.String(), "never told") || list.GetTokens()[0].GetUsedBy() != "sha256:k" {
		t.Errorf("list: %v %v", list, err)
	}
	if _, err := s.RevokeToken(t.Context(), &controlv1.RevokeTokenRequest{Id: "id1"}); err != nil {
		t.Error(err)
	}
	w.fail["revoke x"] = fmt.Errorf("revoke token: %w", registry.ErrNotFound)
	if _, err := s.RevokeToken(t.Context(), &controlv1.RevokeTokenRequest{Id: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("revoke of nothing: %v", err)
	}
	w.calls, w.fail["invite"] = nil, errors.New("no join CA yet")
	if _, err := s.CreateToken(t.Context(), &controlv1.CreateTokenRequest{Pool: "worker"}); err == nil || len(w.calls) != 0 {
		t.Errorf("a token that nobody can use: %v, %v", err, w.calls)
	}
	if _, err := s.CreateToken(t.Context(), &controlv1.CreateTokenRequest{TtlSeconds: -1}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a token of the past: %v", err)
	}
	r, err := s.ApproveNode(t.Context(), &controlv1.ApproveNodeRequest{Name: "w1"})
	if err != nil || r.GetKey() != "sha256:new" {
		t.Errorf("approve: %v %v", r, err)
	}
}

func TestInvite(t *testing.T) {
	t.Parallel()
	w := newWorld()
	r, err := w.server().Invite(t.Context(), nil)
	want := &controlv1.InviteReply{Pin: "sha256:ca", Cluster: "id of it", Endpoints: []string{"192.0.2.1:9440"}, Stores: []string{"192.0.2.1:9442"}, Program: "sha256:program"}
	if diff := cmp.Diff(want, r, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	w.fail["invite"] = errors.New("no roster yet")
	if _, err := w.server().Invite(t.Context(), nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a roster: %v", err)
	}
}
