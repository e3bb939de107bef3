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

// Config is one cluster's proxy on the host.
type Config struct {
	Dir       string   // its records and its log; made when missing, only for this proxy
	Exe       string   // slipway; run as "slipway proxy-serve DIR", see [Child]
	Sockets   []string // the control planes' unix sockets, the preferred ones first
	FirstPort uint16   // optional: where the search for a free port begins; 6443
}

// Endpoint is where the proxy listens. The port is chosen once per Dir and never changes, so that kubeconfigs stay valid.
type Endpoint struct {
	Addr    netip.AddrPort
	PID     int
	Started bool // it did not run before
}

// childRecord is written by the child itself, so that no moment exists at which it runs and is not known.
type childRecord struct {
	Process process.ID
	Exe     string
	Follows bool // it reads sockets.json; one of an earlier version knows one socket only, and is replaced
}

const (
	recordSchema = 1
	spawnLimit   = 10 * time.Second
)

func (c Config) portFile() string  { return filepath.Join(c.Dir, "port.json") }
func (c Config) childFile() string { return filepath.Join(c.Dir, "process.json") }
func (c Config) logFile() string   { return filepath.Join(c.Dir, "proxy.log") }

// Spawn makes the proxy run in the background, detached from this process, and changes nothing when it does. It may be called
// by several programs at once. A proxy that runs already passes its next connection on to c's sockets.
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
		return Endpoint{}, fmt.Errorf("make proxy folder: %w", err)
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
		if child.Follows && port != 0 && listens(ctx, port) { // a killed one closes its port before it is gone
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
		return Endpoint{}, errors.Join(fmt.Errorf("start API proxy: it ended at once; see %s", c.logFile()), err)
	}
	return endpoint(port, child.Process.PID, true), nil
}

// listens asks the port itself; that a process runs does not say that it serves.
func listens(ctx context.Context, port uint16) bool {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", endpoint(port, 0, false).Addr.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Stop ends the proxy and removes its folder. It signals a process only when pid, start time and executable are the recorded
// ones.
func Stop(ctx context.Context, c Config) error {
	child, err := c.running()
	if err != nil {
		return err
	}
	if err := end(ctx, child.Process); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("remove proxy folder: %w", err)
	}
	return nil
}

// Find tells where a proxy listens, without starting one; the PID is 0 when it does not run, and the error an
// fs.ErrNotExist when there never was one.
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

// running is the child if it runs, and the zero record otherwise.
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

// exeOf is the path that the process was started from, also when another file has taken its place.
func exeOf(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return strings.TrimSuffix(path, " (deleted)")
}

// start runs the child with the open listener as file 3, and returns when it has recorded itself.
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
	cmd := exec.Command(c.Exe, "proxy-serve", c.Dir) //nolint:noctx // it outlives this process
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{lf, tell}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = tell.Close()
	if err != nil {
		return fmt.Errorf("start API proxy: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reap it if it ends before this process does
	_ = ready.SetReadDeadline(time.Now().Add(spawnLimit))
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })()
	if word, _ := io.ReadAll(ready); string(word) != readyWord {
		text, _ := os.ReadFile(c.logFile())
		return fmt.Errorf("start API proxy: it did not come up: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// end stops a process of ours; the zero one has ended already.
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
	return fmt.Errorf("stop API proxy: process %d does not end", id.PID)
}
