// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/kube"
)

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
	refused := fmt.Errorf("remove c2 from etcd: %w: without c2, 1 of 3 would answer", members.ErrRefused)
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
		"etcd refuses": {
			node: "c2", change: func(w *world) { w.fail["may leave c2"] = refused }, code: codes.FailedPrecondition, wantText: "1 of 3 would answer",
		},
		"etcd has begun to refuse": {
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
		"pods that do not end": {
			node: "w1", change: func(w *world) {
				w.fail["drain w1 5m0s"] = fmt.Errorf("drain node w1: pod a/b: %w", context.DeadlineExceeded)
			},
			calls: []string{"mark w1 true", "drain w1 5m0s"}, code: codes.DeadlineExceeded, wantText: "run the same command again to continue",
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
		"itself":          {node: "c1", code: codes.Unavailable, wantText: "another control plane does that"},
		"unknown":         {node: "x", code: codes.NotFound, wantText: "no node x"},
		"a Node alone":    {node: "w1", change: func(w *world) { delete(w.records, "w1") }, calls: []string{"drain w1 5m0s", "delete Node w1"}, gone: true},
		"no records":      {node: "w1", change: func(w *world) { w.fail["records"] = errors.New("no answer") }, code: codes.FailedPrecondition, wantText: "no answer"},
		"the mark fails":  {node: "w1", change: func(w *world) { w.fail["mark w1 true"] = errors.New("no answer") }, calls: []string{"mark w1 true"}, code: codes.FailedPrecondition, wantText: "no answer"},
		"an unknown pool": {node: "w1", change: func(w *world) { n := w.records["w1"]; n.Pool = "old"; w.records["w1"] = n }, code: codes.FailedPrecondition, wantText: "it is unknown whether the node is a control plane"},
		"no document yet": {node: "w1", change: func(w *world) { w.self = "" }, code: codes.Unavailable, wantText: "has no control document yet"},
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
			if last := "node " + tt.node + " removed"; tt.gone != (len(lines) > 0 && lines[len(lines)-1] == last) {
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
				t.Fatal("no step was interrupted")
			}
			if n := w.records["c2"]; cut != steps[0] && !n.Removing {
				t.Error("the machine could join again")
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

// An API server that has just been started again may first answer that the client is unauthorized, or not answer.
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
					t.Errorf("got lines %q, want one that says what it waits for", lines)
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
		t.Errorf("drain of an unknown node: %v", err)
	}
	if !slices.Equal(w.calls, []string{"drain w1 7s", "uncordon w1", "drain x 5m0s"}) || s.lines[0] != "pod default/x is evicted" {
		t.Errorf("called %q, told %q", w.calls, s.lines)
	}
}
