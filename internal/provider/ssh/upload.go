// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// Upload is what machines may lack: this program, and the parts of the release that their plans need.
type Upload struct {
	self   sshhost.File
	store  *artifact.Store
	report report.Func

	mu    sync.Mutex // guards the field below
	parts map[string][]artifact.Blob
}

// NewUpload reads this program once, for its digest.
func NewUpload(ctx context.Context, exe string, store *artifact.Store, to report.Func) (*Upload, error) {
	f, err := os.Open(exe)
	if err != nil {
		return nil, fmt.Errorf("read this program: %w", err)
	}
	defer f.Close()
	digest, size, err := durable.Digest(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("read this program: %w", err)
	}
	self := sshhost.File{
		SHA256: strings.TrimPrefix(digest, "sha256:"), Size: size, Mode: 0o755, Open: func() (io.ReadSeekCloser, error) { return os.Open(exe) },
	}
	self.Path = machine.BinDir + "/slipway-" + self.SHA256[:12]
	return &Upload{self: self, store: store, report: to, parts: map[string][]artifact.Blob{}}, nil
}

// SetParts says which parts of the release a machine needs.
func (u *Upload) SetParts(name string, parts []artifact.Blob) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[name] = parts
}

const storeDir = provider.StateDir + "store/blobs/sha256/"

// findWhole prints the path of the first of the named files that has this digest.
const findWhole = `digest="$1"; shift
for f in "$@"; do
	if [ -f "$f" ] && echo "$digest  $f" | sha256sum -c --status -; then echo "$f"; exit 0; fi
done`

// program uploads this program next to the installed one, unless the machine has it, and returns its path.
func (u *Upload) program(ctx context.Context, h *sshhost.Host) (path string, sent bool, err error) {
	out, err := h.Output(ctx, findWhole, u.self.SHA256, config.SlipwayBinary, u.self.Path)
	if err != nil {
		return "", false, err
	}
	if path := strings.TrimSpace(string(out)); path != "" {
		return path, false, nil
	}
	return u.self.Path, true, u.send(ctx, h, u.self, u.progress(h.Name, "slipway", u.self.Size))
}

// Missing returns the parts that a machine lacks. It compares names and sizes only: the agent verifies every part that it uses.
func (m *Machines) Missing(ctx context.Context, name string) ([]artifact.Blob, error) {
	return m.upload.missing(ctx, m.sshHost(name))
}

func (u *Upload) missing(ctx context.Context, h *sshhost.Host) ([]artifact.Blob, error) {
	u.mu.Lock()
	parts := u.parts[h.Name]
	u.mu.Unlock()
	var list bytes.Buffer
	for _, b := range parts {
		fmt.Fprintln(&list, b.Digest.Hex(), b.Size)
	}
	out, err := h.Feed(ctx, &list, `while read -r name size; do
	[ "$(stat -c %s "$1$name" 2>/dev/null)" = "$size" ] || echo "$name"
done`, storeDir)
	if err != nil {
		return nil, fmt.Errorf("list the machine's components: %w", err)
	}
	lacks := map[string]bool{}
	for name := range strings.Lines(string(out)) {
		lacks[strings.TrimSpace(name)] = true
	}
	var missing []artifact.Blob
	for _, b := range parts {
		if lacks[b.Digest.Hex()] {
			missing = append(missing, b)
		}
	}
	return missing, nil
}

// components uploads the parts that a machine lacks.
func (u *Upload) components(ctx context.Context, h *sshhost.Host) error {
	missing, err := u.missing(ctx, h)
	if err != nil {
		return err
	}
	var total int64
	for _, b := range missing {
		total += b.Size
	}
	progress := u.progress(h.Name, "components", total)
	for _, b := range missing {
		err := u.send(ctx, h, sshhost.File{
			Path: storeDir + b.Digest.Hex(), SHA256: b.Digest.Hex(), Size: b.Size, Mode: 0o755,
			Open: func() (io.ReadSeekCloser, error) { return os.Open(u.store.Path(b.Digest)) },
		}, progress)
		if err != nil {
			return err
		}
	}
	return nil
}

// send uploads one file, and reports when it resumes an interrupted upload.
func (u *Upload) send(ctx context.Context, h *sshhost.Host, f sshhost.File, progress func(int64)) error {
	first := true
	return h.Send(ctx, f, func(n int64) {
		if first && n > 0 {
			u.report(report.Event{
				Stage: report.StageMachine, Machine: h.Name, Phase: "copy",
				Text: fmt.Sprintf("resuming an interrupted copy at %d of %d MiB", n>>20, f.Size>>20),
			})
		}
		first = false
		progress(n)
	})
}

// progress reports each tenth of an upload.
func (u *Upload) progress(name, what string, total int64) func(int64) {
	var done, reported atomic.Int64
	return func(n int64) {
		tenth := done.Add(n) * 10 / max(total, 1)
		if before := reported.Load(); tenth > before && reported.CompareAndSwap(before, tenth) {
			u.report(report.Event{
				Stage: report.StageMachine, Machine: name, Phase: "copy", Text: fmt.Sprintf("copying %s: %d%% of %d MiB", what, tenth*10, total>>20),
			})
		}
	}
}
