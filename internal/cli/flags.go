// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/machine"
)

// yesFlag adds --yes to a command that asks for confirmation.
func yesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask for confirmation; required without a terminal")
}

// confirm asks the user to confirm a change. Without a terminal, --yes is required. An error means that the user has not
// confirmed.
func confirm(e Env, yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(e.In) || !isTerminal(e.Err) {
		return usageError{errors.New("confirmation required, but there is no terminal: add --yes")}
	}
	return ask(e.In, e.Err, question)
}

func ask(in io.Reader, out io.Writer, question string) error {
	fmt.Fprintf(out, "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("canceled; nothing was changed")
}

// initKind is the value of the flag --init.
type initKind struct{ kind machine.InitKind }

func (k *initKind) String() string { return string(k.kind) }

// Type is shown in the help.
func (k *initKind) Type() string { return "init" }

// Set accepts one of machine.InitKinds.
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
