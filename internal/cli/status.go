// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

func status(e Env) *cobra.Command {
	var name string
	var d detail
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a cluster and why it is not ready",
		Long: `Show the state of machines and components. For each item that is not ready, status shows what it is waiting for, since
when, the last error, and what provides it. A cluster of several machines has one line per machine; --verbose shows
details of all machines, --machine those of one. The exit code is 0 if the cluster is ready.`,
		Example: `  slipway status
  slipway status --machine dev-worker-0
  slipway status --name test --output json
  until slipway status >/dev/null; do sleep 1; done   # or better: slipway wait`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().StringVar(&d.machine, "machine", "", "show details of this machine")
	cmd.Flags().BoolVarP(&d.all, "verbose", "v", false, "show details of every machine")
	_ = cmd.RegisterFlagCompletionFunc("machine", machineNames(e, &name))
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := operate.Status(cmd.Context(), *e.Inventory, name)
		if err != nil {
			return err
		}
		if err := d.check(s); err != nil {
			return err
		}
		if out != asText {
			err = out.object(e.Out, "ClusterStatus", s)
		} else {
			statusText(e.Out, s, d, time.Now())
		}
		if err == nil && !s.Ready {
			return exitError(exitFailed)
		}
		return err
	}
	return cmd
}

// detail selects the machines whose details are shown. For a cluster of one machine, they are always shown.
type detail struct {
	machine string
	all     bool
}

func (d detail) check(s operate.ClusterStatus) error {
	var names []string
	for _, m := range s.Machines {
		names = append(names, m.Name)
	}
	if d.machine == "" || slices.Contains(names, d.machine) {
		return nil
	}
	return usageError{fmt.Errorf("--machine %q: cluster %s has %s", d.machine, s.Cluster, strings.Join(names, ", "))}
}

func (d detail) of(s operate.ClusterStatus, name string) bool {
	return d.all || d.machine == name || d.machine == "" && len(s.Machines) == 1
}

func statusText(w io.Writer, s operate.ClusterStatus, d detail, now time.Time) {
	fmt.Fprintln(w, s.Verdict)
	if len(s.Machines) == 0 {
		return
	}
	fmt.Fprintln(w)
	several := len(s.Machines) > 1
	head := []string{"MACHINE", "ADDRESS", "STATE", "UP", "AGENT"}
	if several {
		head = append(head, "WAITING FOR")
	}
	rows := [][]string{head}
	for _, m := range s.Machines {
		row := machineRow(m, now)
		if several {
			row = append(row, firstWait(s.Cluster, m, now))
		}
		rows = append(rows, row)
	}
	table(w, rows)
	for _, m := range s.Machines {
		if m.Node == nil || !d.of(s, m.Name) {
			continue
		}
		on := ""
		if several {
			on = " on " + m.Name
		}
		unitTable(w, m.Node.Units, on, now)
		controlTable(w, m.Node.Items, on, now)
		if bad := m.Node.Unready(); len(bad) > 0 {
			fmt.Fprintf(w, "\nNot ready%s:\n", on)
			reasons(w, bad, strings.TrimPrefix(on, " on "), now)
		}
	}
}

// firstWait says in a few words why a machine is not ready. Failing and active items come before waiting ones.
func firstWait(cluster string, m operate.MachineStatus, now time.Time) string {
	switch {
	case !m.Running:
		return "start: run " + withName("machine start "+m.Name, cluster)
	case m.Node == nil:
		return "agent"
	}
	bad := m.Node.Unready()
	if len(bad) == 0 {
		return "-"
	}
	first := bad[0]
	why := first.What
	if why == "" || first.Phase == reconcile.Failing {
		why = cmp.Or(first.Error, why)
	} else if first.Phase == reconcile.Doing && first.Error != "" {
		why = again(first) + "; last error: " + first.Error
	}
	text := fmt.Sprintf("%s, %s", first.Ref, first.Phase)
	if !first.Since.IsZero() {
		text += " for " + ago(now.Sub(first.Since))
	}
	if why != "" {
		text += ": " + shorten(strings.TrimPrefix(oneLine(why), "waiting for "), 80)
	}
	return text
}

// again describes a step that is repeated because it has failed before.
func again(s reconcile.Status) string {
	if strings.HasPrefix(s.Ref, "unit/") {
		return "running again"
	}
	return s.What + " again"
}

// shorten truncates a text to that many characters, so that a table does not become too wide.
func shorten(s string, most int) string {
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

func machineRow(m operate.MachineStatus, now time.Time) []string {
	since, agent := "-", "-"
	if m.Running {
		if !m.Since.IsZero() {
			since = ago(now.Sub(m.Since))
		}
		switch {
		case m.AgentError != "":
			agent = "unknown: the agent does not respond: " + oneLine(m.AgentError)
		case m.Node == nil:
		case len(m.Node.Unready()) == 0:
			agent = fmt.Sprintf("%s, ready, %s", m.AgentVersion, report.Count(m.Node.Steps, "step"))
		default:
			agent = m.AgentVersion + ", " + report.Count(len(m.Node.Unready()), "item") + " not ready"
		}
	}
	return []string{m.Name, m.Address.String(), machineState(m.Status), since, agent}
}

func unitTable(w io.Writer, units []agentclient.UnitStatus, on string, now time.Time) {
	rows := [][]string{{"COMPONENT", "STATE", "PID", "UP", "RESTARTS", "LAST EXIT"}}
	for _, u := range units {
		if u.Oneshot && u.PID == 0 { // a finished oneshot: the item's status says that it is done
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

// heading separates a table from the previous one, and names the machine if there are several.
func heading(w io.Writer, what, on string) {
	fmt.Fprintln(w)
	if on != "" {
		fmt.Fprintln(w, what+on+":")
	}
}

// reasons prints, for each item that is not ready, what it is waiting for, since when, its last error, and what provides
// it. on is the machine for hints; it is empty for the first machine.
func reasons(w io.Writer, items []reconcile.Status, on string, now time.Time) {
	byRef := map[string]reconcile.Status{}
	for _, s := range items {
		byRef[s.Ref] = s
	}
	for _, s := range items {
		since := ""
		if !s.Since.IsZero() {
			since = fmt.Sprintf(" for %s (since %s)", ago(now.Sub(s.Since)), s.Since.Format(time.TimeOnly))
		}
		fmt.Fprintf(w, "  %s  %s%s\n", s.Ref, s.Phase, since)
		for _, line := range because(s, byRef, on) {
			fmt.Fprintf(w, "      %-12s %s\n", line[0]+":", line[1])
		}
	}
}

// because explains why an item is not ready, as pairs of label and text.
func because(s reconcile.Status, others map[string]reconcile.Status, on string) [][2]string {
	var out [][2]string
	if s.Phase == reconcile.Doing && s.Error != "" {
		out = append(out, [2]string{"doing", again(s)})
	} else if s.What != "" && s.Phase == reconcile.Doing {
		out = append(out, [2]string{"doing", s.What})
	} else if s.What != "" {
		out = append(out, [2]string{"waiting for", strings.TrimPrefix(oneLine(s.What), "waiting for ")})
	}
	if s.Error != "" {
		out = append(out, [2]string{"last error", oneLine(s.Error)})
	}
	if s.Step != nil && s.Step.Why != "" && s.Phase != reconcile.Waiting {
		out = append(out, [2]string{"last step", string(s.Step.Verb) + ", because " + s.Step.Why})
	}
	provider := s.Who
	if need, ok := others[s.What]; ok { // it is waiting for another item, which has the cause
		provider = fmt.Sprintf("%s, which is %s", need.Ref, need.Phase)
	}
	if provider == "" {
		provider = usualProvider(s.Ref, on)
	}
	return append(out, [2]string{"provided by", provider})
}

// usualProvider is what makes an item ready when the item's status does not name a provider.
func usualProvider(ref, on string) string {
	if on != "" {
		on = " --machine " + on
	}
	for _, kind := range []string{"unit/", "staticpod/"} {
		if unit, ok := strings.CutPrefix(ref, kind); ok {
			return unit + ": see slipway logs " + unit + on
		}
	}
	return "the agent: see slipway logs agent" + on
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

type listItem struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Verdict string `json:"verdict"`
}

func clusters(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the clusters on this host",
		Example: `  slipway list
  slipway list --output json`,
		Args: noArgs,
	}
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names, err := e.Inventory.Dir.Clusters()
		if err != nil {
			return err
		}
		items := []listItem{}
		for _, name := range names {
			s, err := operate.Status(cmd.Context(), *e.Inventory, name)
			if err != nil {
				s.Verdict = err.Error()
			}
			items = append(items, listItem{name, s.Ready, s.Verdict})
		}
		if out != asText {
			return out.object(e.Out, "ClusterList", map[string]any{"items": items})
		}
		if len(items) == 0 {
			fmt.Fprintln(e.Out, "no clusters: create one with slipway up")
			return nil
		}
		rows := [][]string{{"NAME", "STATUS"}}
		for _, i := range items {
			rows = append(rows, []string{i.Name, i.Verdict})
		}
		table(e.Out, rows)
		return nil
	}
	return cmd
}
