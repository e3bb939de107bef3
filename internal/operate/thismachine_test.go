// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/agentclient/agenttest"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

func TestCreateInitSecret(t *testing.T) {
	t.Parallel()
	dir := agenttest.Dir(t)
	socket, path := filepath.Join(dir, "s"), filepath.Join(dir, provider.InitSecret)
	a := &agenttest.Agent{Reply: &nodev1.FactsReply{Key: somePin, Facts: []byte(`{"address":"10.0.0.4"}`), Lock: "committed", Cluster: "id", Node: "dev-main-0"}}
	if _, _, err := CreateInitSecret(t.Context(), socket, dir, false); err == nil || !strings.Contains(err.Error(), "no agent") {
		t.Errorf("without an agent: %v", err)
	}
	agenttest.Serve(t, socket, a, nil)
	if _, _, err := CreateInitSecret(t.Context(), socket, dir, true); err == nil || !strings.Contains(err.Error(), "node dev-main-0 of cluster id") {
		t.Errorf("on a node: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("a node was given an init secret")
	}
	a.Reply = &nodev1.FactsReply{Key: somePin, Facts: []byte(`{"address":"10.0.0.4"}`), Lock: "free"}
	secret, id, err := CreateInitSecret(t.Context(), socket, dir, false)
	if err != nil || id != (MachineIdentity{Key: somePin, Address: "10.0.0.4", Phase: lock.Free}) || len(secret) < 32 {
		t.Fatalf("%d characters, %+v, %v", len(secret), id, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(text, initserver.SecretFile(secret)) || bytes.Contains(text, []byte(secret)) {
		t.Errorf("the machine's file: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the machine's file: %v, %v", info, err)
	}
	if _, _, err := CreateInitSecret(t.Context(), socket, dir, false); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("second secret: got %v, want an error", err)
	}
	if again, _, err := CreateInitSecret(t.Context(), socket, dir, true); err != nil || again == secret {
		t.Errorf("replaced secret: %v", err)
	}
}

const somePin = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestJoinCheck(t *testing.T) {
	t.Parallel()
	request := func(text string, endpoints ...string) JoinOptions {
		return JoinOptions{JoinRequest: agentclient.JoinRequest{Endpoints: endpoints, Pin: pin.Pin(text)}}
	}
	if err := request(somePin, "10.0.0.1:9440", "[fd00::1]:9440").Check(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o    JoinOptions
		want string
	}{
		"no endpoint":   {request(somePin), "name a join service"},
		"a name":        {request(somePin, "main-0:9440"), "use ADDRESS:PORT"},
		"no port":       {request(somePin, "10.0.0.1"), "use ADDRESS:PORT"},
		"port 0":        {request(somePin, "10.0.0.1:0"), "use ADDRESS:PORT"},
		"no pin":        {request("", "10.0.0.1:9440"), "--pin"},
		"half a pin":    {request(somePin[:40], "10.0.0.1:9440"), "64 hex digits"},
		"capitals":      {request(strings.ToUpper(somePin), "10.0.0.1:9440"), "64 hex digits"},
		"a line behind": {request(somePin+"\n", "10.0.0.1:9440"), "64 hex digits"},
	} {
		if err := test.o.Check(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// joiner is the agent of a machine that is admitted after some events.
type joiner struct {
	enrolling
	events atomic.Int32 // sent so far
	in     int32        // after so many
}

func (j *joiner) Facts(context.Context, *nodev1.FactsRequest) (*nodev1.FactsReply, error) {
	if j.events.Load() >= j.in {
		return &nodev1.FactsReply{Facts: []byte("{}"), Lock: "committed", Cluster: "id", Node: "n"}, nil
	}
	return &nodev1.FactsReply{Facts: []byte("{}"), Lock: "free", Key: "sha256:1"}, nil
}

func (j *joiner) Watch(_ *nodev1.WatchRequest, stream grpc.ServerStreamingServer[nodev1.Event]) error {
	for j.events.Load() < j.in {
		e := agenttest.Event("enrol/join", reconcile.Waiting, false)
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
	socket := filepath.Join(agenttest.Dir(t), "s")
	j := &joiner{in: 3}
	agenttest.Serve(t, socket, j, nil)
	var heard atomic.Int32
	o := JoinOptions{
		Socket: socket, Timeout: 20 * time.Second,
		JoinRequest: agentclient.JoinRequest{Endpoints: []string{"10.0.0.1:9440"}, Pin: somePin, Token: "t", Node: "n"},
		Report:      func(report.Event) { heard.Add(1) },
	}
	m, err := Join(t.Context(), o)
	if err != nil || m.Phase != lock.Free || m.Key != "sha256:1" {
		t.Errorf("without waiting: %+v, %v", m, err)
	}
	if j.join.GetToken() != "t" || j.join.GetNode() != "n" || j.join.GetPin() != somePin || len(j.join.GetEndpoints()) != 1 {
		t.Errorf("request: %v", j.join)
	}
	o.Wait = true
	if m, err = Join(t.Context(), o); err != nil || m.Phase != lock.Committed || m.Node != "n" || heard.Load() == 0 {
		t.Errorf("waiting: %+v, %v, %d events", m, err, heard.Load())
	}
	j.in, o.Timeout = 1000, 100*time.Millisecond
	_, err = Join(t.Context(), o)
	var known *report.Error
	if !errors.As(err, &known) || known.Kind != report.TimedOut || !strings.Contains(err.Error(), "an operator to approve it") {
		t.Errorf("timeout: got %v", err)
	}
	j.err = status.Error(codes.FailedPrecondition, "this machine is committed (cluster x)")
	if _, err := Join(t.Context(), o); err == nil || err.Error() != "join a cluster: this machine is committed (cluster x)" {
		t.Errorf("refused: %v", err)
	}
	o.Socket = filepath.Join(t.TempDir(), "none")
	if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no agent is running on this machine") {
		t.Errorf("no agent: %v", err)
	}
}
