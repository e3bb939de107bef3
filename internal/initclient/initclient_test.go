// SPDX-License-Identifier: Apache-2.0

package initclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-secret"

// key returns a machine's certificate and its pin.
func key(t *testing.T) (*tls.Certificate, pin.Pin) {
	t.Helper()
	cert, err := rpc.SelfSigned(certtest.Key(t), "machine", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return cert, pin.OfCertificate(cert.Leaf)
}

// TestWrongPin: a machine with another key receives no byte of a call, and the client does not retry.
func TestWrongPin(t *testing.T) {
	t.Parallel()
	cert, _ := key(t)
	_, other := key(t)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan []byte, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			data, _ := io.ReadAll(conn)
			heard <- data
			conn.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	c, err := Dial(t.Context(), ln.Addr().String(), other, canary, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, facts := c.Facts(t.Context())
	_, init := c.Init(t.Context(), "request-a", plan.Ticket{})
	_, watch := c.Watch(t.Context(), "request-a", nil)
	for name, err := range map[string]error{"facts": facts, "init": init, "watch": watch} {
		if !rpc.IsUntrusted(err) || !strings.Contains(err.Error(), "the secret was not sent") || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if data := <-heard; len(data) != 0 {
		t.Errorf("the machine with the wrong key received %q", data)
	}
}

func TestDialChecksItsArguments(t *testing.T) {
	t.Parallel()
	_, right := key(t)
	for name, args := range map[string][3]string{
		"no pin": {"192.0.2.1:9440", "", canary}, "no SHA-256": {"192.0.2.1:9440", "md5:" + string(right[7:]), canary}, "short pin": {"192.0.2.1:9440", string(right[:20]), canary},
		"no secret": {"192.0.2.1:9440", string(right), " \n"}, "no port": {"192.0.2.1", string(right), canary},
	} {
		if _, err := Dial(t.Context(), args[0], pin.Pin(args[1]), args[2], nil); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

func TestSecretDoesNotPrint(t *testing.T) {
	t.Parallel()
	_, pin := key(t)
	c, err := Dial(t.Context(), "192.0.2.1:9440", pin, canary, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, c.secret); strings.Contains(text, canary) {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

// script is a machine that answers each Watch with the next line.
type script struct {
	initv1.UnimplementedInitServer
	lines chan []*initv1.Event
	end   error // of a stream without a result
}

func (s *script) Watch(_ *initv1.WatchRequest, stream grpc.ServerStreamingServer[initv1.Event]) error {
	for _, e := range <-s.lines {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return s.end
}

func watch(t *testing.T, end error, lines ...[]*initv1.Event) (seen []string, result Result, err error) {
	t.Helper()
	cert, pin := key(t)
	free := func(context.Context, rpc.Peer) error { return nil }
	server := rpc.NewServer(rpc.ServerOptions{
		TLS:       rpc.ServerTLS(func() (*tls.Certificate, error) { return cert, nil }, rpc.NoClients),
		Authorize: map[string]func(context.Context, rpc.Peer) error{initv1.Init_Watch_FullMethodName: free},
	})
	s := &script{lines: make(chan []*initv1.Event, len(lines)), end: end}
	for _, l := range lines {
		s.lines <- l
	}
	initv1.RegisterInitServer(server, s)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(ln) //nolint:errcheck // ends with Stop
	t.Cleanup(server.Stop)
	c, err := Dial(t.Context(), ln.Addr().String(), pin, canary, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	result, err = c.Watch(t.Context(), "request-a", func(e Event) { seen = append(seen, e.Text) })
	return seen, result, err
}

func event(at int64, text string) *initv1.Event { return &initv1.Event{UnixNano: at, Text: text} }

// TestWatchReconnects: each event is shown once, even if the agent was restarted and its clock was set back.
func TestWatchReconnects(t *testing.T) {
	t.Parallel()
	last := event(30, "d")
	last.Result = &initv1.Result{Cluster: "c1", Kubeconfig: []byte("k")}
	away := status.Error(codes.Unavailable, "away")
	tests := map[string][][]*initv1.Event{
		"same agent":      {{event(10, "a"), event(20, "b")}, {event(10, "a"), event(20, "b"), event(25, "c"), last}},
		"restarted agent": {{event(10, "a"), event(20, "b")}, {event(25, "c"), last}},
		"clock set back":  {{event(1010, "a"), event(1020, "b")}, {event(25, "c"), last}},
		"empty streams":   {{}, nil, {event(10, "a"), event(20, "b"), event(25, "c"), last}},
	}
	for name, lines := range tests {
		for how, end := range map[string]error{"lost": away, "ended without a result": nil} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				if end != nil {
					end = &rpc.Refusal{Code: codes.Unavailable, Reason: "away"}
				}
				seen, result, err := watch(t, end, lines...)
				if diff := cmp.Diff([]string{"a", "b", "c", "d"}, seen); err != nil || diff != "" {
					t.Error(err, diff)
				}
				if diff := cmp.Diff(Result{Cluster: "c1", Kubeconfig: []byte("k")}, result); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// TestWatchEnds: the client does not retry after a result or a refusal.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	failed := event(10, "a")
	failed.Result = &initv1.Result{Error: "no room"}
	_, _, err := watch(t, nil, []*initv1.Event{failed})
	var why *FailedError
	if !errors.As(err, &why) || why.ID != "request-a" || why.Why != "no room" {
		t.Errorf("got error %v", err)
	}
	for _, code := range []codes.Code{codes.PermissionDenied, codes.NotFound, codes.FailedPrecondition, codes.InvalidArgument} {
		_, _, err := watch(t, &rpc.Refusal{Code: code, Reason: "no", Public: "the reason"}, []*initv1.Event{event(1, "a")})
		if status.Code(err) != code || !strings.Contains(err.Error(), "the reason") {
			t.Errorf("%s: got error %v", code, err)
		}
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, pin := key(t)
	c, err := Dial(t.Context(), "192.0.2.1:9440", pin, canary, func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no route")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.Watch(ctx, "request-a", nil)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no route") {
		t.Errorf("got error %v", err)
	}
}
