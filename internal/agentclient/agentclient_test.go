// SPDX-License-Identifier: Apache-2.0

package agentclient_test

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/agentclient/agenttest"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// A watch continues with the events of the next agent when the agent is restarted.
func TestWatchReconnects(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(agenttest.Dir(t), "s")
	a := agenttest.Dial(t, socket) // before there is an agent
	stop := agenttest.Serve(t, socket, &agenttest.Agent{Events: []*nodev1.Event{agenttest.Event("unit/a", reconcile.Starting, false)}}, nil)
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
			agenttest.Serve(t, socket, &agenttest.Agent{Events: []*nodev1.Event{agenttest.Event("unit/b", reconcile.Ready, true)}}, nil)
		}
		return converged
	})
	if err != nil || seen[len(seen)-1] != "unit/b" {
		t.Errorf("got events %v, %v", seen, err)
	}
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	dir := agenttest.Dir(t)
	agenttest.Serve(t, filepath.Join(dir, "old"), &agenttest.Agent{}, nil)
	err := agenttest.Dial(t, filepath.Join(dir, "old")).Watch(t.Context(), func(reconcile.Status, bool, int) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "the machine runs another version of slipway: run slipway up again") {
		t.Errorf("agent without watch: got %v, want an error", err)
	}
	for name, a := range map[string]*agenttest.Agent{"a silent agent": {Events: []*nodev1.Event{}}, "no agent": nil} {
		socket := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if a != nil {
			agenttest.Serve(t, socket, a, nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begun := time.Now()
		err := agenttest.Dial(t, socket).Watch(ctx, func(reconcile.Status, bool, int) bool { return true })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 5*time.Second {
			t.Errorf("%s: after %s %v", name, time.Since(begun), err)
		}
		cancel()
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	address := netip.MustParseAddr("192.0.2.1")
	for name, tc := range map[string]struct {
		reply *nodev1.FactsReply
		want  coremachine.Facts
		err   string
	}{
		"no upstream DNS": {
			&nodev1.FactsReply{Facts: []byte(`{"address":"192.0.2.1","cgroupV1":true,"oomScoreAdj":true}`)},
			coremachine.Facts{Address: address, CgroupV1: true, OOMScoreAdj: true},
			"",
		},
		"upstream DNS": {&nodev1.FactsReply{Facts: []byte(`{"address":"192.0.2.1","upstreamDNS":true}`)}, coremachine.Facts{Address: address, UpstreamDNS: true}, ""},
		"no address":   {&nodev1.FactsReply{Facts: []byte("{}")}, coremachine.Facts{}, `the machine has no address of its own (fact "address"): assign one, or name it in the spec`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(agenttest.Dir(t), "s")
			agenttest.Serve(t, socket, &agenttest.Agent{Reply: tc.reply}, nil)
			info, err := agenttest.Dial(t, socket).Addressed(t.Context())
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || info.Facts != tc.want {
				t.Errorf("got facts %+v, %v, want %+v", info.Facts, err, tc.want)
			}
		})
	}
}

// TestUnready: failing items come before active ones, and these before waiting ones; each is listed once.
func TestUnready(t *testing.T) {
	t.Parallel()
	n := agentclient.NodeStatus{
		Items: []reconcile.Status{
			{Ref: "unit/b", Phase: reconcile.Waiting},
			{Ref: "unit/a", Phase: reconcile.Starting},
			{Ref: "unit/c", Phase: reconcile.Failing, Error: "exited with 1"},
			{Ref: "unit/d", Phase: reconcile.Ready},
		},
		Units: []agentclient.UnitStatus{{Name: "a"}, {Name: "b"}, {Name: "c", LastExit: "exited with 1"}, {Name: "d", Ready: true}},
	}
	var got []string
	for _, s := range n.Unready() {
		got = append(got, s.Ref+" "+string(s.Phase)+" "+s.Error)
	}
	want := []string{"unit/c failing exited with 1", "unit/a starting ", "unit/b waiting "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unready (-want +got):\n%s", diff)
	}
}
