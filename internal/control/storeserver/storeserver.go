// SPDX-License-Identifier: Apache-2.0

// Package storeserver hands out the component store of a control plane: machines that come with an empty one, or whose disk has
// lost a part, fetch from it what their plans name. What is handed out is what everybody may have, and is asked for by its SHA-256;
// so nobody needs a certificate, and a machine that has the digest from somebody it trusts may even ask without knowing the server.
// It lists nothing, takes nothing, and never serves a file that is not a blob.
//
// Read [Config] first.
//
//	s := storeserver.New(storeserver.Config{Blobs: "/var/lib/slipway/store/blobs/sha256", Certificate: joinCertificate})
//	err := s.Serve(ctx, listener)
//
//	GET https://10.89.0.10:9442/sha256/9f86d08…   → the blob; ranges are answered, so that a fetch that broke off goes on
package storeserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"

	"golang.org/x/net/netutil"
)

const (
	mostConnections = 128
	mostPerSource   = 8 // requests at once, and as many connections
	headerLimit     = 4 << 10
	headerPatience  = 5 * time.Second
	idlePatience    = 30 * time.Second
	writePatience   = 30 * time.Second // for one piece: whoever takes nothing for so long has gone
)

// Config is what is served.
type Config struct {
	Blobs       string // folder of files that are named by the hex of their SHA-256
	Program     string // optional: a file outside it that is served by its digest too, such as this program
	Certificate func() (*tls.Certificate, error)
}

// Server answers.
type Server struct {
	conf    Config
	program program
	callers callers
}

// New makes a server. It reads nothing yet.
func New(c Config) *Server {
	return &Server{conf: c, program: program{path: c.Program}, callers: callers{most: mostPerSource, now: map[string]int{}}}
}

// Serve answers until ctx ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler: s.handler(), ReadTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: headerLimit,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.conf.Certificate() },
		},
		ErrorLog: log.New(io.Discard, "", 0), // strangers' broken handshakes are no news
	}
	defer context.AfterFunc(ctx, func() { _ = h.Close() })()
	err := h.ServeTLS(netutil.LimitListener(&few{Listener: l, callers: &callers{most: mostPerSource, now: map[string]int{}}}, mostConnections), "", "")
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sha256/{sum}", s.blob) // HEAD too
	return mux
}

var sumForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *Server) blob(w http.ResponseWriter, r *http.Request) {
	leave, ok := s.callers.enter(r.RemoteAddr)
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many at once from your address", http.StatusTooManyRequests)
		return
	}
	defer leave()
	sum := r.PathValue("sum")
	if !sumForm.MatchString(sum) {
		http.Error(w, "ask for /sha256/ and 64 hex digits", http.StatusNotFound)
		return
	}
	f, err := s.open(sum)
	if err != nil {
		http.Error(w, "this store does not have it", http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+sum+`"`)
	http.ServeContent(&steady{w, http.NewResponseController(w)}, r, "", time.Time{}, f)
}

func (s *Server) open(sum string) (*os.File, error) {
	root, err := os.OpenRoot(s.conf.Blobs)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(sum)
	if err != nil {
		if path, is := s.program.is(sum); is {
			return os.Open(path)
		}
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("no blob"), f.Close())
	}
	return f, nil
}

// steady gives each piece its time: a large file over a slow line takes as long as it takes.
type steady struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (s *steady) Write(p []byte) (int, error) {
	if err := s.control.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return 0, err
	}
	return s.ResponseWriter.Write(p)
}
