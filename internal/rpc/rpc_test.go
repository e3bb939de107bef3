// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

func TestPeerAndExporterAgree(t *testing.T) {
	t.Parallel()
	s := open(t, ServerOptions{}, AnyKey, joiner{join: func(stream grpc.BidiStreamingServer[joinv1.JoinRequest, joinv1.JoinReply]) error {
		exported, err := Exporter(stream.Context())
		if err != nil {
			return err
		}
		return stream.Send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Challenge{Challenge: &joinv1.Challenge{Nonce: exported}}})
	}}, initer{})
	seen := map[string]bool{}
	for range 3 {
		key, cert := identity(t)
		conn := dialWith(t, s.addr, ClientOptions{Pin: s.pin, Certificate: cert})
		stream, err := joinv1.NewJoinClient(conn).Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ours, err := Exporter(stream.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if theirs := r.GetChallenge().GetNonce(); string(ours) != string(theirs) || len(ours) != 32 {
			t.Errorf("exporters differ: client %x, server %x", ours, theirs)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("end of the stream: %v", err)
		}
		facts, err := initv1.NewInitClient(conn).Facts(t.Context(), &initv1.FactsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if facts.GetSlipway() != pinOf(t, key) || !strings.HasPrefix(facts.GetAddress(), "127.0.0.1:") || facts.GetLock() != string(hexed(ours)) {
			t.Errorf("the server saw %v", facts)
		}
		if seen[string(ours)] {
			t.Error("two connections have one exporter")
		}
		seen[string(ours)] = true
	}
}
