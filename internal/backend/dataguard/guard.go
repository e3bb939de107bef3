// SPDX-License-Identifier: Apache-2.0

package dataguard

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Command is the name of the hidden sub-command that runs Guard.
const Command = "pod-exec"

// Guard is the first thing that runs in a container whose process must not begin anew: at each start, whoever starts it, it looks
// whether the data is there, adds the words of the environment file to the environment, and becomes the program. It returns only
// when that is refused or fails.
func Guard(args []string) error {
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var h plan.DataGuard
	flags.StringVar(&h.Mark, "mark", "", "a file that says that there was data")
	flags.StringVar(&h.Data, "data", "", "the data")
	flags.StringVar(&h.FreshStart, "anew", "", "a file that says that data without a mark does not count")
	envFile := flags.String("env-file", "", "NAME=VALUE words for the environment")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	command := flags.Args()
	if len(command) == 0 {
		return errors.New(Command + ": no command")
	}
	env := os.Environ()
	if *envFile != "" {
		more, err := os.ReadFile(*envFile)
		if err != nil {
			return fmt.Errorf("read environment file: %w", err)
		}
		env = append(env, strings.Fields(string(more))...)
	}
	if err := Prepare(h); err != nil {
		return err
	}
	if err := syscall.Exec(command[0], command, env); err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return nil
}
