// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

// socketsRecord lists the backends of a running proxy. They can change while it runs.
type socketsRecord struct{ Sockets []string }

func (c Config) socketsFile() string { return filepath.Join(c.Dir, "sockets.json") }

// loadSockets reads the current list of backends.
func (c Config) loadSockets() ([]string, error) {
	var r socketsRecord
	if err := durable.Load(c.socketsFile(), recordSchema, &r); err != nil {
		return nil, fmt.Errorf("read proxy sockets: %w", err)
	}
	return r.Sockets, nil
}

// saveSockets sets the backends of the proxy, running or not. It replaces a damaged record.
func (c Config) saveSockets() error {
	if len(c.Sockets) == 0 {
		return errors.New("start API proxy: no control plane to forward connections to")
	}
	have, err := c.loadSockets()
	if err == nil && slices.Equal(have, c.Sockets) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, durable.ErrDamaged) {
		return err
	}
	return durable.Save(c.socketsFile(), recordSchema, socketsRecord{c.Sockets})
}

// currentSockets returns a function that reads the current list. If it cannot be read, the function returns
// the last one.
func (c Config) currentSockets() func() []string {
	var mu sync.Mutex // guards last
	var last []string
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		if list, err := c.loadSockets(); err == nil && len(list) > 0 {
			last = list
		}
		return slices.Clone(last)
	}
}

// portRecord is the port that the proxy keeps.
type portRecord struct{ Port uint16 }

const portSearch = 2000 // number of ports to try from FirstPort

// port is the recorded port, 0 if there is none.
func (c Config) port() (uint16, error) {
	var r portRecord
	if err := durable.Load(c.portFile(), recordSchema, &r); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read proxy port: %w", err)
	}
	return r.Port, nil
}

// listen listens on the recorded port, or on the first free one, which it then records.
func (c Config) listen(ctx context.Context, port uint16) (*net.TCPListener, uint16, error) {
	var lc net.ListenConfig
	if port != 0 {
		ln, err := lc.Listen(ctx, "tcp4", endpoint(port, 0, false).Addr.String())
		if err != nil {
			return nil, port, fmt.Errorf("listen on 127.0.0.1:%d, the port in the cluster's kubeconfig: %w (stop the process that uses it: ss -ltnp 'sport = %d')", port, err, port)
		}
		return ln.(*net.TCPListener), port, nil
	}
	for try := 0; try < portSearch && int(c.FirstPort)+try < 65536; try++ {
		port := c.FirstPort + uint16(try)
		ln, err := lc.Listen(ctx, "tcp4", endpoint(port, 0, false).Addr.String())
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("listen for the API: %w", err)
		}
		if err := durable.Save(c.portFile(), recordSchema, portRecord{port}); err != nil {
			return nil, 0, errors.Join(err, ln.Close())
		}
		return ln.(*net.TCPListener), port, nil
	}
	return nil, 0, fmt.Errorf("listen for the API: no free port on 127.0.0.1 among %d ports from %d", portSearch, c.FirstPort)
}

// listenAgain handles a recorded port that is in use while no child is recorded: either the child is just
// exiting, or it has not recorded itself yet because the command that started it was killed. It retries for a
// second, and returns a listener or the child.
func (c Config) listenAgain(ctx context.Context, port uint16, taken error) (*net.TCPListener, childRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if r, err := c.running(); err == nil && r.Process.PID != 0 {
			return nil, r, nil
		}
		if ln, _, err := c.listen(ctx, port); err == nil {
			return ln, childRecord{}, nil
		}
		select {
		case <-ctx.Done():
			return nil, childRecord{}, taken
		case <-tick.C:
		}
	}
}

// maxSocketPath is the size of sockaddr_un's path without the terminating zero.
const maxSocketPath = 107

// DialUnix connects to a unix socket. The path may have any length.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", short)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, unwrapOp(err))
	}
	return conn, nil
}

// ListenUnix listens on a unix socket with mode 0600. The path may have any length. It replaces a socket
// without a listener, which a killed process has left, but no other file. Closing the listener does not
// remove the file.
func ListenUnix(ctx context.Context, path string) (*net.UnixListener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, unwrapOp(err))
	}
	ln.SetUnlinkOnClose(false) // it would remove the shortened path
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), ln.Close())
	}
	return ln, nil
}

// removeStale removes a socket without a listener. It is an error if there is a listener, or a file of
// another type.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("file exists and is not a socket: %s", info.Mode())
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := DialUnix(ctx, path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process is listening")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// shorten returns a path that fits into a socket address: it refers to the directory by a file descriptor
// until done is called.
func shorten(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, base := filepath.Split(path)
	fd, err := unix.Open(filepath.Clean(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open directory of socket %s: %w", path, err)
	}
	short = fmt.Sprintf("/proc/self/fd/%d/%s", fd, base)
	if len(short) > maxSocketPath {
		_ = unix.Close(fd)
		return "", nil, fmt.Errorf("socket name %s exceeds the kernel's limit", base)
	}
	return short, func() { _ = unix.Close(fd) }, nil
}

// unwrapOp removes net's message, which contains the shortened path.
func unwrapOp(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
