// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/render/systemd"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// restartMarker exists on a machine from before its program, unit or state files are exchanged until the agent has been
// restarted, so that an interrupted installation is completed later. It is in /run: a boot restarts the agent, too.
const restartMarker = "/run/slipway-agent.restart"

// outdatedScript prints "outdated" if the running agent was started before the current program or unit was installed, or if
// the unit on standard input differs from the installed one. It reads standard input to its end first: otherwise the sender
// would take the early end for a broken connection.
const outdatedScript = `set -eu
bin="$1"; unit="$2"; file="$3"; marker="$4"
new="$(sha256sum)"
systemctl is-active --quiet "$unit" || exit 0
pid="$(systemctl show --property MainPID --value "$unit")"
if [ ! -e "$marker" ] && [ -e "$file" ] && [ "$new" = "$(sha256sum <"$file")" ] && { [ "/proc/$pid/exe" -ef "$bin" ] || cmp -s "/proc/$pid/exe" "$bin"; }; then exit 0; fi
echo outdated`

// installScript installs the program under its final name and the unit from standard input, and starts the agent, or restarts
// it if it runs with another program or unit. It prints "started" or "replaced", or nothing if nothing was done.
const installScript = `set -eu
bin="$1"; unit="$2"; file="$3"; marker="$4"; new="$5"
cat >"$file.slipway-new"
if cmp -s "$file.slipway-new" "$file"; then
	rm -f "$file.slipway-new"
else
	: >"$marker"
	chmod 644 "$file.slipway-new"
	sync "$file.slipway-new"
	mv -f "$file.slipway-new" "$file"
	sync "$(dirname "$file")"
fi
if [ "$new" != "$bin" ]; then
	: >"$marker"
	ln -f "$new" "$bin.new"
	mv -f "$bin.new" "$bin"
	sync "$(dirname "$bin")"
	rm -f "$new"
fi
systemctl daemon-reload
systemctl is-enabled --quiet "$unit" 2>/dev/null || systemctl enable --quiet "$unit"
if ! systemctl is-active --quiet "$unit"; then
	systemctl reset-failed "$unit" 2>/dev/null || true
	systemctl start "$unit"
	echo started
else
	pid="$(systemctl show --property MainPID --value "$unit")"
	if [ -e "$marker" ] || ! { [ "/proc/$pid/exe" -ef "$bin" ] || cmp -s "/proc/$pid/exe" "$bin"; }; then
		systemctl restart "$unit"
		echo replaced
	fi
fi
rm -f "$marker"`

const unitFile = "/etc/systemd/system/" + systemd.AgentUnit

// runAgentScript runs outdatedScript or installScript with the agent's unit on standard input.
func runAgentScript(ctx context.Context, h *sshhost.Host, script string, more ...string) (output string, err error) {
	args := append([]string{config.SlipwayBinary, systemd.AgentUnit, unitFile, restartMarker}, more...)
	out, err := h.Feed(ctx, bytes.NewReader(systemd.AgentService(config.SlipwayBinary)), script, args...)
	return strings.TrimSpace(string(out)), err
}

// Ensure implements [provider.Machines]: it records the machine, uploads what it lacks, and has its systemd run the agent.
func (m *Machines) Ensure(ctx context.Context, n config.NodeName) (change machine.Change, err error) {
	x := m.find(n.Name)
	x.Index, x.Address = n.Index, n.Address
	if change.Created, err = m.remember(x); err != nil {
		return change, err
	}
	h := m.sshHost(n.Name)
	program, _, err := m.upload.program(ctx, h)
	if err != nil {
		return change, err
	}
	if err := m.upload.components(ctx, h); err != nil {
		return change, err
	}
	did, err := runAgentScript(ctx, h, installScript, program)
	if err != nil {
		return change, fmt.Errorf("start the agent: %w", err)
	}
	change.Started, change.BinaryReplaced = did == "started", did == "replaced"
	return change, nil
}

// writeState writes a file of the agent's. A running agent reads it only after a restart, which the marker requests from
// Ensure. A file that has not changed leaves the marker as it was.
func (m *Machines) writeState(ctx context.Context, name, file string, content []byte) error {
	h := m.sshHost(name)
	existed, err := h.Output(ctx, `if [ -e "$1" ]; then echo yes; fi; : >"$1"`, restartMarker)
	if err != nil {
		return err
	}
	changed, err := h.Write(ctx, path.Join(provider.StateDir, file), 0o600, content)
	if err != nil || changed || len(existed) > 0 {
		return err
	}
	_, err = h.Output(ctx, `rm -f "$1"`, restartMarker)
	return err
}

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
