// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func bundleUnpack(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unpack FOLDER",
		Short: "Put a bundle's binaries into a folder, under their own names",
		Long: `Put a bundle's binaries into a folder, under their own names and verified: kube (called by the name of a component, or with it as
first argument), kubectl, etcdctl, ctr and the rest. What is missing in the store is built first.`,
		Example: `  slipway bundle unpack ./bin
  slipway bundle unpack /usr/local/bin --kubernetes-version 1.36`,
		Args: cobra.ExactArgs(1),
	}
	release := releaseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := release()
		if err != nil {
			return err
		}
		n, err := e.Inventory.Dir.Components().Unpack(cmd.Context(), r, args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Out, "%d binaries of Kubernetes %s in %s\n", n, r.Kubernetes, args[0])
		return nil
	}
	return cmd
}
