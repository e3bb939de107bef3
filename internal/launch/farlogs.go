// SPDX-License-Identifier: Apache-2.0

package launch

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

// Where a machine that exists keeps logs: its units', and its pods'.
const (
	unitLogs = "/var/log/slipway"
	podsLogs = "/var/log/pods"
)

const noLog = 44 // the exit code by which logScript says that there is no such log, and which there are

// logScript shows a component's log. Agent and machine have theirs in the journal; of a component that runs as a pod it is that of its
// latest start, and comes first: the log of a unit of that name is an earlier cluster's, which a reset leaves there.
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

// FarLog writes the log of a component of an applied cluster's machine, the first one if none is named: a unit's name, "agent", or
// "machine" for its journal. tail are the last lines, -1 all of them. With follow it goes on until ctx ends. An unknown component is an
// error that lists those that have a log.
func (l *Launcher) FarLog(ctx context.Context, cluster, name, component string, tail int, follow bool, w io.Writer) error {
	machines, m, err := l.machineNamed(ctx, cluster, name)
	if err != nil {
		return err
	}
	far, ok := machines.(farMachines)
	switch {
	case !ok:
		return fmt.Errorf("log of %q: machine %s is of this host", component, m.Name)
	case m.Unreachable != "":
		return notRunning(cluster, m)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var errs bytes.Buffer
	code, err := far.host(m.Name).Run(ctx, sshhost.Command{Script: logScript, Args: logArgs(component, tail, follow, m.Name), Stdout: &ending{w, cancel}, Stderr: &errs})
	switch {
	case err != nil:
		return fmt.Errorf("log of %q: %w", component, err)
	case code == noLog:
		return fmt.Errorf("log of %q: machine %s has logs of %s", component, m.Name, strings.Join(append(strings.Fields(errs.String()), consoleAgent, consoleLog), ", "))
	case code != 0:
		return fmt.Errorf("log of %q: machine %s: %w", component, m.Name, &sshhost.ExitError{Code: code, Stderr: errs.String()})
	}
	return nil
}

// ending ends the far program when nobody takes what it says: it would wait for ever.
type ending struct {
	io.Writer
	cancel context.CancelCauseFunc
}

func (e *ending) Write(p []byte) (int, error) {
	n, err := e.Writer.Write(p)
	if err != nil {
		e.cancel(err)
	}
	return n, err
}

// consoleAgent names the agent's log.
const consoleAgent = "agent"

func logArgs(component string, tail int, follow bool, node string) []string {
	if strings.ContainsAny(component, "/*?[\\") {
		component = "-" // which no component is called: the answer is what there is
	}
	lines, on := "all", ""
	if tail >= 0 {
		lines = strconv.Itoa(tail)
	}
	if follow {
		on = "yes"
	}
	return []string{component, lines, cmp.Or(on, "no"), node, unitLogs, podsLogs, systemd.AgentUnit}
}
