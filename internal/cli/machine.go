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
		Short: "Power local machines off and on, cut them from the network",
		Long: `Power local machines off and on, and cut them from the network and heal them again: for those who rehearse failures. A machine
keeps its disk; a cut outlives stops and starts. The host's network is never touched, and slipway exec, logs and status reach a
machine that is cut, as its console would.`,
		Example: `  slipway machine list
  slipway machine stop dev-main-1     # as if its plug were pulled
  slipway machine cut dev-main-2      # as if its network cable were`,
	}
	cmd.AddCommand(machineList(e),
		machineVerb(e, verb{
			use: "stop", short: "Pull a machine's plug",
			long: `Pull a machine's plug: all its processes end at once, and nothing is written any more. Its disk stays as it is.`,
			done: "does not run any more", already: "did not run", do: operate.StopMachine,
		}),
		machineVerb(e, verb{
			use: "start", short: "Power a machine on",
			long: `Power a machine on. It boots with the disk that it had, and comes back to its plan by itself.`,
			done: "runs", already: "ran already", do: operate.StartMachine,
		}),
		machineCut(e),
		machineVerb(e, verb{
			use: "heal", short: "Give a machine its network back",
			long: `Give a machine its network back, from every cut: also from those that concern it and one other machine.`,
			done: "has its network back", already: "was not cut", do: operate.HealMachine,
		}))
	return cmd
}

// verb is a command that does one thing to one machine.
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
		Short: "Pull a machine's network cable",
		Long: `Pull a machine's network cable: it reaches no other machine, and none reaches it, until slipway machine heal. With --from it
loses one other machine only, which loses it.`,
		Example: `  slipway machine cut dev-main-0
  slipway machine cut dev-main-0 --from dev-main-1`,
		Args: cobra.ExactArgs(1),
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().StringVar(&from, "from", "", "only from this machine")
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
		return machineResult(e, out, args[0], changed, "is cut from "+what, "was cut from "+what+" already")
	}
	return cmd
}

func machineList(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the machines of a cluster",
		Long:  `List the machines of a cluster: whether they run, since when, and what they are cut from. No agent is asked; see slipway status.`,
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

// machineState is what a machine is as hardware: power and cable.
func machineState(m machine.Status) string {
	state := "down"
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
