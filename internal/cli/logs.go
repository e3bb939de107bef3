// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/operate"
)

func logs(e Env) *cobra.Command {
	var name, machine string
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs COMPONENT",
		Short: "Show the log of a component, the agent or a machine",
		Long: `Show the log of a component (kubelet, etcd, kube-apiserver, …), of the node's agent ("agent"), or what a machine said while
it booted ("machine"). It works while the machine is down too. A machine of slipway apply is asked over SSH; "machine" is its
journal there. Logs of pods: slipway kubectl logs.`,
		Example: `  slipway logs kubelet
  slipway logs kube-apiserver --tail 20 -f
  slipway logs --name test agent`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: components(e, &name, &machine),
	}
	nameFlag(e, cmd, &name)
	machineFlag(e, cmd, &machine, &name)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is written later, until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the last lines; -1 shows all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if tail < -1 {
			return usageError{errors.New("--tail: use a number of lines, or -1 for all")}
		}
		far, err := e.Inventory.IsRemote(name)
		if err != nil {
			return err
		}
		if far {
			err = operate.RemoteLog(cmd.Context(), *e.Inventory, name, machine, args[0], tail, follow, e.Out)
		} else {
			err = nearLog(cmd.Context(), e, name, machine, args[0], tail, follow)
		}
		if cmd.Context().Err() != nil && (err == nil || far) {
			return exitError(exitInterrupted) // how following ends; there is nothing to say
		}
		return err
	}
	return cmd
}

func nearLog(ctx context.Context, e Env, name, machine, component string, tail int, follow bool) error {
	path, err := operate.LogFile(ctx, *e.Inventory, name, machine, component)
	if err != nil {
		return err
	}
	return showLog(ctx, e.Out, path, tail, follow)
}

func machineFlag(e Env, cmd *cobra.Command, machine, cluster *string) {
	cmd.Flags().StringVar(machine, "machine", "", "machine (default: the first one)")
	_ = cmd.RegisterFlagCompletionFunc("machine", machineNames(e, cluster))
}
