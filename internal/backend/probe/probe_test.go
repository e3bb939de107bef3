// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAsk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	full, empty := filepath.Join(dir, "full"), filepath.Join(dir, "empty")
	if err := errors.Join(os.WriteFile(full, []byte("x"), 0o600), os.WriteFile(empty, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	web := serve(t, httptest.NewServer)
	unix := listen(t, "unix", filepath.Join(dir, "sock"))
	tcp := listen(t, "tcp", "127.0.0.1:0")
	tests := map[string]struct {
		probe plan.Probe
		want  string // part of the reason; empty means ready
	}{
		"none":              {plan.Probe{}, ""},
		"notify":            {plan.Probe{Kind: plan.ProbeNotify}, "only the supervisor"},
		"unknown":           {plan.Probe{Kind: "psychic"}, "unknown probe"},
		"file":              {plan.Probe{Kind: plan.ProbeFile, Path: full}, ""},
		"file empty":        {plan.Probe{Kind: plan.ProbeFile, Path: empty}, "the file is empty"},
		"file missing":      {plan.Probe{Kind: plan.ProbeFile, Path: full + "x"}, "the file does not exist"},
		"tcp":               {plan.Probe{Kind: plan.ProbeTCP, Address: tcp.String()}, ""},
		"tcp closed":        {plan.Probe{Kind: plan.ProbeTCP, Address: "127.0.0.1:1"}, "connection refused"},
		"unix":              {plan.Probe{Kind: plan.ProbeTCP, Address: "unix://" + unix.String()}, ""},
		"unix missing":      {plan.Probe{Kind: plan.ProbeTCP, Address: "unix:///nowhere"}, "no such file"},
		"exec":              {plan.Probe{Kind: plan.ProbeExec, Args: []string{"/bin/true"}}, ""},
		"exec contains":     {plan.Probe{Kind: plan.ProbeExec, Args: []string{"/bin/echo", "a word"}, Contains: "word"}, ""},
		"exec lacks":        {plan.Probe{Kind: plan.ProbeExec, Args: []string{"/bin/echo", "a"}, Contains: "word"}, `prints "a" without "word"`},
		"exec fails":        {plan.Probe{Kind: plan.ProbeExec, Args: []string{"/bin/sh", "-c", "echo first; echo why >&2; exit 3"}}, "exit status 3: why"},
		"exec missing":      {plan.Probe{Kind: plan.ProbeExec, Args: []string{"/nowhere"}}, "/nowhere does not exist"},
		"exec nothing":      {plan.Probe{Kind: plan.ProbeExec}, "no command"},
		"http":              {plan.Probe{Kind: plan.ProbeHTTP, URL: web.URL + "/ok"}, ""},
		"http contains":     {plan.Probe{Kind: plan.ProbeHTTP, URL: web.URL + "/ok", Contains: "fine"}, ""},
		"http lacks":        {plan.Probe{Kind: plan.ProbeHTTP, URL: web.URL + "/ok", Contains: "great"}, `returns "all fine" without "great"`},
		"http unhealthy":    {plan.Probe{Kind: plan.ProbeHTTP, URL: web.URL + "/unhealthy"}, "returns 500: etcd failed, hook/rbac failed"},
		"http moved":        {plan.Probe{Kind: plan.ProbeHTTP, URL: web.URL + "/moved"}, "returns 302"},
		"http hangs":        {plan.Probe{Kind: plan.ProbeHTTP, URL: web.URL + "/hang"}, "no answer within 1s"},
		"http closed":       {plan.Probe{Kind: plan.ProbeHTTP, URL: "http://127.0.0.1:1/"}, "connection refused"},
		"https no CA file":  {plan.Probe{Kind: plan.ProbeHTTP, URL: "https://" + tcp.String(), CA: full + "x"}, "read CA"},
		"https CA is no CA": {plan.Probe{Kind: plan.ProbeHTTP, URL: "https://" + tcp.String(), CA: full}, "no certificate found"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := New()
			defer p.Close()
			switch err := p.Ask(t.Context(), tt.probe); {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want nil", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// One handshake serves many probes. After the server restarts with another certificate, the new CA is
// read.
func TestHTTPSKeepsConnectionAndReadsFilesAnew(t *testing.T) {
	t.Parallel()
	var handshakes atomic.Int32
	ca := filepath.Join(t.TempDir(), "ca.crt")
	server := serve(t, func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // a refused certificate is part of the test
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				handshakes.Add(1)
			}
		}
		s.StartTLS()
		return s
	})
	p := New()
	defer p.Close()
	pr := plan.Probe{Kind: plan.ProbeHTTP, URL: server.URL + "/ok", CA: ca}
	if err := p.Ask(t.Context(), pr); err == nil || !strings.Contains(err.Error(), "read CA") {
		t.Fatalf("without the CA file: got %v", err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	before := handshakes.Load()
	for range 20 {
		if err := p.Ask(t.Context(), pr); err != nil {
			t.Fatal(err)
		}
	}
	if n := handshakes.Load() - before; n != 1 {
		t.Errorf("got %d connections for 20 probes, want 1", n)
	}
}

func TestUntil(t *testing.T) {
	t.Parallel()
	answers := []string{"starting", "starting", "loading", "loading", ""}
	var heard []string
	err := Until(t.Context(), func(context.Context) error {
		a := answers[0]
		if answers = answers[1:]; a == "" {
			return nil
		}
		return errors.New(a)
	}, func(reason string) { heard = append(heard, reason) })
	if got := strings.Join(heard, ","); err != nil || got != "starting,loading" {
		t.Errorf("got reasons %q, error %v; want each change once", got, err)
	}
}

func TestAwaitEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	p, begin := New(), time.Now()
	defer p.Close()
	slow := plan.Probe{Kind: plan.ProbeExec, Args: []string{"/bin/sh", "-c", "sleep 30; exit 1"}}
	err := p.Await(ctx, slow, func(reason string) { t.Errorf("an interrupted probe reported the reason %q", reason) })
	if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 10*time.Second {
		t.Errorf("Await returned %v after %s", err, took)
	}
}

func serve(t testing.TB, start func(http.Handler) *httptest.Server) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "all fine") })
	mux.HandleFunc("/unhealthy", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]hook/rbac failed: reason withheld\nreadyz check failed\n")
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := start(mux)
	t.Cleanup(s.Close)
	return s
}

func listen(t *testing.T, network, address string) net.Addr {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr()
}

// A task is checked in this process, with the probe's arguments and a time limit.
func TestAskTask(t *testing.T) {
	t.Parallel()
	task := plan.Probe{Kind: plan.ProbeTask, Args: []string{"sysctls", "a.b=1"}}
	p := New()
	defer p.Close()
	if err := p.Ask(t.Context(), task); err == nil || !strings.Contains(err.Error(), "only be checked by the agent") {
		t.Errorf("without tasks: got %v", err)
	}
	answer := errors.New("a.b is 0, want 1")
	p.Task = func(ctx context.Context, args []string) error {
		if _, limited := ctx.Deadline(); !limited || strings.Join(args, " ") != "sysctls a.b=1" {
			t.Errorf("got arguments %q, time limit: %t", args, limited)
		}
		return answer
	}
	if err := p.Ask(t.Context(), task); !errors.Is(err, answer) {
		t.Errorf("got %v, want %v", err, answer)
	}
	answer = nil
	if err := p.Ask(t.Context(), task); err != nil {
		t.Errorf("got %v", err)
	}
}

// Probes of a running TLS server run every 20 to 50 ms during a start.
func BenchmarkAskHTTPS(b *testing.B) {
	server := serve(b, httptest.NewTLSServer)
	ca := filepath.Join(b.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		b.Fatal(err)
	}
	p := New()
	defer p.Close()
	for b.Loop() {
		if err := p.Ask(b.Context(), plan.Probe{Kind: plan.ProbeHTTP, URL: server.URL + "/ok", CA: ca}); err != nil {
			b.Fatal(err)
		}
	}
}
