// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// A seal remembers what a blob's file looked like when its hash was last found right: inode, size and times. Whoever writes
// into the file changes them, so a blob with a whole seal need not be read again. What a disk changes by itself does not show
// here; it shows when the blob is taken.

func (s *Store) sealPath(d Digest) string { return filepath.Join(s.root, "seals", d.Hex()) }

// Sound tells whether a blob is there and, as far as its seal tells, what its name says. Without a whole seal it is read.
func (s *Store) Sound(ctx context.Context, b Blob) bool {
	now, ok := s.look(b)
	if !ok {
		return false
	}
	if sealed, err := os.ReadFile(s.sealPath(b.Digest)); err == nil && string(sealed) == now {
		return true
	}
	if s.Verify(ctx, b.Digest) != nil {
		return false
	}
	s.seal(b.Digest, now)
	return true
}

func (s *Store) look(b Blob) (string, bool) {
	info, err := os.Lstat(s.Path(b.Digest))
	if err != nil || !info.Mode().IsRegular() || info.Size() != b.Size {
		return "", false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%d %d %d.%09d %d.%09d\n", st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec), true
}

// seal is a convenience: a seal that cannot be written only means that the blob is read again.
func (s *Store) seal(d Digest, look string) {
	path := s.sealPath(d)
	if os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	if os.WriteFile(path+".new", []byte(look), 0o600) == nil {
		_ = os.Rename(path+".new", path)
	}
}
