// SPDX-License-Identifier: Apache-2.0

// Package balancer implements a worker's connection to the API: a TCP load balancer on the node's loopback
// address for the API servers in the node's roster file. It probes each server twice a second, sends new
// connections to ready servers, and closes the connections to a server that fails, so that clients reconnect
// to another within two seconds instead of waiting for TCP.
//
// It runs as a process of its own and survives restarts of the agent. It never inspects connections and makes
// no API requests except its probes. It tries servers that failed their probe, too, before it rejects a
// client: a probe may be wrong.
//
//	kubelet ─► 127.0.0.1:6443 ─┬─► 10.89.0.10:6443  ready
//	                           ├─► 10.89.0.11:6443  unreachable: no answer for 1.5s
//	                           └─► 10.89.0.12:6443  ready
//
// Read [Config] and [Run] first, then pool.go.
package balancer

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Config is the configuration of a balancer. Roster, JoinCA and ClusterCA are files, which are read again
// when necessary.
type Config struct {
	Listen    string // "127.0.0.1:6443"
	Roster    string // the node's roster file; it may be created later
	JoinCA    string // certificate that signs the roster
	ClusterCA string // certificate that signs the API servers' certificates
	Log       *slog.Logger

	Listener net.Listener                                                      // optional: instead of Listen
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error) // optional: default is net.Dialer's
	Rand     func(n int) int                                                   // optional: chooses among equal servers
	Ready    func() error                                                      // optional: called once clients can connect
}

// timing is the set of time limits. A failed server is detected after at most interval + timeout + retry: two
// seconds.
type timing struct {
	interval time.Duration // between probes
	timeout  time.Duration // of a probe
	retry    time.Duration // timeout of the second probe, on a new connection
	race     time.Duration // if a server has not accepted by then, the next one is tried in parallel
	dial     time.Duration // for all servers together
	reload   time.Duration // interval for reading the roster file without an inotify event
	backOff  time.Duration // after a failed accept
}

func defaultTiming() timing {
	return timing{
		interval: 500 * time.Millisecond, timeout: time.Second, retry: 500 * time.Millisecond, race: 250 * time.Millisecond,
		dial: 10 * time.Second, reload: 15 * time.Second, backOff: 10 * time.Millisecond,
	}
}

// Run serves clients until ctx ends. It then closes all connections and returns nil.
func Run(ctx context.Context, c Config) error { return run(ctx, c, defaultTiming()) }

func run(ctx context.Context, c Config, t timing) error {
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.Rand == nil {
		c.Rand = rand.IntN
	}
	ln := c.Listener
	if ln == nil {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen); err != nil {
			return fmt.Errorf("listen for API clients on %s: %w", c.Listen, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	if c.Ready != nil {
		if err := c.Ready(); err != nil {
			return fmt.Errorf("report that the balancer is ready: %w", err)
		}
	}
	pool := newPool(c, t, ln.Addr().String())
	all.Go(func() { pool.follow(ctx) })
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			all.Go(func() { pool.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept API clients: %w", err)
		default: // no file descriptors, or the client disconnected: keep serving others
			_ = sleep.For(ctx, t.backOff) // the next accept fails if ctx has ended
		}
	}
}

// withPort adds the default API port to an endpoint without a port.
func withPort(endpoint string) string {
	if _, _, err := net.SplitHostPort(endpoint); err != nil {
		return net.JoinHostPort(endpoint, strconv.Itoa(roster.APIPort))
	}
	return endpoint
}

// Command is the hidden command "api-balancer --listen ADDR --roster FILE --ca FILE --cluster-ca FILE", which
// workers run as a unit. It sends READY=1 to the supervisor once clients can connect, and returns nil when
// ctx ends.
func Command(ctx context.Context, args []string, log *slog.Logger) error {
	c := Config{Log: log, Ready: func() error { return notify(ctx, os.Getenv("NOTIFY_SOCKET"), "READY=1") }}
	flags := flag.NewFlagSet("api-balancer", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.Listen, "listen", "127.0.0.1:6443", "where clients connect")
	flags.StringVar(&c.Roster, "roster", "", "the node's roster file")
	flags.StringVar(&c.JoinCA, "ca", "", "certificate of the join CA")
	flags.StringVar(&c.ClusterCA, "cluster-ca", "", "certificate of the cluster's CA")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("parse flags of api-balancer, which only the agent should start: %w", err)
	}
	if c.Roster == "" || c.JoinCA == "" || c.ClusterCA == "" || flags.NArg() > 0 {
		return errors.New("api-balancer, which only the agent should start, requires --roster, --ca and --cluster-ca, and no arguments")
	}
	debug.SetGCPercent(25)         // little memory is live, so collect early
	debug.SetMemoryLimit(16 << 20) // a soft limit
	return Run(ctx, c)
}

// notify sends a message to the supervisor, as described in sd_notify(3). It does nothing if there is no socket.
func notify(ctx context.Context, socket, text string) error {
	if socket == "" {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", socket) // net supports abstract names ("@…"), too
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, text)
	return errors.Join(err, conn.Close())
}

// follow updates the pool from the roster file and runs the probes of its servers until ctx ends. If the file
// cannot be read, it keeps the servers.
func (p *pool) follow(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	start := func(s *server) {
		watching, stop := context.WithCancel(ctx)
		s.stop = stop
		watches.Go(func() { defer stop(); p.watch(watching, s) })
	}
	changes, err := watchDir(ctx, filepath.Dir(p.c.Roster))
	if err != nil {
		p.c.Log.Warn("cannot watch roster file, reading it periodically", "interval", p.timing.reload, "error", err)
	}
	reload := time.NewTicker(p.timing.reload)
	defer reload.Stop()
	last := ""
	for {
		r, err := p.load()
		switch {
		case err == nil:
			if last = ""; p.use(r, start) {
				p.c.Log.Info("roster loaded", "generation", r.Generation, "servers", len(r.API), "loadBalancers", len(r.Extra))
			}
		case err.Error() != last:
			last = err.Error()
			p.c.Log.Warn("waiting for a usable roster from the agent", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-reload.C:
		}
	}
}

// load reads the roster and verifies its signature.
func (p *pool) load() (roster.Roster, error) {
	text, err := os.ReadFile(p.c.JoinCA)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read join CA: %w", err)
	}
	ca, err := pki.Certificate(p.c.JoinCA, text)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read join CA: %w", err)
	}
	return rosterfile.Load(p.c.Roster, ca)
}

// watchDir sends an event whenever a file in a directory is written or renamed, until ctx ends. It watches
// the directory and not the file, because each update replaces the file.
func watchDir(ctx context.Context, dir string) (<-chan struct{}, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), f.Close())
	}
	events := make(chan struct{}, 1)
	go func() {
		defer f.Close()
		defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })()
		buf := make([]byte, 4096)
		for {
			if _, err := f.Read(buf); err != nil {
				return // ctx has ended; otherwise periodic reloads continue
			}
			select {
			case events <- struct{}{}:
			default: // an event is pending
			}
		}
	}()
	return events, nil
}
