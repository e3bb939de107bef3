// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/render/systemd"
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
