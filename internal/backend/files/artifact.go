// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// observeArtifact does not read the blob: if inode, size and times are the same as when it was verified,
// so is the content.
func (h *Host) observeArtifact(a plan.Artifact) (plan.State, error) {
	info, err := os.Lstat(a.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent(), nil
	}
	if err != nil {
		return plan.State{}, err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return wrong("it is " + typeName(info.Mode()) + ", want a symlink to the store"), nil
	}
	blob, err := h.blobs.path(a.Digest)
	if err != nil {
		return plan.State{}, fmt.Errorf("artifact %s: %w", a.Name, err)
	}
	target, err := os.Readlink(a.Path)
	if err != nil {
		return plan.State{}, err
	}
	if target != blob {
		return wrong("it is " + filepath.Base(target) + ", want " + a.Digest), nil
	}
	why, err := h.blobs.unverified(a.Digest)
	if err != nil {
		return plan.State{}, err
	}
	if why != "" {
		return wrong(why), nil
	}
	return right(), nil
}

// makeArtifact verifies the blob, fetching it if necessary, and then replaces the link atomically.
func (h *Host) makeArtifact(ctx context.Context, a plan.Artifact) error {
	blob, err := h.blobs.verify(ctx, a.Digest)
	if err != nil {
		return fmt.Errorf("verify artifact %s: %w", a.Name, err)
	}
	if err := makeParent(a.Path); err != nil {
		return err
	}
	if info, err := os.Lstat(a.Path); err == nil && info.IsDir() {
		return fmt.Errorf("link %s: it is a directory; remove it manually", a.Path)
	}
	tmp := filepath.Join(filepath.Dir(a.Path), "."+filepath.Base(a.Path)+".slipway")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(blob, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, a.Path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return durable.SyncDir(filepath.Dir(a.Path))
}

const (
	verifiedSchema = 1
	remedy         = `run "slipway bundle build"`
)

// stamp is the metadata of a blob when its content was verified. Writing to a file changes its ctime.
type stamp struct {
	Size, MTime, CTime int64
	Inode, Device      uint64
}

// blobs records which files of the store have been verified since boot.
type blobs struct {
	store, record, boot string
	fetch               func(ctx context.Context, digest string) error // may be nil

	mu       sync.Mutex // guards the fields below
	verified map[string]stamp
	busy     map[string]*sync.Mutex // per blob, so that only one goroutine reads it
}

// verifiedRecord is the stored form of blobs. It is only valid for the boot that it names.
type verifiedRecord struct {
	Boot  string
	Blobs map[string]stamp
}

// openBlobs loads the record of verified blobs. A record that is damaged or from an earlier boot is
// ignored.
func openBlobs(store, record string) (*blobs, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	b := &blobs{store: store, record: record, boot: string(boot), verified: map[string]stamp{}, busy: map[string]*sync.Mutex{}}
	var r verifiedRecord
	if err := durable.Load(record, verifiedSchema, &r); err == nil && r.Boot == b.boot && r.Blobs != nil {
		b.verified = r.Blobs
	}
	return b, os.MkdirAll(filepath.Dir(record), 0o700)
}

// path returns the path of a blob. It rejects malformed digests, which might lead out of the store.
func (b *blobs) path(digest string) (string, error) {
	sum, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size || sum != strings.ToLower(sum) {
		return "", fmt.Errorf("digest %q: want sha256: and 64 hex digits", digest)
	}
	return filepath.Join(b.store, "blobs", "sha256", sum), nil
}

// unverified returns why the blob has to be verified before use, or "".
func (b *blobs) unverified(digest string) (why string, err error) {
	path, err := b.path(digest)
	if err != nil {
		return "", err
	}
	now, err := stampOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return digest + " is missing from the store", nil
	}
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch then, ok := b.verified[digest]; {
	case !ok:
		return "it has not been verified since boot", nil
	case then != now:
		return digest + " has changed since it was verified", nil
	}
	return "", nil
}

// verify reads the blob unless it was verified since boot and is unchanged. A missing or damaged blob is
// fetched.
func (b *blobs) verify(ctx context.Context, digest string) (path string, err error) {
	if path, err = b.path(digest); err != nil {
		return "", err
	}
	one := b.lockOf(digest)
	one.Lock()
	defer one.Unlock()
	if why, err := b.unverified(digest); err != nil || why == "" {
		return path, err
	}
	now, err := b.read(ctx, path, digest)
	var u badBlobError
	if errors.As(err, &u) && b.fetch != nil {
		if err := b.fetch(ctx, digest); err != nil {
			return "", fmt.Errorf("%w, and: %w: %s", u, err, remedy)
		}
		now, err = b.read(ctx, path, digest)
	}
	switch {
	case errors.As(err, &u):
		return "", fmt.Errorf("%w: %s", err, remedy)
	case err != nil:
		return "", err
	}
	return path, b.remember(digest, now)
}

// badBlobError means that the blob is missing or damaged; any other error says nothing about it.
type badBlobError string

func (u badBlobError) Error() string { return string(u) }

// read verifies the blob's content and returns its metadata from before the read.
func (b *blobs) read(ctx context.Context, path, digest string) (stamp, error) {
	before, err := stampOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return before, badBlobError(digest + " is not in the store")
	}
	if err != nil {
		return before, err
	}
	sum, err := hash(ctx, path)
	if err != nil {
		return before, fmt.Errorf("verify %s: %w", digest, err)
	}
	if sum != digest {
		return before, badBlobError(digest + " is damaged: its content has digest " + sum)
	}
	return before, nil
}

func (b *blobs) lockOf(digest string) *sync.Mutex {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[digest] == nil {
		b.busy[digest] = &sync.Mutex{}
	}
	return b.busy[digest]
}

// remember records that a blob was verified, in memory and on disk.
func (b *blobs) remember(digest string, s stamp) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verified[digest] = s
	return durable.Save(b.record, verifiedSchema, verifiedRecord{b.boot, maps.Clone(b.verified)})
}

// stampOf returns the current metadata of a file.
func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, errors.New("stat " + path + ": no inode")
	}
	return stamp{Size: st.Size, MTime: st.Mtim.Nano(), CTime: st.Ctim.Nano(), Inode: st.Ino, Device: uint64(st.Dev)}, nil
}

func hash(ctx context.Context, path string) (digest string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	digest, _, err = durable.Digest(ctx, f)
	return digest, err
}
