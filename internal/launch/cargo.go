// SPDX-License-Identifier: Apache-2.0

package launch

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
	"github.com/slipway-project/slipway/internal/sshhost"
)

// cargo is what machines that exist are to be given: this program, and the parts of the release that their plans need.
type cargo struct {
	self   sshhost.File
	store  *artifact.Store
	report func(Event)

	mu    sync.Mutex // guards the field below
	parts map[string][]artifact.Blob
}

// newCargo reads this program once, for its digest.
func newCargo(ctx context.Context, exe string, store *artifact.Store, report func(Event)) (*cargo, error) {
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
	return &cargo{self: self, store: store, report: report, parts: map[string][]artifact.Blob{}}, nil
}

// needs says which parts a machine's plan needs.
func (c *cargo) needs(name string, parts []artifact.Blob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[name] = parts
}

func (c *cargo) of(name string) []artifact.Blob {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[name]
}

const storeDir = machineState + "store/blobs/sha256/"

// whole prints the path of the file with this digest among those named, the first one first.
const whole = `digest="$1"; shift
for f in "$@"; do
	if [ -f "$f" ] && echo "$digest  $f" | sha256sum -c --status -; then echo "$f"; exit 0; fi
done`

// slipway brings this program to a machine, beside the one that is there, and tells where it is.
func (c *cargo) slipway(ctx context.Context, h *sshhost.Host) (at string, sent bool, err error) {
	out, err := h.Output(ctx, whole, c.self.SHA256, config.SlipwayBinary, c.self.Path)
	if err != nil {
		return "", false, err
	}
	if at := strings.TrimSpace(string(out)); at != "" {
		return at, false, nil
	}
	return c.self.Path, true, c.send(ctx, h, c.self, c.progress(h.Name, "slipway", c.self.Size))
}

// missing are those parts that a machine has not, judged by name and size: the agent verifies all that it takes.
func (c *cargo) missing(ctx context.Context, h *sshhost.Host) ([]artifact.Blob, error) {
	parts := c.of(h.Name)
	var list bytes.Buffer
	for _, b := range parts {
		fmt.Fprintln(&list, b.Digest.Hex(), b.Size)
	}
	out, err := h.Feed(ctx, &list, `while read -r name size; do
	[ "$(stat -c %s "$1$name" 2>/dev/null)" = "$size" ] || echo "$name"
done`, storeDir)
	if err != nil {
		return nil, fmt.Errorf("look which components it has: %w", err)
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

// components brings the parts that a machine lacks.
func (c *cargo) components(ctx context.Context, h *sshhost.Host) (sent int, err error) {
	missing, err := c.missing(ctx, h)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, b := range missing {
		total += b.Size
	}
	progress := c.progress(h.Name, "components", total)
	for _, b := range missing {
		err := c.send(ctx, h, sshhost.File{
			Path: storeDir + b.Digest.Hex(), SHA256: b.Digest.Hex(), Size: b.Size, Mode: 0o755,
			Open: func() (io.ReadSeekCloser, error) { return os.Open(c.store.Path(b.Digest)) },
		}, progress)
		if err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// send brings one file, and says when an earlier try has brought some of it.
func (c *cargo) send(ctx context.Context, h *sshhost.Host, f sshhost.File, progress func(int64)) error {
	first := true
	return h.Send(ctx, f, func(n int64) {
		if first && n > 0 {
			c.report(Event{Stage: StageMachine, Machine: h.Name, Phase: "copy", Text: fmt.Sprintf("goes on where a copy broke off, at %d of %d MiB", n>>20, f.Size>>20)})
		}
		first = false
		progress(n)
	})
}

// progress tells of each tenth.
func (c *cargo) progress(name, what string, total int64) func(int64) {
	var done, told atomic.Int64
	return func(n int64) {
		tenth := done.Add(n) * 10 / max(total, 1)
		if before := told.Load(); tenth > before && told.CompareAndSwap(before, tenth) {
			c.report(Event{Stage: StageMachine, Machine: name, Phase: "copy", Text: fmt.Sprintf("copies %s: %d%% of %d MiB", what, tenth*10, total>>20)})
		}
	}
}
