// SPDX-License-Identifier: Apache-2.0

// Package dataguard keeps a process from beginning anew over data that was lost or is not mounted (see [plan.DataGuard]), whichever way the
// process is started. It removes data only where somebody has said in so many words that it does not count, and starts nothing but
// what its own process becomes.
//
// Read [Refuse] and [Prepare]; [Guard] is both for a process that a kubelet starts:
//
//	slipway pod-exec --mark=… --data=… --anew=… --env-file=… -- /etcd --name=…
package dataguard

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Prepare is for the process that is about to become the program: it refuses a start over lost data, and begins anew where it may.
func Prepare(h plan.DataGuard) error {
	if h.Mark == "" {
		return nil
	}
	if _, err := os.Stat(h.Mark); errors.Is(err, fs.ErrNotExist) {
		return beginAnew(h) // nothing has been there that counts
	}
	return Refuse(h)
}

// Refuse refuses a start over lost data. What cannot be looked at counts as there to have been, and as not there now.
func Refuse(h plan.DataGuard) error {
	if h.Mark == "" {
		return nil
	}
	if _, err := os.Stat(h.Mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(h.Data); err != nil {
		return fmt.Errorf("refused to start over lost data: %s says that there was some, but: %w: "+
			"bring it back (mount it, or restore it), or give the cluster up with slipway down", h.Mark, err)
	}
	return nil
}

// beginAnew removes what an earlier start has left, if somebody has said in so many words that it does not count. It runs where the
// unit's process is going to be, so no other process has the data.
func beginAnew(h plan.DataGuard) error {
	if h.FreshStart == "" {
		return nil
	}
	if _, err := os.Stat(h.FreshStart); err != nil {
		return nil //nolint:nilerr // nobody says so: the unit goes on with what is there
	}
	aside := h.Data + ".unfinished" // at once: half of it would be worse than all or nothing
	err := os.RemoveAll(aside)
	if err == nil {
		err = os.Rename(h.Data, aside)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.RemoveAll(aside)
	}
	if err != nil {
		return fmt.Errorf("begin anew, for %s exists and %s does not: %w", h.FreshStart, h.Mark, err)
	}
	return nil
}

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
