// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
)

func kubectl(e Env) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [--name N] [ARGUMENT...]",
		Short: "Run kubectl on a cluster",
		Long: `Run the release's own kubectl on a cluster, from the component store; none has to be installed. Only --name and --root in
front are Slipway's; everything after them is kubectl's, its flags too. Its exit code is passed on.`,
		Example: `  slipway kubectl get pods -A
  slipway kubectl --name test apply -f deployment.yaml
  slipway kubectl exec -it web-0 -- sh`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, rest, err := ownFlags(e, args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) == 1 && (rest[0] == "--help" || rest[0] == "-h") {
				return cmd.Help()
			}
			access, err := operate.Access(cmd.Context(), *e.Inventory, name)
			if err != nil {
				return err
			}
			path, err := operate.Kubectl(cmd.Context(), e.Inventory.Dir, name)
			if err != nil {
				return err
			}
			env := append(os.Environ(), "KUBECONFIG="+access.Kubeconfig)
			// This process becomes kubectl: signals, terminal and exit code need no passing on.
			if err := syscall.Exec(path, append([]string{"kubectl"}, rest...), env); err != nil {
				return fmt.Errorf("run kubectl: %w", err)
			}
			return nil
		},
	}
}

// ownFlags takes --name and --root from the front; what follows belongs to kubectl.
func ownFlags(e Env, args []string) (name string, rest []string, err error) {
	name, rest = defaultName, args
	for len(rest) > 0 {
		flag, value, joined := strings.Cut(rest[0], "=")
		if flag != "--name" && flag != "--root" {
			break
		}
		rest = rest[1:]
		if !joined {
			if len(rest) == 0 {
				return "", nil, fmt.Errorf("flag needs an argument: %s", flag)
			}
			value, rest = rest[0], rest[1:]
		}
		if flag == "--name" {
			if err := spec.CheckName(value); err != nil {
				return "", nil, fmt.Errorf("--name: %w", err)
			}
			name = value
		} else {
			e.Inventory.Dir.Root = value
		}
	}
	if len(rest) > 0 && rest[0] == "--" {
		rest = rest[1:]
	}
	return name, rest, nil
}

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
