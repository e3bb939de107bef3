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

// privateSocket is systemd's own: it answers only root, and there is no message bus in between that could be missing.
const privateSocket = "unix:path=/run/systemd/private"

// replace: a new job takes the place of a queued one that contradicts it. While the machine goes down systemd refuses any.
const replace = "replace"

// bus is the connection to systemd. It is made again when it breaks, as it does when systemd executes itself anew.
type bus struct {
	log     *slog.Logger
	changed func(object string) // a unit may have changed, by the last word of its object path; without one, all may have
	// onReload, if set, is called for each reload, and onStart for each start that systemd has accepted. Tests count and break.
	onReload, onStart func()

	reloading reloads

	mu     sync.Mutex // guards the fields below
	conn   *sd.Conn
	broken <-chan struct{} // closed when conn has ended
}

// open connects, and stays connected until ctx ends.
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
				b.log.Warn("systemd not reached, trying again", "error", err)
				if sleep.For(ctx, pause) != nil {
					return
				}
			}
			b.changed("")
		}
	})
	return nil
}

// connect makes a connection whose end closes broken.
func (b *bus) connect(ctx context.Context) (broken <-chan struct{}, err error) {
	alive, ended := context.WithCancel(ctx)
	var last *dbus.Conn // the library hears signals on the second connection that it asks for
	conn, err := sd.NewConnection(func() (*dbus.Conn, error) {
		c, err := dbus.Dial(privateSocket, dbus.WithContext(alive), dbus.WithSignalHandler(newHearing()))
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

// pass hands on which unit has changed. The library's own subscription is not used: it loses what comes too fast.
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

// current is the connection, and what is closed when it has ended.
func (b *bus) current() (conn *sd.Conn, broken <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn, b.broken
}

// read asks how a unit is. Asking makes systemd read its unit file, if it has not.
func (b *bus) read(ctx context.Context, service string) (state, error) {
	props, err := b.now().GetAllPropertiesContext(ctx, service)
	if err != nil {
		return state{}, fmt.Errorf("ask systemd for %s: %w", service, err)
	}
	return stateOf(props), nil
}

// start begins a start; its result comes on the channel, unless the connection breaks.
func (b *bus) start(ctx context.Context, service string) (<-chan string, error) {
	result, _, err := b.startOn(ctx, service)
	return result, err
}

// startOn is start, and tells when the result is not going to come because the connection is broken.
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

// stop begins a stop. What systemd does not know does not run.
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

// forgive makes systemd forget that a unit has failed.
func (b *bus) forgive(ctx context.Context, service string) error {
	if err := b.now().ResetFailedUnitContext(ctx, service); err != nil && !isUnknown(err) {
		return fmt.Errorf("reset %s: %w", service, err)
	}
	return nil
}

// reload makes systemd read its unit files again, once for all who ask for it at the same time.
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

func isUnknown(err error) bool {
	var e dbus.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Name == "org.freedesktop.systemd1.NoSuchUnit" || e.Name == "org.freedesktop.systemd1.NoSuchProcess"
}

// reloads lets those who ask for the same thing while it is being done wait for the next time together.
type reloads struct {
	one  sync.Mutex // held while it is done
	mu   sync.Mutex // guards the field below
	next *reload
}

type reload struct {
	done chan struct{}
	err  error // readable when done is closed
}

// join returns when do has been begun after the call and has ended. One caller's context ends only its own waiting.
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
			r.next = nil // who comes from now on may have changed something since
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

// hearing hands a connection's signals to who listens, one after the other, as the library's own handler does, which it is but for
// one thing: who begins to listen when the connection has ended already is told so at once, and does not wait for ever.
type hearing struct {
	dbus.SignalHandler

	mu   sync.Mutex // guards the field below
	over bool
}

func newHearing() *hearing { return &hearing{SignalHandler: dbus.NewSequentialSignalHandler()} }

// AddSignal begins to listen, see dbus.SignalRegistrar.
func (h *hearing) AddSignal(ch chan<- *dbus.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.SignalHandler.(dbus.SignalRegistrar); ok && !h.over {
		r.AddSignal(ch)
		return
	}
	close(ch)
}

// RemoveSignal ends listening, see dbus.SignalRegistrar.
func (h *hearing) RemoveSignal(ch chan<- *dbus.Signal) {
	if r, ok := h.SignalHandler.(dbus.SignalRegistrar); ok {
		r.RemoveSignal(ch)
	}
}

// Terminate is called when the connection ends, see dbus.Terminator.
func (h *hearing) Terminate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if t, ok := h.SignalHandler.(dbus.Terminator); ok {
		t.Terminate()
	}
}
