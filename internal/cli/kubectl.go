// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/spec"
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
