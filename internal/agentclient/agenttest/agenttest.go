// SPDX-License-Identifier: Apache-2.0

// Package agenttest has an agent for tests: its answers are scripted, its socket is real. Read [Agent] and [Serve] first.
package agenttest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Agent returns the replies that it is created with.
type Agent struct {
	nodev1.UnimplementedNodeServer
	Reply  *nodev1.FactsReply
	Events []*nodev1.Event // of one Watch, which then ends; nil: Watch is not implemented
}

// Facts returns Reply.
func (a *Agent) Facts(context.Context, *nodev1.FactsRequest) (*nodev1.FactsReply, error) {
	return a.Reply, nil
}

// Watch sends Events.
func (a *Agent) Watch(r *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	if a.Events == nil {
		return a.UnimplementedNodeServer.Watch(r, stream)
	}
	for _, e := range a.Events {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return nil
}

// Event is an event of a Watch, after three steps.
func Event(ref string, phase reconcile.Phase, converged bool) *nodev1.Event {
	return &nodev1.Event{Item: &nodev1.Item{Ref: ref, Phase: string(phase), Verb: "create", Why: "absent"}, Converged: converged, Steps: 3}
}

// Dir is a temporary directory whose path is short enough for a unix socket in it.
func Dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a socket's path has a limit
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

// Serve serves an agent, and the control service unless that is nil, on a unix socket until the test ends or stop is called.
// It creates the socket's directory.
func Serve(t *testing.T, socket string, a nodev1.NodeServer, c controlv1.ControlServer) (stop func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	nodev1.RegisterNodeServer(s, a)
	if c != nil {
		controlv1.RegisterControlServer(s, c)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return s.Stop
}

// Dial connects to a socket until the test ends.
func Dial(t *testing.T, socket string) *agentclient.Agent {
	t.Helper()
	a, err := agentclient.Dial(agentclient.Socket(socket))
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
