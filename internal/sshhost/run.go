// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/slipway-project/slipway/internal/durable"
)

// Command is a shell script to run as root on a machine. Its arguments are $1, $2, …; they are visible to ps,
// so pass secrets through Stdin.
type Command struct {
	Script string
	Args   []string
	Stdin  io.Reader // optional
	Stdout io.Writer // optional
	Stderr io.Writer // optional
	TTY    bool      // allocate a terminal
}

// ExitError reports that a script exited with a non-zero code.
type ExitError struct {
	Code   int
	Stderr string // the last 2 KiB
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit code %d: %s", e.Code, cmp.Or(strings.TrimSpace(e.Stderr), "no output"))
}

// Run runs a script and returns its exit code. The error reports that it could not be run. When ctx ends, the
// session is closed.
func (h *Host) Run(ctx context.Context, c Command) (exitCode int, err error) {
	client, err := h.connected(ctx)
	if err != nil {
		return -1, err
	}
	session, err := client.NewSession()
	if err != nil {
		return -1, fmt.Errorf("run on %s: %w", h.Name, err)
	}
	defer func() { _ = session.Close() }() // a no-op if it has ended
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	session.Stdin, session.Stdout, session.Stderr = c.Stdin, c.Stdout, c.Stderr
	if c.TTY {
		if err := session.RequestPty("xterm", 40, 120, ssh.TerminalModes{}); err != nil {
			return -1, fmt.Errorf("run on %s: %w", h.Name, err)
		}
	}
	err = session.Run(h.commandLine(c))
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Signal() == "":
		return exit.ExitStatus(), nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return -1, fmt.Errorf("run on %s: %w", h.Name, err)
}

// commandLine is the command for the login user's shell, which may be any: it only uses single quotes.
func (h *Host) commandLine(c Command) string {
	words := []string{"exec"}
	if h.user() != Root {
		words = append(words, "env", "LC_ALL=C", "sudo", "-n", "--") // callers parse sudo's messages
	}
	words = append(words, "sh", "-c", quote(c.Script), "slipway")
	for _, a := range c.Args {
		words = append(words, quote(a))
	}
	return strings.Join(words, " ")
}

// quote quotes a word for any POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Output runs a script and returns its standard output. A non-zero exit code is an ExitError.
func (h *Host) Output(ctx context.Context, script string, args ...string) ([]byte, error) {
	return h.Feed(ctx, nil, script, args...)
}

// Feed is Output with standard input.
func (h *Host) Feed(ctx context.Context, in io.Reader, script string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	errs := tail{}
	code, err := h.Run(ctx, Command{Script: script, Args: args, Stdin: in, Stdout: &out, Stderr: &errs})
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("run on %s: %w", h.Name, &ExitError{code, errs.text()})
	}
	return out.Bytes(), nil
}

// tail keeps the end of what is written.
type tail struct{ buf []byte }

const tailSize = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	return len(p), nil
}

func (t *tail) text() string { return string(t.buf) }

const absent = 44 // exit code of a script: the file does not exist

// Read returns the content of a file on the machine. The error is an fs.ErrNotExist if it does not exist.
func (h *Host) Read(ctx context.Context, path string) ([]byte, error) {
	out, err := h.Output(ctx, `[ -e "$1" ] || exit 44; exec cat "$1"`, path)
	var exit *ExitError
	if errors.As(err, &exit) && exit.Code == absent {
		return nil, &fs.PathError{Op: "read", Path: h.Name + ":" + path, Err: fs.ErrNotExist}
	}
	return out, err
}

// writeScript replaces a file atomically, and reports whether the content changed. The content comes on
// standard input and never has weaker permissions than the file.
const writeScript = `set -eu
mkdir -p "$(dirname "$1")"
umask 077
new="$1.slipway-new"
cat >"$new"
chmod "$2" "$new"
if cmp -s "$new" "$1"; then rm -f "$new"; echo same; exit 0; fi
sync "$new"
mv -f "$new" "$1"
sync "$(dirname "$1")"
echo changed`

// Write replaces a small file and reports whether its content changed.
func (h *Host) Write(ctx context.Context, path string, mode fs.FileMode, content []byte) (changed bool, err error) {
	out, err := h.Feed(ctx, bytes.NewReader(content), writeScript, path, strconv.FormatUint(uint64(mode.Perm()), 8))
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	return strings.TrimSpace(string(out)) == "changed", nil
}

// File is a file for Send.
type File struct {
	Path   string // on the machine
	SHA256 string // hex
	Size   int64
	Mode   fs.FileMode
	Open   func() (io.ReadSeekCloser, error)
}

// part holds the start of an incomplete upload. Its name contains the digest, so that it never continues
// another file.
const part = `part="$(dirname "$1")/.slipway-$2.part"
`

// offsetScript prints the size and the digest of the part.
const offsetScript = `set -eu
mkdir -p "$(dirname "$1")"
umask 077
` + part + `[ -s "$part" ] || { echo 0; exit 0; }
have="$(wc -c <"$part")"
echo "$have"
head -c "$have" "$part" | sha256sum`

// finishScript appends standard input to the part, and gives the file its name only when it is complete,
// verified and synced. An incomplete part stays for the next attempt. Several writers may run at once,
// because a writer whose connection was lost may still be running: each writes its own copy, whose name ends
// in its pid, and the part is a link to the latest copy. Copies of dead writers are removed.
const finishScript = `set -eu
umask 077
` + part + `for f in "$part".*; do kill -0 "${f##*.}" 2>/dev/null || rm -f "$f"; done
own="$part.$$"
rm -f "$own"
trap 'rm -f "$own"' EXIT
if [ "$4" -gt 0 ]; then head -c "$4" "$part" >"$own"; else : >"$own"; fi
ln -f "$own" "$part"
cat >>"$own"
have="$(wc -c <"$own")"
if [ "$have" -lt "$5" ]; then echo "upload interrupted after $have of $5 bytes: the next attempt continues there" >&2; exit 46; fi
if ! echo "$2  $own" | sha256sum -c --status -; then
	[ ! "$part" -ef "$own" ] || rm -f "$part"
	echo "the uploaded file is damaged" >&2
	exit 45
fi
chmod "$3" "$own"
sync "$own"
mv -f "$own" "$1"
sync "$(dirname "$1")"
[ ! "$part" -ef "$1" ] || rm -f "$part"`

// Send uploads a file and continues an interrupted upload. It calls progress with the number of bytes as they
// are sent, first with those that were uploaded before.
func (h *Host) Send(ctx context.Context, f File, progress func(bytes int64)) error {
	in, err := f.Open()
	if err != nil {
		return fmt.Errorf("send %s: %w", f.Path, err)
	}
	defer in.Close()
	offset, err := h.offset(ctx, f, in)
	if err != nil {
		return fmt.Errorf("send %s: %w", f.Path, err)
	}
	if _, err := in.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("send %s: %w", f.Path, err)
	}
	progress(offset)
	rest := &counted{io.LimitReader(in, f.Size-offset), progress}
	_, err = h.Feed(ctx, rest, finishScript, f.Path, f.SHA256, strconv.FormatUint(uint64(f.Mode.Perm()), 8),
		strconv.FormatInt(offset, 10), strconv.FormatInt(f.Size, 10))
	if err != nil {
		return fmt.Errorf("send %s: %w", f.Path, err)
	}
	return nil
}

// offset is the size of the part on the machine, 0 if it is not the start of the file, as is possible after a
// power cut.
func (h *Host) offset(ctx context.Context, f File, in io.Reader) (int64, error) {
	out, err := h.Output(ctx, offsetScript, f.Path, f.SHA256)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(out))
	if len(fields) == 1 && fields[0] == "0" {
		return 0, nil
	}
	if len(fields) < 2 {
		return 0, fmt.Errorf("get upload offset: unexpected output %q", out)
	}
	have, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("get upload offset: unexpected output %q", out)
	}
	if have > f.Size {
		return 0, nil
	}
	digest, size, err := durable.Digest(ctx, io.LimitReader(in, have))
	if err != nil || size != have || digest != "sha256:"+fields[1] {
		return 0, err
	}
	return have, nil
}

// counted calls tell with the number of bytes of each read.
type counted struct {
	io.Reader
	tell func(bytes int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.tell(int64(n))
	return n, err
}
