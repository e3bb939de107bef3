// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/render/systemd"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// due lies on a machine from before something of its agent's is exchanged until the agent has begun anew, whatever breaks off in
// between. A boot, which empties the folder, is a beginning too.
const due = "/run/slipway-agent.due"

// oldScript tells whether the agent that runs has begun before the program and the unit that are there now, or that come by
// standard input, which is read to its end first: a script that ends before is taken for a connection that broke off.
const oldScript = `set -eu
bin="$1"; unit="$2"; at="$3"; due="$4"
comes="$(sha256sum)"
systemctl is-active --quiet "$unit" || exit 0
pid="$(systemctl show --property MainPID --value "$unit")"
if [ ! -e "$due" ] && [ -e "$at" ] && [ "$comes" = "$(sha256sum <"$at")" ] && { [ "/proc/$pid/exe" -ef "$bin" ] || cmp -s "/proc/$pid/exe" "$bin"; }; then exit 0; fi
echo old`

// installScript gives the program its name and starts the agent, or starts it anew where program or unit are others than those that it
// runs with. The unit comes by standard input.
const installScript = `set -eu
bin="$1"; unit="$2"; at="$3"; due="$4"; new="$5"
cat >"$at.slipway-new"
if cmp -s "$at.slipway-new" "$at"; then
	rm -f "$at.slipway-new"
else
	: >"$due"
	chmod 644 "$at.slipway-new"
	sync "$at.slipway-new"
	mv -f "$at.slipway-new" "$at"
	sync "$(dirname "$at")"
fi
if [ "$new" != "$bin" ]; then
	: >"$due"
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
	if [ -e "$due" ] || ! { [ "/proc/$pid/exe" -ef "$bin" ] || cmp -s "/proc/$pid/exe" "$bin"; }; then
		systemctl restart "$unit"
		echo replaced
	fi
fi
rm -f "$due"`

const unitFile = "/etc/systemd/system/" + systemd.AgentUnit

// onAgent runs a script about the agent that gets the unit by standard input.
func onAgent(ctx context.Context, h *sshhost.Host, script string, more ...string) (said string, err error) {
	args := append([]string{config.SlipwayBinary, systemd.AgentUnit, unitFile, due}, more...)
	out, err := h.Feed(ctx, bytes.NewReader(systemd.AgentService(config.SlipwayBinary)), script, args...)
	return strings.TrimSpace(string(out)), err
}

// old tells whether a machine's agent runs with another program or unit than the machine has: an apply broke off before it began anew.
func old(ctx context.Context, h *sshhost.Host) (bool, error) {
	said, err := onAgent(ctx, h, oldScript)
	if err != nil {
		return false, fmt.Errorf("look which program its agent runs: %w", err)
	}
	return said == "old", nil
}

// Ensure brings what the machine lacks, and has its systemd run the agent.
func (p farMachines) Ensure(ctx context.Context, n config.NodeName) (change machine.Change, err error) {
	m := p.find(n.Name)
	m.Index, m.Address = n.Index, n.Address
	if change.Created, err = p.remember(m); err != nil {
		return change, err
	}
	h := p.host(n.Name)
	at, _, err := p.brings.slipway(ctx, h)
	if err != nil {
		return change, err
	}
	if _, err := p.brings.components(ctx, h); err != nil {
		return change, err
	}
	did, err := onAgent(ctx, h, installScript, at)
	if err != nil {
		return change, fmt.Errorf("start the agent: %w", err)
	}
	change.Started, change.BinaryReplaced = did == "started", did == "replaced"
	return change, nil
}

// Give writes a file of the agent's. An agent that runs has looked for the file before: Ensure has it begin anew.
func (p farPlace) Give(ctx context.Context, name string, content []byte) error {
	h := p.host(p.name)
	was, err := h.Output(ctx, `if [ -e "$1" ]; then echo was; fi; : >"$1"`, due)
	if err != nil {
		return err
	}
	changed, err := h.Write(ctx, path.Join(machineState, name), 0o600, content)
	if err != nil || changed || len(was) > 0 {
		return err
	}
	_, err = h.Output(ctx, `rm -f "$1"`, due)
	return err
}
