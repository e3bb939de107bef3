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
		Short: "Run kubectl against a cluster",
		Long: `Run kubectl against a cluster. Slipway uses the kubectl of the cluster's release, from the component store. Only --name
and --root before all other arguments are flags of slipway; everything else is passed to kubectl.`,
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
			// Replacing this process lets kubectl have the terminal, the signals and the exit code.
			if err := syscall.Exec(path, append([]string{"kubectl"}, rest...), env); err != nil {
				return fmt.Errorf("run kubectl: %w", err)
			}
			return nil
		},
	}
}

// ownFlags parses --name and --root at the start of args and returns the arguments for kubectl.
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
		Long: `Print the administrator's kubeconfig of a cluster. The server of a local cluster is 127.0.0.1.

With --merge, slipway adds the context slipway-NAME to the first file in KUBECONFIG, or to ~/.kube/config, and makes
it the current context. Other entries, the owner of the file and your chosen namespace are kept. Comments are lost,
as with kubectl config. With --output json or yaml, it prints the path and the server instead of the file.`,
		Example: `  slipway kubeconfig > dev.conf && kubectl --kubeconfig dev.conf get nodes
  export KUBECONFIG=$(slipway kubeconfig --path)
  slipway kubeconfig --merge --name test`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.Flags().BoolVar(&merge, "merge", false, "merge the kubeconfig into your own instead of printing it")
	cmd.Flags().BoolVar(&pathOnly, "path", false, "print the path of the file instead of its content")
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

// kubeconfigView is the JSON and YAML result of kubeconfig. It has the path of the file, not its secrets.
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

// userKubeconfig returns the path of the kubeconfig that kubectl writes to.
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
		Short: "Run a command in a machine",
		Long: `Run a command in a local machine, by default the first one. The command sees the machine's processes, network and
files, and KUBECONFIG is set to the administrator's kubeconfig. Exec exits with the exit code of the command.`,
		Example: `  slipway exec -- ps ax
  slipway exec --name test test-main-0 -- bash
  slipway exec -- ss -ltnp | sort`,
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case dash < 0 || dash == len(args):
				return errors.New("no command: write it after --, as in slipway exec -- ps ax")
			case dash > 1:
				return errors.New("too many arguments before --: name at most one machine")
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
