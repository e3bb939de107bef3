// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

// Config is the configuration of one cluster's proxy on the host.
type Config struct {
	Dir       string   // its records and log; created if missing, used by this proxy only
	Exe       string   // slipway; run as "slipway proxy-serve DIR", see [Child]
	Sockets   []string // the control planes' unix sockets, preferred ones first
	FirstPort uint16   // optional: start of the search for a free port; default 6443
}

// Endpoint describes a proxy. Its port is chosen once per Dir and never changes, so that kubeconfigs remain
// valid.
type Endpoint struct {
	Addr    netip.AddrPort
	PID     int  // 0 if it is not running
	Started bool // Spawn started it
}

// childRecord is written by the child itself, so that a running child is always recorded.
type childRecord struct {
	Process process.ID
	Exe     string
}

const (
	recordSchema = 1
	spawnLimit   = 10 * time.Second
)

func (c Config) portFile() string  { return filepath.Join(c.Dir, "port.json") }
func (c Config) childFile() string { return filepath.Join(c.Dir, "process.json") }
func (c Config) logFile() string   { return filepath.Join(c.Dir, "proxy.log") }

// Spawn starts the proxy in the background, detached from this process, unless it is running. It is safe to
// call from several processes at once. A running proxy uses c.Sockets from its next connection on.
func Spawn(ctx context.Context, c Config) (Endpoint, error) {
	if c.FirstPort == 0 {
		c.FirstPort = 6443
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return Endpoint{}, err
	}
	defer unlock()
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return Endpoint{}, fmt.Errorf("create proxy directory: %w", err)
	}
	if err := c.saveSockets(); err != nil {
		return Endpoint{}, err
	}
	port, err := c.port()
	if err != nil {
		return Endpoint{}, err
	}
	child, err := c.running()
	if err != nil {
		return Endpoint{}, err
	}
	if child.Process.PID != 0 {
		if port != 0 && listens(ctx, port) { // a killed process closes its port before it is gone
			return endpoint(port, child.Process.PID, false), nil
		}
		if err := end(ctx, child.Process); err != nil {
			return Endpoint{}, err
		}
	}
	ln, port, err := c.listen(ctx, port)
	if errors.Is(err, unix.EADDRINUSE) {
		if ln, child, err = c.listenAgain(ctx, port, err); err == nil && ln == nil {
			return endpoint(port, child.Process.PID, false), nil
		}
	}
	if err != nil {
		return Endpoint{}, err
	}
	defer ln.Close()
	if err := c.start(ctx, ln); err != nil {
		return Endpoint{}, err
	}
	child, err = c.running()
	if err != nil || child.Process.PID == 0 {
		return Endpoint{}, errors.Join(fmt.Errorf("start API proxy: it exited at once (see %s)", c.logFile()), err)
	}
	return endpoint(port, child.Process.PID, true), nil
}

// listens reports whether the port accepts connections: a running process may not listen any more.
func listens(ctx context.Context, port uint16) bool {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", endpoint(port, 0, false).Addr.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Stop stops the proxy and removes its directory. It signals a process only if its pid, start time and
// executable match the record.
func Stop(ctx context.Context, c Config) error {
	child, err := c.running()
	if err != nil {
		return err
	}
	if err := end(ctx, child.Process); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("remove proxy directory: %w", err)
	}
	return nil
}

// Find returns the endpoint of a proxy without starting it. The error is an fs.ErrNotExist if there never was
// one.
func Find(c Config) (Endpoint, error) {
	port, err := c.port()
	if err != nil {
		return Endpoint{}, err
	}
	if port == 0 {
		return Endpoint{}, fmt.Errorf("find API proxy: %w", fs.ErrNotExist)
	}
	child, err := c.running()
	return endpoint(port, child.Process.PID, false), err
}

func endpoint(port uint16, pid int, started bool) Endpoint {
	return Endpoint{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), pid, started}
}

// running is the record of the child if it is running, and the zero record otherwise.
func (c Config) running() (childRecord, error) {
	var r childRecord
	err := durable.Load(c.childFile(), recordSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return childRecord{}, nil
	}
	if err != nil {
		return childRecord{}, fmt.Errorf("read proxy process: %w", err)
	}
	if !r.Process.Alive() || exeOf(r.Process.PID) != r.Exe {
		return childRecord{}, nil
	}
	return r, nil
}

// exeOf is the path that the process was started from, even if the file has since been replaced.
func exeOf(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return strings.TrimSuffix(path, " (deleted)")
}

// start runs the child with the listener as file 3, and returns when the child is ready and has recorded itself.
func (c Config) start(ctx context.Context, ln *net.TCPListener) error {
	lf, err := ln.File()
	if err != nil {
		return err
	}
	defer lf.Close()
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open proxy log: %w", err)
	}
	defer log.Close()
	ready, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(c.Exe, "proxy-serve", c.Dir) //nolint:noctx // it must outlive this process
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{lf, tell}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = tell.Close()
	if err != nil {
		return fmt.Errorf("start API proxy: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reap it if it exits before this process
	_ = ready.SetReadDeadline(time.Now().Add(spawnLimit))
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })()
	if message, _ := io.ReadAll(ready); string(message) != readyMessage {
		text, _ := os.ReadFile(c.logFile())
		return fmt.Errorf("start API proxy: it did not become ready: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// end stops a process. It does nothing for the zero ID.
func end(ctx context.Context, id process.ID) error {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := id.Signal(sig); err != nil {
			return fmt.Errorf("stop API proxy: %w", err)
		}
		ended, err := id.Wait(ctx, 2*time.Second)
		if err != nil {
			return fmt.Errorf("stop API proxy: %w", err)
		}
		if ended {
			return nil
		}
	}
	return fmt.Errorf("stop API proxy: process %d does not exit", id.PID)
}

const readyMessage = "ready"

// Child is the hidden command "proxy-serve DIR" that [Spawn] runs. File 3 is the listener; Child writes to
// file 4 when it is ready. It returns nil when ctx ends.
func Child(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("proxy-serve, which only slipway up should start, requires DIR")
	}
	c := Config{Dir: args[0]}
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	lf, ready := os.NewFile(3, "listener"), os.NewFile(4, "ready")
	if lf == nil || ready == nil {
		return errors.New("proxy-serve: file 3 is not open: a listener is required")
	}
	ln, err := net.FileListener(lf)
	_ = lf.Close()
	if err != nil {
		return fmt.Errorf("proxy-serve: use listener: %w", err)
	}
	id, err := process.Identify(os.Getpid())
	if err != nil {
		return fmt.Errorf("proxy-serve: %w", err)
	}
	if err := saveChild(c, childRecord{id, exeOf(os.Getpid())}); err != nil {
		return fmt.Errorf("proxy-serve: %w", err)
	}
	_, err = ready.WriteString(readyMessage)
	if err := errors.Join(err, ready.Close()); err != nil && !errors.Is(err, unix.EPIPE) { // the parent may have exited
		return fmt.Errorf("proxy-serve: %w", err)
	}
	return ServeTCP(ctx, ln, c.currentSockets())
}

func saveChild(c Config, r childRecord) error { return durable.Save(c.childFile(), recordSchema, r) }

// lock ensures that two commands do not start two proxies for one cluster: the second waits and finds the
// first one's. The lock file is next to the proxy's directory, which Stop removes, and is never removed.
func (c Config) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o700); err != nil {
		return nil, fmt.Errorf("lock API proxy: %w", err)
	}
	unlock, err = durable.LockFile(ctx, c.Dir+".lock", fmt.Sprintf("process %d", os.Getpid()), nil)
	if err != nil {
		return nil, fmt.Errorf("lock API proxy: %w", err)
	}
	return unlock, nil
}
