// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/durable"
)

const absent = 44 // the exit code by which a script says that there is no such file

// Read returns a file of a machine; fs.ErrNotExist says that there is none.
func (h *Host) Read(ctx context.Context, path string) ([]byte, error) {
	out, err := h.Output(ctx, `[ -e "$1" ] || exit 44; exec cat "$1"`, path)
	var exit *ExitError
	if errors.As(err, &exit) && exit.Code == absent {
		return nil, &fs.PathError{Op: "read", Path: h.Name + ":" + path, Err: fs.ErrNotExist}
	}
	return out, err
}

// writeScript replaces a file at once, and tells whether it had another content. The content comes on standard input and is never
// readable by others than the file will be.
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

// Write replaces a small file. It tells whether that made a difference.
func (h *Host) Write(ctx context.Context, path string, mode fs.FileMode, content []byte) (changed bool, err error) {
	out, err := h.Feed(ctx, bytes.NewReader(content), writeScript, path, strconv.FormatUint(uint64(mode.Perm()), 8))
	if err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	return strings.TrimSpace(string(out)) == "changed", nil
}

// File is what Send brings to a machine.
type File struct {
	Path   string // on the far side; its name tells nothing of its content
	SHA256 string // hex
	Size   int64
	Mode   fs.FileMode
	Open   func() (io.ReadSeekCloser, error)
}

// part is where the beginning of a file waits for its rest. Its name holds the digest, so nothing else is ever continued.
const part = `part="$(dirname "$1")/.slipway-$2.part"
`

// offsetScript tells how much of a file is there, and its digest.
const offsetScript = `set -eu
mkdir -p "$(dirname "$1")"
umask 077
` + part + `[ -s "$part" ] || { echo 0; exit 0; }
have="$(wc -c <"$part")"
echo "$have"
head -c "$have" "$part" | sha256sum`

// finishScript takes the rest, and gives the file its name only when all of it is right and on the disk. What is short stays for the
// next try. A writer whose connection broke off may live a while longer: each has a copy of the part under a name of its own, with
// its process in it, and the part is the copy of the latest. What a power cut left of others goes.
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
if [ "$have" -lt "$5" ]; then echo "it broke off after $have of $5 bytes: the next try goes on there" >&2; exit 46; fi
if ! echo "$2  $own" | sha256sum -c --status -; then
	[ ! "$part" -ef "$own" ] || rm -f "$part"
	echo "the file that arrived is damaged" >&2
	exit 45
fi
chmod "$3" "$own"
sync "$own"
mv -f "$own" "$1"
sync "$(dirname "$1")"
[ ! "$part" -ef "$1" ] || rm -f "$part"`

// Send brings a file, or the rest of it where an earlier call was broken off. progress hears of bytes as they leave, those that
// were there already first.
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

// offset is how much of a file the machine has, when that is really its beginning: a power cut may have left something else.
func (h *Host) offset(ctx context.Context, f File, in io.Reader) (int64, error) {
	out, err := h.Output(ctx, offsetScript, f.Path, f.SHA256)
	if err != nil {
		return 0, err
	}
	said := strings.Fields(string(out))
	if len(said) == 1 && said[0] == "0" {
		return 0, nil
	}
	if len(said) < 2 {
		return 0, fmt.Errorf("the machine says %q, not how much it has", out)
	}
	have, err := strconv.ParseInt(said[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the machine says %q, not how much it has", out)
	}
	if have > f.Size {
		return 0, nil
	}
	digest, size, err := durable.Digest(ctx, io.LimitReader(in, have))
	if err != nil || size != have || digest != "sha256:"+said[1] {
		return 0, err
	}
	return have, nil
}

type counted struct {
	io.Reader
	tell func(bytes int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.tell(int64(n))
	return n, err
}
