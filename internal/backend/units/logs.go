// SPDX-License-Identifier: Apache-2.0

package units

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/sleep"
)

const (
	oldLogs   = 3
	tailBytes = 64 << 10
)

// Logs is the folder of the units' logs: one file for each, and older ones with .1, .2, .3 appended.
type Logs struct{ Dir string }

// Path is the path of a unit's log.
func (l Logs) Path(unit string) string { return filepath.Join(l.Dir, unit+".log") }

// Tail is the last n lines that a unit has written.
func (l Logs) Tail(unit string, n int) ([]string, error) {
	f, err := os.Open(l.Path(unit))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, size-tailBytes), tailBytes))
	if err != nil {
		return nil, err
	}
	text := strings.TrimRight(string(data), "\n")
	if text == "" {
		return nil, nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):], nil
}

// LastLine is the last thing that a unit has said, if anything.
func (l Logs) LastLine(unit string) string {
	lines, err := l.Tail(unit, 1)
	if err != nil || len(lines) == 0 {
		return ""
	}
	return lines[0][:min(len(lines[0]), 200)]
}

// Full reports whether nothing more can be written there.
func (l Logs) Full() bool {
	var s unix.Statfs_t
	return unix.Statfs(l.Dir, &s) == nil && s.Blocks > 0 && s.Bavail == 0
}

// Keep rotates the logs of names when they have reached the limit. It looks now and then, which is one stat for each, until ctx ends.
func (l Logs) Keep(ctx context.Context, each time.Duration, limit int64, names func() []string, log *slog.Logger) {
	for sleep.For(ctx, each) == nil {
		for _, name := range names() {
			if err := l.Rotate(name, limit); err != nil {
				log.Warn("log not rotated", "unit", name, "error", err)
			}
		}
	}
}

// Rotate begins a unit's log anew when it has reached the limit. It copies and truncates: the process has the file open for
// appending, and keeps it when the agent dies. Lines written between the last read and the truncation are lost.
func (l Logs) Rotate(unit string, limit int64) error { return rotate(l.Path(unit), limit) }

func rotate(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || (err == nil && info.Size() < limit) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := oldLogs; i > 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", path, i-1), fmt.Sprintf("%s.%d", path, i))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := copyFile(path+".1", path); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

func copyFile(to, from string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close() // read only
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
