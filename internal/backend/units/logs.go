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

// Logs is the directory of the units' logs: one file per unit, and rotated ones with .1, .2 and .3
// appended.
type Logs struct{ Dir string }

// Path returns the path of a unit's log.
func (l Logs) Path(unit string) string { return filepath.Join(l.Dir, unit+".log") }

// Tail returns the last n lines of a unit's log, or none if there is no log.
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

// LastLine returns the last line of a unit's log, shortened to 200 bytes, or "".
func (l Logs) LastLine(unit string) string {
	lines, err := l.Tail(unit, 1)
	if err != nil || len(lines) == 0 {
		return ""
	}
	return lines[0][:min(len(lines[0]), 200)]
}

// Full reports whether the log file system is full.
func (l Logs) Full() bool {
	var s unix.Statfs_t
	return unix.Statfs(l.Dir, &s) == nil && s.Blocks > 0 && s.Bavail == 0
}

// RotateLoop rotates the logs of the named units that have reached the size limit. It checks once per
// interval until ctx ends.
func (l Logs) RotateLoop(ctx context.Context, interval time.Duration, limit int64, names func() []string, log *slog.Logger) {
	for sleep.For(ctx, interval) == nil {
		for _, name := range names() {
			if err := l.rotate(name, limit); err != nil {
				log.Warn("log not rotated", "unit", name, "error", err)
			}
		}
	}
}

// rotate rotates a unit's log if it has reached the size limit. It copies and truncates the file because
// the process keeps it open for appending, even after the agent has died. Lines written between the copy
// and the truncation are lost.
func (l Logs) rotate(unit string, limit int64) error {
	path := l.Path(unit)
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
