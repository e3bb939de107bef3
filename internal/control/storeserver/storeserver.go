// SPDX-License-Identifier: Apache-2.0

// Package storeserver serves the component store of a control plane over HTTPS. Machines with an empty or damaged store download from
// it the components that their plans name. Components are public and are requested by their SHA-256, so clients need no certificate,
// and a client that has the digest from a trusted source need not trust the server. The server does not list or accept files, and
// serves only blobs and its own program.
//
// Read [Config] first.
//
//	s := storeserver.New(storeserver.Config{Blobs: "/var/lib/slipway/store/blobs/sha256", Certificate: joinCertificate})
//	err := s.Serve(ctx, listener)
//
//	GET https://10.89.0.10:9442/sha256/9f86d08…   → the blob; range requests let a client resume a download
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
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/slipway-project/slipway/internal/durable"
)

const (
	maxConnections = 128
	maxPerAddress  = 8 // requests at once, and connections at once
	maxHeader      = 4 << 10
	headerTimeout  = 5 * time.Second
	idleTimeout    = 30 * time.Second
	writeTimeout   = 30 * time.Second // for one write, not for the whole file
)

// Config is what is served, and how.
type Config struct {
	Blobs       string // directory of files that are named by their SHA-256 in hex
	Program     string // optional: another file that is served by its digest, such as this program
	Certificate func() (*tls.Certificate, error)
}

// Server serves blobs. Make it with [New].
type Server struct {
	conf     Config
	requests perAddress

	programOnce   sync.Once // sets the field below
	programDigest string    // empty if the program cannot be read
}

// New returns a server. It reads nothing yet.
func New(c Config) *Server {
	return &Server{conf: c, requests: perAddress{count: map[string]int{}}}
}

// Serve serves until ctx ends, and then returns nil. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sha256/{sum}", s.serveBlob) // also HEAD
	h := &http.Server{
		Handler: mux, ReadTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.conf.Certificate() },
		},
		ErrorLog: log.New(io.Discard, "", 0), // unauthenticated clients could fill the log with failed handshakes
	}
	defer context.AfterFunc(ctx, func() { _ = h.Close() })()
	err := h.ServeTLS(netutil.LimitListener(&limitedListener{Listener: l, connections: &perAddress{count: map[string]int{}}}, maxConnections), "", "")
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

var sumForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *Server) serveBlob(w http.ResponseWriter, r *http.Request) {
	release, ok := s.requests.acquire(r.RemoteAddr)
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests at once from your address", http.StatusTooManyRequests)
		return
	}
	defer release()
	sum := r.PathValue("sum")
	if !sumForm.MatchString(sum) {
		http.Error(w, "want /sha256/ and 64 hex digits", http.StatusNotFound)
		return
	}
	f, err := s.open(sum)
	if err != nil {
		http.Error(w, "not in this store", http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+sum+`"`)
	http.ServeContent(&deadlineWriter{w, http.NewResponseController(w)}, r, "", time.Time{}, f)
}

func (s *Server) open(sum string) (*os.File, error) {
	root, err := os.OpenRoot(s.conf.Blobs)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(sum)
	if err != nil {
		// Once for all clients: the client that asks first must not cancel it.
		s.programOnce.Do(func() { s.programDigest, _ = DigestOf(context.Background(), s.conf.Program) })
		if s.programDigest == "sha256:"+sum {
			return os.Open(s.conf.Program)
		}
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("not a regular file"), f.Close())
	}
	return f, nil
}

// DigestOf returns the digest by which a server serves the file.
func DigestOf(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest, _, err := durable.Digest(ctx, f)
	return digest, err
}

// deadlineWriter gives each write its own time limit, so that a large file may take long on a slow connection.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w *deadlineWriter) Write(p []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

// perAddress counts what is in use by each client address.
type perAddress struct {
	mu    sync.Mutex // guards the field below
	count map[string]int
}

// acquire returns false if the address already uses maxPerAddress. Otherwise the caller must call release once.
func (c *perAddress) acquire(remote string) (release func(), ok bool) {
	from, _, err := net.SplitHostPort(remote)
	if err != nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count[from] >= maxPerAddress {
		return nil, false
	}
	c.count[from]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.count[from]--; c.count[from] <= 0 {
			delete(c.count, from)
		}
	}, true
}

// limitedListener closes new connections of an address that has too many.
type limitedListener struct {
	net.Listener
	connections *perAddress
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		release, ok := l.connections.acquire(c.RemoteAddr().String())
		if !ok {
			_ = c.Close()
			continue
		}
		return &countedConn{Conn: c, release: sync.OnceFunc(release)}, nil
	}
}

// countedConn is a connection that no longer counts once it is closed.
type countedConn struct {
	net.Conn
	release func()
}

func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
