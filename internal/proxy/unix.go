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
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what fits into sockaddr_un with its final zero.
const maxSocketPath = 107

// DialUnix connects to a unix socket at a path of any length.
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

// ListenUnix listens at a path of any length, with mode 0600. A socket there that nobody answers, left by a process that was
// killed, is replaced; a live one and anything that is no socket is refused. Closing does not remove the file.
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
	ln.SetUnlinkOnClose(false) // it would use the shortened path
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), ln.Close())
	}
	return ln, nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is something that is no socket: %s", info.Mode())
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := DialUnix(ctx, path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process listens there")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// removeSocket removes the file of a listener that is being closed.
func removeSocket(path string, ln *net.UnixListener) {
	_ = ln.Close()
	_ = os.Remove(path)
}

// shorten returns a path that fits into a socket address: the folder is named by a file descriptor, valid until done.
func shorten(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, base := filepath.Split(path)
	fd, err := unix.Open(filepath.Clean(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open folder of socket %s: %w", path, err)
	}
	short = fmt.Sprintf("/proc/self/fd/%d/%s", fd, base)
	if len(short) > maxSocketPath {
		_ = unix.Close(fd)
		return "", nil, fmt.Errorf("socket name %s is longer than the kernel allows", base)
	}
	return short, func() { _ = unix.Close(fd) }, nil
}

// unwrapOp drops net's own words, which name the shortened path.
func unwrapOp(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
