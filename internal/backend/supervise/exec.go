// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
	"github.com/slipway-project/slipway/internal/durable"
)

// Exec is the first thing that runs in a unit's process, as a hidden sub-command: it joins the unit's cgroups, makes sure that
// this start is still wanted, and becomes the unit's program. It returns only when that fails; the caller prints the error,
// which ends up in the unit's log, and exits with 127.
//
// The order makes a second copy impossible: it joins, then compares tokens; an agent that takes over changes the token, then
// looks into the cgroup. Either this process sees the new token and ends, or that agent sees this process and adopts it.
func Exec(args []string) error {
	flags := flag.NewFlagSet("unit-exec", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	path := flags.String("record", "", "the unit's record")
	token := flags.String("token", "", "the token of this start")
	oom := flags.Int("oom", 0, "OOM score adjustment")
	limits := flags.String("limits", "", "file of the limits that components have")
	groups := flags.String("cgroups", "", "folders of the cgroups to join, the one to be found by first")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("unit-exec: %w", err)
	}
	command := flags.Args()
	if len(command) == 0 {
		return errors.New("unit-exec: no command")
	}
	for i, dir := range strings.Split(*groups, ":") {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
		if err != nil && i == 0 { // the others only count what is used
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if *oom != 0 { // lowering needs CAP_SYS_RESOURCE; a unit runs without it too
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*oom)), 0)
	}
	var r record
	if err := durable.Load(*path, recordSchema, &r); err != nil {
		return fmt.Errorf("read unit's record: %w", err)
	}
	if r.Token != *token {
		return errors.New("another agent has taken over: this start is no longer wanted")
	}
	if err := dataguard.Prepare(r.Unit.DataGuard); err != nil {
		return err
	}
	limit(*limits, os.Stderr) // which is the unit's log
	if err := syscall.Exec(command[0], command, os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return nil
}
