// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/operate"
)

func kubeconfig(e Env) *cobra.Command {
	var name string
	var merge, pathOnly bool
	var out format
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a cluster's kubeconfig, or merge it into yours",
		Long: `Print the administrator's kubeconfig of a cluster; its server is 127.0.0.1 on this host. With --merge it goes into the first
file of KUBECONFIG, or ~/.kube/config, as context slipway-NAME, which becomes the current one; all other
entries there stay, and so do the file's owner and the namespace that you chose. Comments are lost, as with kubectl config. With
--output json or yaml it tells path and server instead of printing the file.`,
		Example: `  slipway kubeconfig > dev.conf && kubectl --kubeconfig dev.conf get nodes
  export KUBECONFIG=$(slipway kubeconfig --path)
  slipway kubeconfig --merge --name test`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.Flags().BoolVar(&merge, "merge", false, "merge it into your own kubeconfig instead of printing it")
	cmd.Flags().BoolVar(&pathOnly, "path", false, "print where the file is instead of what is in it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if merge && pathOnly {
			return usageError{errors.New("use one of --merge and --path")}
		}
		access, err := operate.Access(cmd.Context(), *e.Inventory, name)
		if err != nil {
			return err
		}
		switch {
		case merge:
			return mergeKubeconfig(cmd, e, out, name, access)
		case out != asText:
			return out.object(e.Out, "Kubeconfig", kubeconfigView{Cluster: name, Path: access.Kubeconfig, Server: access.Server})
		case pathOnly:
			fmt.Fprintln(e.Out, access.Kubeconfig)
			return nil
		}
		text, err := os.ReadFile(access.Kubeconfig)
		if err != nil {
			return fmt.Errorf("read kubeconfig: %w", err)
		}
		_, err = e.Out.Write(text)
		return err
	}
	return cmd
}

// kubeconfigView says where a cluster's kubeconfig is, for programs. What is in it can be read there.
type kubeconfigView struct {
	Cluster string `json:"cluster"`
	Path    string `json:"path"`
	Server  string `json:"server"`
	Merged  string `json:"merged,omitempty"` // the file that --merge has changed
	Context string `json:"context,omitempty"`
}

func mergeKubeconfig(cmd *cobra.Command, e Env, out format, name string, access operate.APIAccess) error {
	text, err := os.ReadFile(access.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	target, err := userKubeconfig()
	if err != nil {
		return err
	}
	context := "slipway-" + name
	if err := kube.MergeKubeconfig(cmd.Context(), target, context, text); err != nil {
		return err
	}
	if out != asText {
		return out.object(e.Out, "Kubeconfig", kubeconfigView{name, access.Kubeconfig, access.Server, target, context})
	}
	fmt.Fprintf(e.Out, "merged into %s; the current context is %s\n", target, context)
	return nil
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
