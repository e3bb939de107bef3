// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
	"github.com/slipway-project/slipway/internal/durable"
)

// Exec is the first code in a unit's process, run as a hidden subcommand: it joins the unit's cgroups,
// checks that this start is still wanted, and executes the unit's program. It returns only on failure. The
// caller prints the error, which goes to the unit's log, and exits with 127.
//
// The order rules out a second copy: the process joins, then compares tokens; an agent that takes over
// changes the token, then searches the cgroup. Either this process sees the new token and exits, or that
// agent finds this process and adopts it.
func Exec(args []string) error {
	flags := flag.NewFlagSet("unit-exec", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	path := flags.String("record", "", "the unit's record")
	token := flags.String("token", "", "the token of this start")
	oom := flags.Int("oom", 0, "OOM score adjustment")
	limits := flags.String("limits", "", "file with resource limits")
	groups := flags.String("cgroups", "", "cgroup directories to join, separated by colons")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("unit-exec: %w", err)
	}
	command := flags.Args()
	if len(command) == 0 {
		return errors.New("unit-exec: no command")
	}
	for i, dir := range strings.Split(*groups, ":") {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
		if err != nil && i == 0 { // the other groups are for accounting only
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if *oom != 0 { // lowering needs CAP_SYS_RESOURCE; without it the unit runs with the default
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*oom)), 0)
	}
	var r record
	if err := durable.Load(*path, recordSchema, &r); err != nil {
		return fmt.Errorf("read unit record: %w", err)
	}
	if r.Token != *token {
		return errors.New("start canceled: another agent has taken over")
	}
	if err := dataguard.Prepare(r.Unit.DataGuard); err != nil {
		return err
	}
	setLimits(*limits, os.Stderr) // stderr is the unit's log
	if err := syscall.Exec(command[0], command, os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return nil
}

// limitOf returns the kernel's resource number of a systemd limit setting. It knows those that have the
// same unit in systemd and in the kernel.
func limitOf(setting string) (resource int, ok bool) {
	switch setting {
	case "LimitNOFILE":
		return unix.RLIMIT_NOFILE, true
	case "LimitNPROC":
		return unix.RLIMIT_NPROC, true
	case "LimitLOCKS":
		return unix.RLIMIT_LOCKS, true
	case "LimitSIGPENDING":
		return unix.RLIMIT_SIGPENDING, true
	case "LimitRTPRIO":
		return unix.RLIMIT_RTPRIO, true
	case "LimitMSGQUEUE":
		return unix.RLIMIT_MSGQUEUE, true
	}
	return 0, false
}

// setLimits sets the resource limits of this process that a systemd drop-in for its service would set. A
// missing file sets none. Failures are written to out and do not prevent the start.
func setLimits(path string, out io.Writer) {
	if path == "" {
		return
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		fmt.Fprintf(out, "slipway: limits not changed: %v\n", err)
		return
	}
	defer f.Close() // read only
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		setting, value, _ := strings.Cut(lines.Text(), "=")
		resource, ok := limitOf(setting)
		if !ok { // a comment or section header
			continue
		}
		if err := setLimit(resource, value); err != nil {
			fmt.Fprintf(out, "slipway: %s=%s: %v\n", setting, value, err)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintf(out, "slipway: limits only partly set: read %s: %v\n", path, err)
	}
}

// setLimit sets the soft and the hard limit. Without permission to raise the hard limit, it sets the soft
// limit as high as allowed, as systemd does.
func setLimit(resource int, value string) error {
	want := uint64(unix.RLIM_INFINITY)
	if value != "infinity" {
		var err error
		if want, err = strconv.ParseUint(value, 10, 64); err != nil {
			return fmt.Errorf("not a number: %w", err)
		}
	}
	err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: want, Max: want}) // not unix.Setrlimit: syscall.Exec restores limits that package syscall has not set
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	var have syscall.Rlimit
	if err := syscall.Getrlimit(resource, &have); err != nil {
		return err
	}
	have.Cur = min(want, have.Max)
	if err := syscall.Setrlimit(resource, &have); err != nil {
		return err
	}
	needs := "CAP_SYS_RESOURCE"
	if resource == unix.RLIMIT_NOFILE {
		needs += " or a higher fs.nr_open"
	}
	return fmt.Errorf("limit stays at %d (raising it requires %s)", have.Max, needs)
}
