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

// Options are the settings of a service that do not come from the plan's unit.
type Options struct {
	Before []string // command that must succeed before each start (ExecStartPre)
	Pause  string   // RestartSec; default 1s
	After  []string // services that this one starts after and stops before
	Mounts []string // directories that must be mounted before
	LogDir string   // directory of the log file; default is the journal
}

// section builds the text of a unit file.
type section struct{ b strings.Builder }

func (s *section) set(name, value string) { s.b.WriteString(name + "=" + value + "\n") }

// Service is the service for a plan's unit.
//
// It restarts without limits on the number of starts or on their duration. Readiness is reported by the
// process (Type=notify) if the plan says so; otherwise the agent probes for it. Condition files are not used.
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
	s.set("Slice", Slice)
	s.set("TasksMax", "infinity")
	s.set("LimitNOFILE", "1048576")
	if u.OOMScore != 0 { // systemd ignores it if it may not lower the score
		s.set("OOMScoreAdjust", strconv.Itoa(u.OOMScore))
	}
	if o.LogDir == "" {
		s.set("LogRateLimitIntervalSec", "0")
	} else {
		s.set("StandardOutput", "append:"+escapeText(o.LogDir+"/"+u.Name+".log"))
		s.set("StandardError", "inherit")
	}
	return []byte(s.b.String())
}

// start writes the settings of the command and its environment.
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
	env := []string{"PATH=" + binDir + ":" + usualPath, "HOME=/root"} // containerd finds its shim and runc in PATH
	for _, e := range append(env, u.Env...) {
		s.set("Environment", quoteEnv(e))
	}
	if u.EnvFile != "" {
		s.set("EnvironmentFile", escapeText(u.EnvFile))
	}
	s.set("TimeoutStartSec", "infinity")
}

// end writes the settings for exits and stops.
func (s *section) end(u plan.Unit, pause string) {
	if u.Oneshot {
		s.set("Restart", "no") // the caller handles the exit code
	} else {
		s.set("Restart", "always")
		s.set("RestartSec", pause)
	}
	s.set("TimeoutStopSec", span(cmp.Or(u.StopTimeout, defaultStopTimeout)))
	if u.KillChildren {
		s.set("KillMode", "mixed")
		return
	}
	s.set("KillMode", "process") // containers must survive a restart of the process that manages them
	if !u.Oneshot {
		s.set("Delegate", "yes")
	}
}

// words quotes a command line.
func words(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = quote(a)
	}
	return strings.Join(quoted, " ")
}

// span formats a duration for systemd.
func span(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// escapeText escapes a setting whose value is not split into words.
func escapeText(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// After lists the units that an entry depends on: the nearest ones, found through its needs and their needs.
// It skips oneshot units, which have no process to order against at shutdown.
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

// binDir is the directory of the components in a plan.
const binDir = "/opt/slipway/bin"

// quote writes one word of a command line so that systemd reads it unchanged: it escapes specifiers (%),
// variables ($), backslashes and newlines. See systemd.service(5), "Command lines".
func quote(word string) string { return escape(word, true) }

// quoteEnv is quote for Environment=, in which $ is not special.
func quoteEnv(word string) string { return escape(word, false) }

// escape adds quotes only where they are needed, for readability.
func escape(word string, command bool) string {
	var b strings.Builder
	quoted := word == "" || word == ";"
	for i := range len(word) { // bytes: non-ASCII characters need no escaping
		switch c := word[i]; {
		case c == '%':
			b.WriteString("%%")
		case c == '$' && command:
			b.WriteString("$$")
		case c == '"', c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
			quoted = true
		case c == '\n':
			b.WriteString(`\n`)
			quoted = true
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
			quoted = true
		default:
			quoted = quoted || c == ' ' || c == '\''
			b.WriteByte(c)
		}
	}
	if !quoted {
		return b.String()
	}
	return `"` + b.String() + `"`
}
