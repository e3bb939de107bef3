// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/render/systemd"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// Where a machine keeps the logs of units and of pods.
const (
	unitLogs = "/var/log/slipway"
	podLogs  = "/var/log/pods"
)

const exitNoLog = 44 // of logScript: there is no such log; standard error lists those that exist

// logScript prints a component's log. The agent's and the machine's are in the journal. The log of a component that runs as a
// pod is that of its latest start, and takes precedence: a unit's log of that name is left over from an earlier cluster, since
// a reset keeps logs.
const logScript = `set -eu
name="$1"; lines="$2"; follow="$3"; node="$4"; units="$5"; pods="$6"; agent="$7"
case "$name" in
agent | machine)
	set -- --quiet --no-pager --output=cat
	[ "$name" = agent ] && set -- "$@" --unit="$agent" || set -- "$@" --boot
	[ "$lines" = all ] || set -- "$@" --lines="$lines"
	if [ "$follow" = yes ]; then
		[ "$lines" != all ] || set -- "$@" --no-tail
		set -- "$@" --follow
	fi
	exec journalctl "$@" ;;
esac
file="$(ls -t "$pods/kube-system_$name-${node}_"*"/$name/"*.log 2>/dev/null | head -n 1)"
if [ -z "$file" ] && [ -f "$units/$name.log" ]; then file="$units/$name.log"; fi
if [ -z "$file" ]; then
	{
		for f in "$units"/*.log; do [ -f "$f" ] && basename "$f" .log || true; done
		for f in "$pods/kube-system_"*"-${node}_"*/*/; do [ -d "$f" ] && basename "$f" || true; done
	} | sort -u >&2
	exit 44
fi
[ "$lines" = all ] && set -- -n +1 || set -- -n "$lines"
[ "$follow" = yes ] && set -- "$@" -F || true
exec tail "$@" "$file"`

// Log writes the log of a component of a machine to w: a unit's name, "agent", or "machine" for its journal. tail is the number
// of last lines, -1 all. With follow it continues until ctx ends. The error for an unknown component lists those with a log.
func (m *Machines) Log(ctx context.Context, name, component string, tail int, follow bool, w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var errs bytes.Buffer
	code, err := m.sshHost(name).Run(ctx, sshhost.Command{
		Script: logScript, Args: logArgs(component, tail, follow, name), Stdout: &cancelingWriter{w, cancel}, Stderr: &errs,
	})
	switch {
	case err != nil:
		return fmt.Errorf("log of %q: %w", component, err)
	case code == exitNoLog:
		return fmt.Errorf("log of %q: machine %s has logs of %s", component, name, strings.Join(append(strings.Fields(errs.String()), "agent", "machine"), ", "))
	case code != 0:
		return fmt.Errorf("log of %q: machine %s: %w", component, name, &sshhost.ExitError{Code: code, Stderr: errs.String()})
	}
	return nil
}

// cancelingWriter cancels the remote program when its output cannot be written: the program would block forever.
type cancelingWriter struct {
	io.Writer
	cancel context.CancelCauseFunc
}

func (w *cancelingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.cancel(err)
	}
	return n, err
}

func logArgs(component string, tail int, follow bool, node string) []string {
	if strings.ContainsAny(component, "/*?[\\") {
		component = "-" // no component has this name, so the script lists those that exist
	}
	lines, on := "all", ""
	if tail >= 0 {
		lines = strconv.Itoa(tail)
	}
	if follow {
		on = "yes"
	}
	return []string{component, lines, cmp.Or(on, "no"), node, unitLogs, podLogs, systemd.AgentUnit}
}
