// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	oldLogs   = 3
	tailBytes = 64 << 10
)

// Logs is the path of a unit's log; older ones have .1, .2, .3 appended.
func (h *Host) Logs(unit string) string { return filepath.Join(h.conf.LogDir, unit+".log") }

// Tail is the last n lines that a unit has written.
func (h *Host) Tail(unit string, n int) ([]string, error) {
	f, err := os.Open(h.Logs(unit))
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

func (h *Host) lastLine(unit string) string {
	lines, err := h.Tail(unit, 1)
	if err != nil || len(lines) == 0 {
		return ""
	}
	return lines[0][:min(len(lines[0]), 200)]
}

// full reports whether nothing more can be written in a folder.
func full(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Blocks > 0 && s.Bavail == 0
}

// rotateLogs looks at the sizes now and then; it is one stat per unit.
func (h *Host) rotateLogs() {
	tick := time.NewTicker(h.conf.pace.logs)
	defer tick.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		for _, u := range h.all() {
			if err := rotate(h.Logs(u.name), h.conf.LogSize); err != nil {
				h.conf.Log.Warn("log not rotated", "unit", u.name, "error", err)
			}
		}
	}
}

// rotate copies and truncates: the process has the file open for appending, and keeps it when the agent dies. Lines written
// between the last read and the truncation are lost.
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
