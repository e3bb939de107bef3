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

// limitOf is the kernel's number of a limit by the name that systemd has for it. There are those that have the same unit for both.
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

// limit gives this process the limits that systemd would give it, as they are written in a drop-in for its services; no file, no
// limits. It never keeps a unit from being started: what cannot be done is told.
func limit(path string, tell io.Writer) {
	if path == "" {
		return
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		fmt.Fprintf(tell, "slipway: limits are as they were: %v\n", err)
		return
	}
	defer f.Close() // read only
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		setting, value, _ := strings.Cut(lines.Text(), "=")
		resource, ok := limitOf(setting)
		if !ok { // a comment, a section
			continue
		}
		if err := limitTo(resource, value); err != nil {
			fmt.Fprintf(tell, "slipway: %s=%s: %v\n", setting, value, err)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintf(tell, "slipway: limits are not all set: read %s: %v\n", path, err)
	}
}

// limitTo sets both the limit and how far the process itself may raise it. Where that is not allowed it comes as near as it can, as
// systemd does.
func limitTo(resource int, value string) error {
	want := uint64(unix.RLIM_INFINITY)
	if value != "infinity" {
		var err error
		if want, err = strconv.ParseUint(value, 10, 64); err != nil {
			return fmt.Errorf("it is no number: %w", err)
		}
	}
	err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: want, Max: want}) // not unix's: exec(2) by this package undoes what it has not set
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
	lack := "CAP_SYS_RESOURCE, which the machine does not have"
	if resource == unix.RLIMIT_NOFILE {
		lack += ", or a higher fs.nr_open"
	}
	return fmt.Errorf("it stays at %d: to raise it takes %s", have.Max, lack)
}
