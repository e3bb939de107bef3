// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/reconcile"
)

const somePin = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestJoinCheck(t *testing.T) {
	t.Parallel()
	good := JoinOptions{Endpoints: []string{"10.0.0.1:9440", "[fd00::1]:9440"}, Pin: somePin}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o    JoinOptions
		want string
	}{
		"no endpoint":   {JoinOptions{Pin: somePin}, "name a join service"},
		"a name":        {JoinOptions{Endpoints: []string{"main-0:9440"}, Pin: somePin}, "use ADDRESS:PORT"},
		"no port":       {JoinOptions{Endpoints: []string{"10.0.0.1"}, Pin: somePin}, "use ADDRESS:PORT"},
		"port 0":        {JoinOptions{Endpoints: []string{"10.0.0.1:0"}, Pin: somePin}, "use ADDRESS:PORT"},
		"no pin":        {JoinOptions{Endpoints: good.Endpoints}, "--pin"},
		"half a pin":    {JoinOptions{Endpoints: good.Endpoints, Pin: somePin[:40]}, "64 hex digits"},
		"capitals":      {JoinOptions{Endpoints: good.Endpoints, Pin: strings.ToUpper(somePin)}, "64 hex digits"},
		"a line behind": {JoinOptions{Endpoints: good.Endpoints, Pin: somePin + "\n"}, "64 hex digits"},
	} {
		if err := test.o.Check(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// joiner is the agent of a machine that gets in after some events.
type joiner struct {
	enrolling
	events atomic.Int32 // sent so far
	in     int32        // after so many
}

func (j *joiner) Facts(context.Context, *nodev1.FactsRequest) (*nodev1.FactsReply, error) {
	if j.events.Load() >= j.in {
		return &nodev1.FactsReply{Lock: "committed", Cluster: "id", Node: "n"}, nil
	}
	return &nodev1.FactsReply{Lock: "free", Key: "sha256:1"}, nil
}

func (j *joiner) Watch(_ *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	for j.events.Load() < j.in {
		e := event("enrol/join", reconcile.Waiting, false)
		e.Item.WaitingFor = "an operator to approve it"
		j.events.Add(1)
		if err := stream.Send(e); err != nil {
			return err
		}
		if j.events.Load() > 20 {
			<-stream.Context().Done()
			return nil
		}
	}
	return nil
}

func TestJoin(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(shortDir(t), "s")
	j := &joiner{in: 3}
	serve(t, socket, j)
	var heard atomic.Int32
	o := JoinOptions{
		Socket: socket, Endpoints: []string{"10.0.0.1:9440"}, Pin: somePin, Token: "t", Node: "n", Timeout: 20 * time.Second,
		Report: func(Event) { heard.Add(1) },
	}
	m, err := Join(t.Context(), o)
	if err != nil || m.Lock != "free" || m.Key != "sha256:1" {
		t.Errorf("without waiting: %+v, %v", m, err)
	}
	if j.join.GetToken() != "t" || j.join.GetNode() != "n" || j.join.GetPin() != somePin || len(j.join.GetEndpoints()) != 1 {
		t.Errorf("request: %v", j.join)
	}
	o.Wait = true
	if m, err = Join(t.Context(), o); err != nil || m.Lock != "committed" || m.Node != "n" || heard.Load() == 0 {
		t.Errorf("waiting: %+v, %v, %d events", m, err, heard.Load())
	}
	j.in, o.Timeout = 1000, 100*time.Millisecond
	_, err = Join(t.Context(), o)
	var known *Error
	if !errors.As(err, &known) || known.Kind != TimedOut || !strings.Contains(err.Error(), "an operator to approve it") {
		t.Errorf("too late: %v", err)
	}
	j.err = status.Error(codes.FailedPrecondition, "this machine is committed (cluster x)")
	if _, err := Join(t.Context(), o); err == nil || err.Error() != "join a cluster: this machine is committed (cluster x)" {
		t.Errorf("refused: %v", err)
	}
	o.Socket = filepath.Join(t.TempDir(), "none")
	if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no agent runs on this machine") {
		t.Errorf("no agent: %v", err)
	}
}
