// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"encoding/hex"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
)

// state is what systemd says of a service.
type state struct {
	load, active, sub, result string
	invocation                string // of the latest start
	job                       bool   // systemd is going to start or stop it
	mainPID                   int
	exitCode, exitStatus      int32 // how the main process ended, once it has
	since                     time.Time
	exited                    time.Time
	stale                     bool // its unit file is newer than what systemd has read
}

func stateOf(props map[string]any) state {
	text := func(name string) string { s, _ := props[name].(string); return s }
	stamp := func(name string) time.Time {
		if us, _ := props[name].(uint64); us != 0 {
			return time.UnixMicro(int64(us)) //nolint:gosec // microseconds since 1970
		}
		return time.Time{}
	}
	s := state{
		load: text("LoadState"), active: text("ActiveState"), sub: text("SubState"), result: text("Result"),
		since: stamp("ExecMainStartTimestamp"), exited: stamp("ExecMainExitTimestamp"),
	}
	if id, _ := props["InvocationID"].([]byte); len(id) > 0 {
		s.invocation = hex.EncodeToString(id)
	}
	pid, _ := props["MainPID"].(uint32)
	s.mainPID = int(pid)
	s.exitCode, _ = props["ExecMainCode"].(int32)
	s.exitStatus, _ = props["ExecMainStatus"].(int32)
	s.stale, _ = props["NeedDaemonReload"].(bool)
	if job, _ := props["Job"].([]any); len(job) > 0 { // number and path
		id, _ := job[0].(uint32)
		s.job = id != 0
	}
	return s
}

// isGone: it does not run, and systemd is not going to start it.
func (s state) isGone() bool {
	return (s.active == "inactive" || s.active == "failed" || s.active == "") && !s.isBetween()
}

// isBetween: it has ended, and systemd is going to start it again.
func (s state) isBetween() bool { return strings.Contains(s.sub, "auto-restart") }

func (s state) isStopping() bool { return s.active == "deactivating" }

// The codes of waitid(2).
const (
	exitedCode = 1
	killedCode = 2
	dumpedCode = 3
)

// exit tells how the main process ended.
func (s state) exit() units.Exit {
	e := units.Exit{At: s.exited, Code: -1}
	switch s.exitCode {
	case exitedCode:
		e.Code = int(s.exitStatus)
	case killedCode, dumpedCode:
		e.Signal = syscall.Signal(s.exitStatus).String()
	default:
		e.Cause = "could not be started (" + s.result + ")"
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	return e
}
