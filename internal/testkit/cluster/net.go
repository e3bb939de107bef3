// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/sleep"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
)

// silence is the time after which a side notices that it receives nothing.
const silence = 20 * time.Second

// link is a connection from one agent to the join service of another. It breaks at once when one of the two processes
// dies, and after silence when a machine is cut off or has lost its power.
type link struct {
	from, to *agent
	service  *joinService
	exporter []byte
	port     uint16

	once   sync.Once
	broken chan struct{}
	err    error // set before broken is closed
}

var errLink = status.Error(codes.Unavailable, "the connection is lost")

// dialer is how an agent reaches join services: it believes only those of the pinned join CA.
func (a *agent) dialer(ca pin.Pin) joinclient.Dialer {
	return func(ctx context.Context, to netip.AddrPort) (joinclient.Conn, error) {
		if err := sleep.For(ctx, a.m.w.delay()); err != nil {
			return nil, err
		}
		peer := a.m.w.at(to.Addr())
		for peer == nil || !a.reaches(peer) { // there is no refusal, only a timeout
			select {
			case <-a.m.w.networkChange():
			case <-ctx.Done():
				return nil, status.Error(codes.Unavailable, "no route")
			}
		}
		b := peer.running()
		if err := a.alive(); err != nil {
			return nil, err
		}
		if b == nil || b.joins.Load() == nil || to.Port() != 9440 {
			return nil, status.Error(codes.Unavailable, "connection refused")
		}
		s := b.joins.Load()
		if s.pin != ca {
			return nil, &rpc.Untrusted{Reason: "its CA has the pin " + string(s.pin)}
		}
		if err := rpc.CheckValidity(readCert(b.root+pkiDir+"/join-server.crt"), readCert(b.root+pkiDir+"/join-ca.crt"), a.now()); err != nil {
			return nil, err
		}
		l := &link{from: a, to: b, service: s, exporter: make([]byte, 32), port: uint16(1024 + a.m.w.intn(60000)), broken: make(chan struct{})}
		_, _ = rand.Read(l.exporter)
		go l.watch()
		return conn{l}, nil
	}
}

// now returns the time of the machine's clock.
func (a *agent) now() time.Time {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	return time.Now().Add(a.m.clockOff)
}

// askTime implements joinclient.Clock: it returns the time of the server's clock.
func (a *agent) askTime(ctx context.Context, to netip.AddrPort) (time.Time, error) {
	if err := sleep.For(ctx, a.m.w.delay()); err != nil {
		return time.Time{}, err
	}
	if peer := a.m.w.at(to.Addr()); peer != nil && a.reaches(peer) {
		if b := peer.running(); b != nil && a.alive() == nil {
			return b.now(), nil
		}
	}
	return time.Time{}, errLink
}

func (a *agent) reaches(m *machine) bool {
	return a.m == m || a.m.reachable() && m.reachable()
}

// up tells whether a message would arrive now.
func (l *link) up() bool { return l.from.reaches(l.to.m) }

// watch ends the link when one of its ends has died or is unreachable.
func (l *link) watch() {
	var since time.Time // of silence
	for {
		changed := l.from.m.w.networkChange()
		var late <-chan time.Time
		switch {
		case l.up():
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			fallthrough
		default:
			late = time.After(time.Until(since.Add(silence)))
		}
		select {
		case <-changed:
		case <-l.from.gone:
			l.end(errLink)
		case <-l.to.gone:
			if !l.to.m.reachable() { // a power cut sends no reset
				select {
				case <-time.After(silence):
				case <-l.broken:
				case <-l.from.gone:
				}
			}
			l.end(errLink)
		case <-l.service.ended:
			l.end(errLink)
		case <-late:
			l.end(errLink)
		case <-l.broken:
			return
		}
	}
}

func (l *link) end(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.broken)
	})
}

// pipe carries messages of one stream in one direction, in order, each with its delay.
type pipe[M any] struct {
	link *link
	in   chan M
	out  chan M
	fin  chan struct{} // closed by the sender: nothing follows
	err  error         // set before fin is closed: what the receiver gets at the end
	once sync.Once
	end  <-chan struct{} // of the stream
}

func newPipe[M any](l *link, end <-chan struct{}) *pipe[M] {
	p := &pipe[M]{link: l, in: make(chan M, 16), out: make(chan M), fin: make(chan struct{}), end: end}
	go p.pump()
	return p
}

func (p *pipe[M]) pump() {
	defer close(p.out)
	for {
		var m M
		select {
		case m = <-p.in:
		case <-p.end:
			return
		case <-p.link.broken:
			return
		case <-p.fin:
			select {
			case m = <-p.in: // sent before the end
			default:
				return
			}
		}
		if !p.travel() {
			return
		}
		select {
		case p.out <- m:
		case <-p.end:
			return
		case <-p.link.broken:
			return
		}
	}
}

// travel waits until one message arrives, and returns false if it never does.
func (p *pipe[M]) travel() bool {
	timer := time.NewTimer(p.link.from.m.w.delay())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.end:
		return false
	case <-p.link.broken:
		return false
	}
	for !p.link.up() {
		select {
		case <-p.link.from.m.w.networkChange():
		case <-p.end:
			return false
		case <-p.link.broken:
			return false
		}
	}
	return true
}

func (p *pipe[M]) send(m M) error {
	select {
	case <-p.link.broken:
		return io.EOF
	case <-p.fin:
		return errors.New("the stream is closed")
	case <-p.end:
		return io.EOF
	default:
	}
	select {
	case p.in <- m:
		return nil
	case <-p.link.broken:
		return io.EOF
	case <-p.end:
		return io.EOF
	}
}

func (p *pipe[M]) finish(err error) {
	p.once.Do(func() {
		p.err = err
		close(p.fin)
	})
}

// recv returns the next message, or the error that ended the stream.
func (p *pipe[M]) recv(ctx context.Context) (m M, err error) {
	select {
	case m, ok := <-p.out:
		if ok {
			return m, nil
		}
	case <-ctx.Done():
		return m, status.FromContextError(ctx.Err()).Err()
	}
	select {
	case <-p.fin:
		return m, p.err
	default:
	}
	select {
	case <-p.link.broken:
		return m, p.link.err
	default:
		return m, status.Error(codes.Canceled, fmt.Sprint("the stream has ended: ", context.Cause(ctx)))
	}
}
