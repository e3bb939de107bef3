// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/kube"
)

func kubeconfig(e Env) *cobra.Command {
	var name string
	var merge, pathOnly bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a cluster's kubeconfig, or merge it into yours",
		Long: `Print the administrator's kubeconfig of a cluster; its server is 127.0.0.1 on this host. With --merge it goes into the first
file of KUBECONFIG, or ~/.kube/config, as context slipway-NAME, which becomes the current one; all other
entries there stay, and so do the file's owner and the namespace that you chose. Comments are lost, as with kubectl config.`,
		Example: `  slipway kubeconfig > dev.conf && kubectl --kubeconfig dev.conf get nodes
  export KUBECONFIG=$(slipway kubeconfig --path)
  slipway kubeconfig --merge --name test`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&merge, "merge", false, "merge it into your own kubeconfig instead of printing it")
	cmd.Flags().BoolVar(&pathOnly, "path", false, "print where the file is instead of what is in it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if merge && pathOnly {
			return usageError{errors.New("use one of --merge and --path")}
		}
		access, err := e.Launcher.Access(cmd.Context(), name)
		if err != nil {
			return err
		}
		if pathOnly {
			fmt.Fprintln(e.Out, access.Kubeconfig)
			return nil
		}
		text, err := os.ReadFile(access.Kubeconfig)
		if err != nil {
			return fmt.Errorf("read kubeconfig: %w", err)
		}
		if !merge {
			_, err = e.Out.Write(text)
			return err
		}
		target, err := userKubeconfig()
		if err != nil {
			return err
		}
		if err := kube.MergeKubeconfig(cmd.Context(), target, "slipway-"+name, text); err != nil {
			return err
		}
		fmt.Fprintf(e.Out, "merged into %s; the current context is slipway-%s\n", target, name)
		return nil
	}
	return cmd
}

// userKubeconfig is the file that kubectl would write to.
func userKubeconfig() (string, error) {
	for _, path := range filepath.SplitList(os.Getenv("KUBECONFIG")) {
		if path != "" {
			return path, nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find your kubeconfig: %w: set KUBECONFIG", err)
	}
	return filepath.Join(home, ".kube", "config"), nil
}
