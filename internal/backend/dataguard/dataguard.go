// SPDX-License-Identifier: Apache-2.0

// Package dataguard refuses to start a process whose data was lost or is not mounted (see
// [plan.DataGuard]), however the process is started. It deletes data only if a fresh start was explicitly
// requested.
//
// Read [Check] and [Prepare]. [Guard] is used for processes that a kubelet starts:
//
//	slipway pod-exec --mark=… --data=… --fresh-start=… --env-file=… -- /etcd --name=…
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

// Prepare is called by the process that is about to become the program, immediately before. It refuses a
// start over lost data, and deletes incomplete data if a fresh start was requested.
func Prepare(h plan.DataGuard) error {
	if h.Mark == "" {
		return nil
	}
	if _, err := os.Stat(h.Mark); errors.Is(err, fs.ErrNotExist) {
		return deleteUnfinished(h) // no data to protect yet
	}
	return Check(h)
}

// Check returns an error if the data was lost. If the mark cannot be read, it is assumed to exist; if the
// data cannot be read, it is assumed to be lost.
func Check(h plan.DataGuard) error {
	if h.Mark == "" {
		return nil
	}
	if _, err := os.Stat(h.Mark); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(h.Data); err != nil {
		return fmt.Errorf("refused to start over lost data: %s exists, but: %w "+
			"(mount or restore the data, or delete the cluster with slipway down)", h.Mark, err)
	}
	return nil
}

// deleteUnfinished deletes the data of an earlier, interrupted first start if a fresh start was requested.
// It is called in the unit's own process, so no other process uses the data.
func deleteUnfinished(h plan.DataGuard) error {
	if h.FreshStart == "" {
		return nil
	}
	if _, err := os.Stat(h.FreshStart); err != nil {
		return nil //nolint:nilerr // not requested: the process continues with the existing data
	}
	aside := h.Data + ".unfinished" // renamed first, so that the data is never partly deleted
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
		return fmt.Errorf("delete unfinished data (%s exists and %s does not): %w", h.FreshStart, h.Mark, err)
	}
	return nil
}

// Command is the name of the hidden subcommand that runs Guard.
const Command = "pod-exec"

// Guard is the first code in a container whose process has a data guard. At each start it checks the data,
// adds the words of the environment file to the environment, and executes the program. It returns only on
// failure.
func Guard(args []string) error {
	flags := flag.NewFlagSet(Command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var h plan.DataGuard
	flags.StringVar(&h.Mark, "mark", "", "file that exists once there is data")
	flags.StringVar(&h.Data, "data", "", "data path")
	flags.StringVar(&h.FreshStart, "fresh-start", "", "file that allows deleting the data while there is no mark")
	envFile := flags.String("env-file", "", "file with NAME=VALUE words for the environment")
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
