// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
)

func exec(e Env) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec [MACHINE] -- COMMAND [ARGUMENT...]",
		Short: "Run a program inside a machine",
		Long: `Run a program inside a machine, the first one if none is named. It sees the machine's processes, network and files, and
the administrator's KUBECONFIG. Its exit code is passed on; a terminal is passed through.`,
		Example: `  slipway exec -- ps ax
  slipway exec --name test test-main-0 -- bash
  slipway exec -- ss -ltnp | sort`,
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case dash < 0 || dash == len(args):
				return errors.New("no command: write it behind --, as in slipway exec -- ps ax")
			case dash > 1:
				return errors.New("name at most one machine before --")
			}
			return nil
		},
		ValidArgsFunction: machineNames(e, &name),
	}
	nameFlag(e, cmd, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		target := ""
		if dash == 1 {
			target = args[0]
		}
		code, err := operate.Exec(cmd.Context(), *e.Inventory, name, target, machine.Command{
			Args: args[dash:], Stdin: e.In, Stdout: bare(e.Out), Stderr: e.Err, TTY: isTerminal(e.In) && isTerminal(e.Out),
		})
		var absent *operate.NoCommandError
		if errors.As(err, &absent) {
			fmt.Fprintln(e.Err, "slipway: "+absent.Error())
			return exitError(absent.Code)
		}
		if err == nil && code != 0 {
			return exitError(code)
		}
		return err
	}
	return cmd
}
