// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/machine"
)

// initKind is the value of --init.
type initKind struct{ kind machine.InitKind }

func (k *initKind) String() string { return string(k.kind) }

// Type stands in the help.
func (k *initKind) Type() string { return "init" }

// Set takes one of machine.InitKinds.
func (k *initKind) Set(s string) error {
	k.kind = machine.InitKind(s)
	if !slices.Contains(machine.InitKinds(), k.kind) {
		return fmt.Errorf("use %s", strings.Join(initKinds(), " or "))
	}
	return nil
}

func initFlag(cmd *cobra.Command, k *initKind, usage string) {
	cmd.Flags().Var(k, "init", usage+": "+strings.Join(initKinds(), " or "))
	_ = cmd.RegisterFlagCompletionFunc("init", cobra.FixedCompletions(initKinds(), cobra.ShellCompDirectiveNoFileComp))
}

func initKinds() []string {
	var out []string
	for _, k := range machine.InitKinds() {
		out = append(out, string(k))
	}
	return out
}
