// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"errors"
	"io"
	osexec "os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/cli"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/inventory"
)

func exitCode(err error) string {
	var exit *osexec.ExitError
	if errors.As(err, &exit) {
		return strconv.Itoa(exit.ExitCode())
	}
	return err.Error()
}

// TestEveryCommandIsHelpful: a command says what it is for, shows how it is used, and its flags have text.
func TestEveryCommandIsHelpful(t *testing.T) {
	t.Parallel()
	root := cli.New(cli.Env{Inventory: &inventory.Inventory{Dir: clusterdir.Dir{Root: t.TempDir()}}, Out: io.Discard, Err: io.Discard})
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd == root || cmd.Name() == "help" {
			return
		}
		seen++
		examples := 0
		for _, line := range strings.Split(cmd.Example, "\n") {
			if strings.Contains(line, "slipway") {
				examples++
			}
		}
		if examples < 2 && cmd.Name() != "completion" {
			t.Errorf("%s: %d examples, want two or more", cmd.CommandPath(), examples)
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short %q: want a line without a full stop", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.Args == nil && !cmd.DisableFlagParsing {
			t.Errorf("%s: takes any arguments", cmd.CommandPath())
		}
	}
	walk(root)
	if seen < 25 {
		t.Errorf("found %d commands: the test looks at the wrong tree", seen)
	}
}
