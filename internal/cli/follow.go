// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// lookPeriod is short for a reader and long for a machine: one stat each time.
const lookPeriod = 100 * time.Millisecond

// showLog writes the last lines of a file, or all for tail < 0, and with follow what is added until ctx ends. Rotation does
// not end it, be it by truncation or by another file under the same name.
func showLog(ctx context.Context, w io.Writer, path string, tail int, follow bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read log: %s is not there yet", path)
	}
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer func() { f.Close() }()
	if tail >= 0 {
		if err := seekTail(f, tail); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	if _, err := io.Copy(w, f); err != nil || !follow {
		return err
	}
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // how a follower ends
		case <-tick.C:
		}
		if f, err = current(f, path); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
	}
}

// current returns the file to go on with: f, at its beginning if it was truncated, or the new file at path, once f has been
// read to its end.
func current(f *os.File, path string) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return f, err
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return f, err
	}
	if info.Size() < at {
		_, err := f.Seek(0, io.SeekStart)
		return f, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (os.SameFile(info, now) || info.Size() > at) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	next, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.Close()
	return next, nil
}

// seekTail goes back n lines from the end, reading backwards in blocks.
func seekTail(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	buf := make([]byte, 64<<10)
	for at := end; at > 0; {
		size := min(at, int64(len(buf)))
		at -= size
		if _, err := f.ReadAt(buf[:size], at); err != nil {
			return err
		}
		block := buf[:size]
		if at+size == end {
			block = bytes.TrimSuffix(block, []byte("\n")) // ends the last line, begins none
		}
		for i := bytes.LastIndexByte(block, '\n'); i >= 0; i = bytes.LastIndexByte(block, '\n') {
			if n--; n == 0 {
				_, err := f.Seek(at+int64(i)+1, io.SeekStart)
				return err
			}
			block = block[:i]
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}
