// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/operate"
)

func identityCommand(e Env) *cobra.Command {
	var socket string
	var out format
	cmd := &cobra.Command{
		Use:   "identity",
		Short: "Show who this machine is: the pin of its key, its address, its cluster",
		Long: `Show who the machine is that this runs on: the pin of its key, by which others know it, its address, and which cluster it belongs to.
Read the pin here, on the machine's console, and not over the network: slipway init --pin and slipway token create --key want it.`,
		Example: `  slipway identity
  slipway identity --output json | jq -r .key`,
		Args: noArgs,
	}
	socketFlag(cmd, &socket)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		id, err := operate.Identity(cmd.Context(), socket)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "MachineIdentity", id)
		}
		rows := [][2]string{{"key", string(id.Key)}, {"address", cmp.Or(id.Address, "none")}, {"lock", string(id.Phase)}}
		if id.Node != "" {
			rows = append(rows, [2]string{"cluster", id.Cluster}, [2]string{"node", id.Node})
		}
		for _, r := range rows {
			fmt.Fprintf(e.Out, "%-9s %s\n", r[0], r[1])
		}
		return nil
	}
	return cmd
}

func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", agentclient.OwnSocket, "socket of the machine's agent")
	_ = cmd.Flags().MarkHidden("socket")
}

func initSecretCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init-secret",
		Short: "Make the secret with which slipway init may make a cluster on this machine",
		Long: `Make the secret with which slipway init may make a cluster on the machine that this runs on. It is good for one cluster, and for
this machine only.`,
		Example: `  slipway init-secret create
  slipway init-secret create --output json > secret.json`,
	}
	cmd.AddCommand(initSecretCreate(e))
	return cmd
}

func initSecretCreate(e Env) *cobra.Command {
	var socket string
	var replace bool
	var out format
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an init secret on this machine",
		Long: `Make an init secret on the machine that this runs on, which belongs to nobody and whose agent runs. It is shown now and never again:
the machine keeps its hash only. Its agent waits for slipway init from then on.`,
		Example: `  slipway init-secret create
  slipway init-secret create --replace                           # the one before is worthless
  slipway init-secret create --output json | jq -r .secret`,
		Args: noArgs,
	}
	socketFlag(cmd, &socket)
	cmd.Flags().BoolVar(&replace, "replace", false, "make another one that nobody has used worthless")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		secret, id, err := operate.CreateInitSecret(cmd.Context(), socket, e.Inventory.Dir.Root, replace)
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "InitSecret", struct {
				Secret string `json:"secret"`
				operate.MachineIdentity
			}{secret, id})
		}
		server := cmp.Or(id.Address, "ADDRESS")
		fmt.Fprintf(e.Out, "%s\n\nThis init secret is good for one cluster on this machine, and is not shown again.\n", secret)
		fmt.Fprintf(e.Out, "Where you work from; give it the secret when it asks, or on its standard input:\n\n  slipway init --server %s --pin %s\n", server, id.Key)
		return nil
	}
	return cmd
}
