// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// scripted is an agent that says what it is told to.
type scripted struct {
	nodev1.UnimplementedNodeServer
	facts  *nodev1.FactsReply
	events []*nodev1.Event // of one Watch, which then ends; nil: it cannot be watched
}

func (s *scripted) Facts(context.Context, *nodev1.FactsRequest) (*nodev1.FactsReply, error) {
	return s.facts, nil
}

func (s *scripted) Watch(r *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	if s.events == nil {
		return s.UnimplementedNodeServer.Watch(r, stream)
	}
	for _, e := range s.events {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "launch") //nolint:usetesting // a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func serve(t *testing.T, socket string, a nodev1.NodeServer) (stop func()) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	nodev1.RegisterNodeServer(s, a)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s.Stop
}

func dial(t *testing.T, socket string) *Agent {
	t.Helper()
	a, err := DialAgent(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func event(ref string, phase reconcile.Phase, converged bool) *nodev1.Event {
	return &nodev1.Event{Item: &nodev1.Item{Ref: ref, Phase: string(phase), Verb: "create", Why: "absent"}, Converged: converged, Steps: 3}
}

// A watch outlives the agent: what a new one says is heard, without a second Watch.
func TestWatchTakesUpAgain(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "s")
	a := dial(t, socket) // before there is an agent
	stop := serve(t, socket, &scripted{events: []*nodev1.Event{event("unit/a", reconcile.Starting, false)}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var seen []string
	err := a.Watch(ctx, func(s reconcile.Status, converged bool, steps int) bool {
		seen = append(seen, s.Ref)
		if steps != 3 || s.Step == nil || s.Step.Why != "absent" || !s.Since.IsZero() {
			t.Errorf("%+v after %d steps", s, steps)
		}
		if len(seen) == 1 {
			stop()
			serve(t, socket, &scripted{events: []*nodev1.Event{event("unit/b", reconcile.Ready, true)}})
		}
		return converged
	})
	if err != nil || seen[len(seen)-1] != "unit/b" {
		t.Errorf("saw %v, %v", seen, err)
	}
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	serve(t, filepath.Join(dir, "old"), &scripted{})
	err := dial(t, filepath.Join(dir, "old")).Watch(t.Context(), func(reconcile.Status, bool, int) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "another slipway runs on the machine: run slipway up again") {
		t.Errorf("an agent that cannot be watched: %v", err)
	}
	for name, a := range map[string]*scripted{"a silent agent": {events: []*nodev1.Event{}}, "no agent": nil} {
		socket := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if a != nil {
			serve(t, socket, a)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begun := time.Now()
		err := dial(t, socket).Watch(ctx, func(reconcile.Status, bool, int) bool { return true })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 5*time.Second {
			t.Errorf("%s: after %s %v", name, time.Since(begun), err)
		}
		cancel()
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reply *nodev1.FactsReply
		want  coremachine.Facts
		err   string
	}{
		"no upstream DNS": {
			&nodev1.FactsReply{Facts: []byte(`{"address":"192.0.2.1","cgroupV1":true,"oomScoreAdj":true}`)},
			coremachine.Facts{Address: usual(0), CgroupV1: true, OOMScoreAdj: true},
			"",
		},
		"upstream DNS": {&nodev1.FactsReply{Facts: []byte(`{"address":"192.0.2.1","upstreamDNS":true}`)}, coremachine.Facts{Address: usual(0), UpstreamDNS: true}, ""},
		"no address":   {&nodev1.FactsReply{Facts: []byte("{}")}, coremachine.Facts{}, `the machine has no address of its own (fact "address"): give it one, or name it in the spec`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(shortDir(t), "s")
			serve(t, socket, &scripted{facts: tc.reply})
			got, _, err := dial(t, socket).Facts(t.Context())
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || got.Address.String() != "192.0.2.1" {
				t.Errorf("facts %+v, %v", got, err)
			}
			if got.Address = tc.want.Address; got != tc.want {
				t.Errorf("facts %+v, want %+v", got, tc.want)
			}
		})
	}
}
