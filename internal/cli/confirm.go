// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// yesFlag is the --yes of commands that take something away.
func yesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do not ask; needed where there is no terminal to ask at")
}

// confirm asks before something is taken away. Who cannot be asked must have said yes.
func confirm(e Env, yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(e.In) || !isTerminal(e.Err) {
		return usageError{errors.New("this is asked for, and there is no terminal to ask at: add --yes")}
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
	return errors.New("nothing was done")
}
