// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/slipway-project/slipway/internal/sleep"
)

// privateSocket is systemd's private socket. It accepts only root and needs no message bus.
const privateSocket = "unix:path=/run/systemd/private"

// replace is the job mode in which a new job replaces a conflicting queued one. During shutdown systemd
// refuses such jobs.
const replace = "replace"

// bus is the connection to systemd. It reconnects when the connection breaks, as it does when systemd
// re-executes itself.
type bus struct {
	log     *slog.Logger
	changed func(object string) // called with the last element of the object path of a unit that may have changed; "" if any may have
	// onReload, if set, is called for each reload, and onStart for each accepted start. Used by tests.
	onReload, onStart func()

	reloading reloads

	mu     sync.Mutex // guards the fields below
	conn   *sd.Conn
	broken <-chan struct{} // closed when conn is closed
}

// open connects, and reconnects until ctx ends.
func (b *bus) open(ctx context.Context, run func(func())) error {
	broken, err := b.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd at %s (is it PID 1, and is this root?): %w", privateSocket, err)
	}
	run(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-broken:
			}
			for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
				if broken, err = b.connect(ctx); err == nil {
					break
				}
				b.log.Warn("cannot connect to systemd, retrying", "error", err)
				if sleep.For(ctx, pause) != nil {
					return
				}
			}
			b.changed("")
		}
	})
	return nil
}

// connect opens a connection. broken is closed when the connection ends.
func (b *bus) connect(ctx context.Context) (broken <-chan struct{}, err error) {
	alive, ended := context.WithCancel(ctx)
	var last *dbus.Conn // the library receives signals on the second connection that it opens
	conn, err := sd.NewConnection(func() (*dbus.Conn, error) {
		c, err := dbus.Dial(privateSocket, dbus.WithContext(alive), dbus.WithSignalHandler(newSignalHandler()))
		if err != nil {
			return nil, err
		}
		last = c
		context.AfterFunc(c.Context(), ended)
		return c, c.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))})
	})
	if err != nil {
		ended()
		return nil, err
	}
	signals := make(chan *dbus.Signal, 256)
	last.Signal(signals) // closed with the connection
	go b.pass(signals)
	if err := conn.Subscribe(); err != nil {
		ended()
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.broken = conn, alive.Done()
	return b.broken, nil
}

// pass reports which units have changed. The library's own subscription is not used because it drops
// signals that arrive too fast.
func (b *bus) pass(signals <-chan *dbus.Signal) {
	for s := range signals {
		if s.Name == "org.freedesktop.DBus.Properties.PropertiesChanged" {
			b.changed(path.Base(string(s.Path)))
		}
	}
}

func (b *bus) now() *sd.Conn {
	conn, _ := b.current()
	return conn
}

// current returns the connection and the channel that is closed when it ends.
func (b *bus) current() (conn *sd.Conn, broken <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn, b.broken
}

// read returns the state of a unit. It makes systemd load the unit file, if it has not.
func (b *bus) read(ctx context.Context, service string) (state, error) {
	props, err := b.now().GetAllPropertiesContext(ctx, service)
	if err != nil {
		return state{}, fmt.Errorf("get state of %s: %w", service, err)
	}
	return stateOf(props), nil
}

// start queues a start. The job's result is sent on the channel, unless the connection breaks.
func (b *bus) start(ctx context.Context, service string) (<-chan string, error) {
	result, _, err := b.startOn(ctx, service)
	return result, err
}

// startOn is start, and also returns a channel that is closed when the connection breaks, after which no
// result is sent.
func (b *bus) startOn(ctx context.Context, service string) (_ <-chan string, broken <-chan struct{}, err error) {
	result := make(chan string, 1)
	conn, broken := b.current()
	if _, err := conn.StartUnitContext(ctx, service, replace, result); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", service, err)
	}
	if b.onStart != nil {
		b.onStart()
	}
	return result, broken, nil
}

// stop queues a stop. Stopping an unknown unit succeeds.
func (b *bus) stop(ctx context.Context, service string) (<-chan string, error) {
	result := make(chan string, 1)
	if _, err := b.now().StopUnitContext(ctx, service, replace, result); err != nil {
		if isUnknown(err) {
			result <- "done"
			return result, nil
		}
		return nil, fmt.Errorf("stop %s: %w", service, err)
	}
	return result, nil
}

func (b *bus) kill(ctx context.Context, service string, who sd.Who, signal syscall.Signal) error {
	if err := b.now().KillUnitWithTarget(ctx, service, who, int32(signal)); err != nil && !isUnknown(err) {
		return fmt.Errorf("send %s to %s: %w", signal, service, err)
	}
	return nil
}

// resetFailed clears the failed state of a unit.
func (b *bus) resetFailed(ctx context.Context, service string) error {
	if err := b.now().ResetFailedUnitContext(ctx, service); err != nil && !isUnknown(err) {
		return fmt.Errorf("reset %s: %w", service, err)
	}
	return nil
}

// reload makes systemd reload its unit files. Concurrent callers share a reload.
func (b *bus) reload(ctx context.Context) error {
	return b.reloading.join(ctx, func() error {
		if b.onReload != nil {
			b.onReload()
		}
		if err := b.now().ReloadContext(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("reload systemd: %w", err)
		}
		return nil
	})
}

// isUnknown reports whether systemd does not know the unit, or the unit has no process.
func isUnknown(err error) bool {
	var e dbus.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Name == "org.freedesktop.systemd1.NoSuchUnit" || e.Name == "org.freedesktop.systemd1.NoSuchProcess"
}

// reloads combines concurrent requests: callers that arrive while a reload runs share the next one.
type reloads struct {
	one  sync.Mutex // held during a reload
	mu   sync.Mutex // guards the field below
	next *reload
}

// reload is one run shared by several callers.
type reload struct {
	done chan struct{}
	err  error // valid once done is closed
}

// join returns when a run of do that started after the call has ended. A canceled context ends only that
// caller's waiting.
func (r *reloads) join(ctx context.Context, do func() error) error {
	r.mu.Lock()
	mine := r.next
	if mine == nil {
		mine = &reload{done: make(chan struct{})}
		r.next = mine
		go func() {
			r.one.Lock()
			defer r.one.Unlock()
			r.mu.Lock()
			r.next = nil // later callers may have changed files since
			r.mu.Unlock()
			mine.err = do()
			close(mine.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signalHandler delivers a connection's signals one after the other, like the library's own handler.
// Unlike that one, it closes a channel that is added after the connection has ended, instead of leaving
// its reader waiting.
type signalHandler struct {
	dbus.SignalHandler

	mu   sync.Mutex // guards the field below
	over bool
}

func newSignalHandler() *signalHandler {
	return &signalHandler{SignalHandler: dbus.NewSequentialSignalHandler()}
}

// AddSignal implements dbus.SignalRegistrar.
func (h *signalHandler) AddSignal(ch chan<- *dbus.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.SignalHandler.(dbus.SignalRegistrar); ok && !h.over {
		r.AddSignal(ch)
		return
	}
	close(ch)
}

// RemoveSignal implements dbus.SignalRegistrar.
func (h *signalHandler) RemoveSignal(ch chan<- *dbus.Signal) {
	if r, ok := h.SignalHandler.(dbus.SignalRegistrar); ok {
		r.RemoveSignal(ch)
	}
}

// Terminate implements dbus.Terminator. It is called when the connection ends.
func (h *signalHandler) Terminate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if t, ok := h.SignalHandler.(dbus.Terminator); ok {
		t.Terminate()
	}
}
