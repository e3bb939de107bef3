// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func status(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how a cluster is, and why what is not ready is not",
		Long: `Show machines, components and what the control plane works on. For each thing that is not ready: what it waits for,
since when, the last error, and who provides it. Exit code 0 means that the cluster is ready.`,
		Example: `  slipway status
  slipway status --name test --output json
  until slipway status >/dev/null; do sleep 1; done   # or better: slipway wait`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := e.Launcher.Status(cmd.Context(), name)
		if err != nil {
			return err
		}
		if out != asText {
			err = out.object(e.Out, "ClusterStatus", s)
		} else {
			statusText(e.Out, s, time.Now())
		}
		if err == nil && !s.Ready {
			return exitError(exitFailed)
		}
		return err
	}
	return cmd
}

func statusText(w io.Writer, s launch.Status, now time.Time) {
	fmt.Fprintln(w, s.Verdict)
	if len(s.Machines) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows := [][]string{{"MACHINE", "ADDRESS", "STATE", "UP", "AGENT"}}
	for _, m := range s.Machines {
		rows = append(rows, machineRow(m, now))
	}
	table(w, rows)
	for _, m := range s.Machines {
		if m.Node == nil {
			continue
		}
		on := ""
		if len(s.Machines) > 1 {
			on = " on " + m.Name
		}
		unitTable(w, m.Node.Units, on, now)
		controlTable(w, m.Node.Items, on, now)
		if bad := m.Node.Unready(); len(bad) > 0 {
			fmt.Fprintf(w, "\nNot ready%s:\n", on)
			reasons(w, bad, now)
		}
	}
}

func machineRow(m launch.MachineStatus, now time.Time) []string {
	state, since, agent := "down", "-", "-"
	if m.Running {
		state, since = "running", ago(now.Sub(m.Since))
		switch {
		case m.AgentError != "":
			agent = "does not answer: " + oneLine(m.AgentError)
		case m.Node == nil:
		case len(m.Node.Unready()) == 0:
			agent = fmt.Sprintf("%s, everything ready, %s taken", m.AgentVersion, launch.Plural(m.Node.Steps, "step"))
		default:
			agent = m.AgentVersion + ", at work on " + launch.Plural(len(m.Node.Unready()), "item")
		}
	}
	return []string{m.Name, m.Address.String(), state, since, agent}
}

func unitTable(w io.Writer, units []launch.UnitStatus, on string, now time.Time) {
	rows := [][]string{{"COMPONENT", "STATE", "PID", "UP", "RESTARTS", "LAST EXIT"}}
	for _, u := range units {
		if u.Oneshot && u.PID == 0 { // its item tells whether the work is done
			continue
		}
		state, pid, up := "ready", "-", "-"
		if !u.Ready {
			state = "not ready"
		}
		if u.PID != 0 {
			pid, up = strconv.FormatInt(u.PID, 10), ago(now.Sub(u.Since))
		}
		rows = append(rows, []string{u.Name, state, pid, up, strconv.Itoa(u.Restarts), orDash(oneLine(u.LastExit))})
	}
	if len(rows) > 1 {
		heading(w, "Components", on)
		table(w, rows)
	}
}

func controlTable(w io.Writer, items []reconcile.Status, on string, now time.Time) {
	rows := [][]string{{"ITEM", "STATE", "FOR"}}
	for _, i := range items {
		if name, ok := strings.CutPrefix(i.Ref, "control/"); ok && (name != "role" || i.Phase != reconcile.Ready) {
			rows = append(rows, []string{name, string(i.Phase), ago(now.Sub(i.Since))})
		}
	}
	if len(rows) > 1 {
		heading(w, "Cluster", on)
		table(w, rows)
	}
}

// heading stands above a table when it is not clear which machine it is about.
func heading(w io.Writer, what, on string) {
	fmt.Fprintln(w)
	if on != "" {
		fmt.Fprintln(w, what+on+":")
	}
}
