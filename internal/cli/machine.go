// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
)

func machineCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "machine",
		Short: "Stop, start and disconnect local machines",
		Long: `Stop and start local machines, and disconnect them from the network, to test how a cluster handles failures. A machine
keeps its disk, and a disconnected machine stays disconnected when it is stopped and started. The network of the host
is not changed. Slipway exec, logs and status work for a disconnected machine.`,
		Example: `  slipway machine list
  slipway machine stop dev-main-1     # like pulling the power plug
  slipway machine cut dev-main-2      # like pulling the network cable`,
	}
	cmd.AddCommand(machineList(e),
		machineVerb(e, verb{
			use: "stop", short: "Power a machine off without a shutdown",
			long: `Power a machine off without a shutdown: all its processes are killed at once. The machine keeps its disk.`,
			done: "stopped", already: "is not running", do: operate.StopMachine,
		}),
		machineVerb(e, verb{
			use: "start", short: "Power a machine on",
			long: `Power a machine on. It boots with its disk, and its agent applies its plan.`,
			done: "started", already: "is already running", do: operate.StartMachine,
		}),
		machineCut(e),
		machineVerb(e, verb{
			use: "heal", short: "Reconnect a machine to the network",
			long: `Reconnect a machine to the network. This undoes every cut, including those between two machines (--from).`,
			done: "reconnected", already: "is already connected", do: operate.HealMachine,
		}))
	return cmd
}

// verb is a subcommand that does one thing to one machine. done and already complete the sentence "machine NAME …".
type verb struct {
	use, short, long string
	done, already    string
	do               func(ctx context.Context, inv inventory.Inventory, cluster, machine string) (changed bool, err error)
}

func machineVerb(e Env, v verb) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use: v.use + " MACHINE", Short: v.short, Long: v.long,
		Example: "  slipway machine " + v.use + " dev-main-0\n  slipway machine " + v.use + " test-main-1 --name test",
		Args:    cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		changed, err := v.do(cmd.Context(), *e.Inventory, name, args[0])
		if err != nil {
			return err
		}
		return machineResult(e, out, args[0], changed, v.done, v.already)
	}
	return cmd
}

func machineResult(e Env, out format, name string, changed bool, done, already string) error {
	if out != asText {
		return out.object(e.Out, "MachineResult", map[string]any{"machine": name, "changed": changed})
	}
	text := done
	if !changed {
		text = already
	}
	fmt.Fprintf(e.Out, "machine %s %s\n", name, text)
	return nil
}

func machineCut(e Env) *cobra.Command {
	var name, from string
	var out format
	cmd := &cobra.Command{
		Use:   "cut MACHINE",
		Short: "Disconnect a machine from the network",
		Long: `Disconnect a machine from all other machines until slipway machine heal. With --from, only the connection between the two
machines is cut.`,
		Example: `  slipway machine cut dev-main-0
  slipway machine cut dev-main-0 --from dev-main-1`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().StringVar(&from, "from", "", "disconnect it only from this machine")
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = oneMachine(e, &name)
	_ = cmd.RegisterFlagCompletionFunc("from", machineNames(e, &name))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		changed, err := operate.CutMachine(cmd.Context(), *e.Inventory, name, args[0], from)
		if err != nil {
			return err
		}
		what := "the network"
		if from != "" {
			what = from
		}
		return machineResult(e, out, args[0], changed, "disconnected from "+what, "is already disconnected from "+what)
	}
	return cmd
}

func machineList(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the machines of a cluster",
		Long: `List the machines of a cluster, whether and since when they are running, and from what they are disconnected. It does
not contact agents; see slipway status.`,
		Example: `  slipway machine list
  slipway machine list --name test --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, list, err := e.Inventory.List(cmd.Context(), name)
		if err != nil {
			return err
		}
		if out != asText {
			if list == nil {
				list = []machine.Status{}
			}
			return out.object(e.Out, "MachineList", map[string]any{"items": list})
		}
		rows := [][]string{{"MACHINE", "ADDRESS", "STATE", "UP", "PID", "INIT"}}
		for _, m := range list {
			up, pid := "-", "-"
			if m.Running && !m.Since.IsZero() {
				up, pid = ago(time.Since(m.Since)), fmt.Sprint(m.PID)
			}
			rows = append(rows, []string{m.Name, m.Address.String(), machineState(m), up, pid, string(m.Init)})
		}
		table(e.Out, rows)
		return nil
	}
	return cmd
}

// machineState is the power and network state of a machine, without what its agent reports.
func machineState(m machine.Status) string {
	state := "stopped"
	switch {
	case m.Unreachable != "":
		state = "unreachable"
	case m.Running:
		state = "running"
	}
	if m.Cut {
		return state + ", cut"
	}
	if len(m.CutFrom) > 0 {
		return state + ", cut from " + strings.Join(m.CutFrom, " and ")
	}
	return state
}
