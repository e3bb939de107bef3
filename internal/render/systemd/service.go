// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const defaultStopTimeout = 10 * time.Second

// Options say how a service is tied to the machine that it is for.
type Options struct {
	Before []string // a command that must succeed before each start, whoever starts
	Pause  string   // RestartSec; empty means a second
	After  []string // services that it starts after and stops before
	Mounts []string // folders that must be mounted before
	LogDir string   // folder of its log file; empty means the journal
}

// section is a unit file's text, a setting a line, in the order of writing.
type section struct{ b strings.Builder }

func (s *section) set(name, value string) { s.b.WriteString(name + "=" + value + "\n") }

// Service is the text of the service that runs a plan's unit.
//
// It never gives up: there is no limit to starts and none to how long one takes, and what ends is started again. Readiness is
// the process's own word where the plan says so, and otherwise the agent's question; a file's presence starts nothing.
func Service(u plan.Unit, o Options) []byte {
	var s section
	s.b.WriteString(head + "[Unit]\n")
	s.set("Description", "Slipway: "+escapeText(u.Name))
	for _, a := range o.After {
		s.set("After", a)
	}
	for _, m := range o.Mounts {
		s.set("RequiresMountsFor", quoteEnv(m))
	}
	s.set("StartLimitIntervalSec", "0")
	s.b.WriteString("\n[Service]\n")
	s.start(u, o)
	s.end(u, cmp.Or(o.Pause, "1s"))
	s.limits(u)
	s.output(u, o)
	return []byte(s.b.String())
}

func (s *section) start(u plan.Unit, o Options) {
	kind := "exec"
	switch {
	case u.Oneshot:
		kind = "oneshot"
	case u.Ready.Kind == plan.ProbeNotify:
		kind = "notify"
	}
	s.set("Type", kind)
	if len(o.Before) > 0 {
		s.set("ExecStartPre", words(o.Before))
	}
	s.set("ExecStart", words(u.Args))
	if u.Dir != "" {
		s.set("WorkingDirectory", escapeText(u.Dir))
	}
	env := []string{"PATH=" + binDir + ":" + usualPath, "HOME=/root"} // containerd looks for its shim and for runc by name
	for _, e := range append(env, u.Env...) {
		s.set("Environment", quoteEnv(e))
	}
	if u.EnvFile != "" {
		s.set("EnvironmentFile", escapeText(u.EnvFile))
	}
	s.set("TimeoutStartSec", "infinity")
}

// end says what happens when it dies and when it is stopped.
func (s *section) end(u plan.Unit, pause string) {
	if u.Oneshot {
		s.set("Restart", "no") // whoever ran it says what its end means
	} else {
		s.set("Restart", "always")
		s.set("RestartSec", pause)
	}
	s.set("TimeoutStopSec", span(cmp.Or(u.StopTimeout, defaultStopTimeout)))
	if u.KillChildren {
		s.set("KillMode", "mixed")
		return
	}
	s.set("KillMode", "process") // what parents containers must be able to go without them
	if !u.Oneshot {
		s.set("Delegate", "yes")
	}
}

func (s *section) limits(u plan.Unit) {
	s.set("Slice", Slice)
	s.set("TasksMax", "infinity")
	s.set("LimitNOFILE", "1048576")
	if u.OOMScore != 0 { // where it cannot be lowered, systemd goes on without
		s.set("OOMScoreAdjust", strconv.Itoa(u.OOMScore))
	}
}

func (s *section) output(u plan.Unit, o Options) {
	if o.LogDir == "" {
		s.set("LogRateLimitIntervalSec", "0")
		return
	}
	s.set("StandardOutput", "append:"+escapeText(o.LogDir+"/"+u.Name+".log"))
	s.set("StandardError", "inherit")
}

func words(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = quote(a)
	}
	return strings.Join(quoted, " ")
}

// span is a duration as systemd reads it.
func span(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// escapeText is for a setting that is one text and no list of words.
func escapeText(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// After lists the units that an entry comes after, by its needs and by what those need, up to the nearest units. A unit that runs
// to its end orders nothing when the machine goes down, and is passed over.
func After(e plan.Entry, find func(plan.Ref) (plan.Entry, bool)) []string {
	var units []string
	seen := map[plan.Ref]bool{}
	var walk func(needs []plan.Ref)
	walk = func(needs []plan.Ref) {
		for _, n := range needs {
			if seen[n] {
				continue
			}
			seen[n] = true
			entry, ok := find(n)
			if !ok {
				continue
			}
			if u, is := entry.Item.(plan.Unit); is && !u.Oneshot {
				units = append(units, u.Name)
				continue
			}
			walk(entry.Needs)
		}
	}
	walk(e.Needs)
	slices.Sort(units)
	return units
}

// binDir is where a plan puts the components.
const binDir = "/opt/slipway/bin"
