// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// systemctl replaces the machine's systemctl: it records its calls, and reports this process as the agent.
const systemctl = `#!/bin/sh
echo "$@" >>"$DIR/asked"
case "$1" in
is-active) [ -e "$DIR/active" ];;
show) echo "$PID";;
esac
`

func TestInstallRestartsAnOutdatedAgent(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Once for all subtests: a program that a child of another subtest still has open to write cannot be run.
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(systemctl), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	const unit = "[Unit]\n"
	stdinFile := filepath.Join(bin, "unit-on-stdin")
	if err := os.WriteFile(stdinFile, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		active   bool
		unit     string // there before
		bin      string // there before; empty: this process's program
		marker   bool
		new      bool // another program was uploaded
		says     string
		outdated bool
	}{
		"a blank machine":                 {says: "started", new: true, bin: "none"},
		"nothing to do":                   {active: true, unit: unit},
		"the agent is down":               {unit: unit, says: "started"},
		"another program":                 {active: true, unit: unit, new: true, says: "replaced"},
		"installed, but not restarted":    {active: true, unit: unit, bin: "other", says: "replaced", outdated: true},
		"another unit":                    {active: true, unit: "[Unit]\n# x\n", says: "replaced", outdated: true},
		"another unit, but not restarted": {active: true, unit: unit, marker: true, says: "replaced", outdated: true},
		"not running, with a marker":      {unit: unit, marker: true, says: "started"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			in := func(name string) string { return filepath.Join(dir, name) }
			put := func(name, text string) {
				if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if tc.active {
				put("active", "")
			}
			if tc.marker {
				put("marker", "")
			}
			if tc.unit != "" {
				put("unit", tc.unit)
			}
			if tc.bin != "" {
				put("bin", tc.bin)
			} else if err := os.Symlink(self, in("bin")); err != nil {
				t.Fatal(err)
			}
			uploaded := in("bin")
			if tc.new {
				uploaded = in("new")
				put("new", "new")
			}
			run := func(script string, more ...string) string {
				args := append([]string{"-c", script, "slipway", in("bin"), "agent.service", in("unit"), in("marker")}, more...)
				cmd := exec.CommandContext(t.Context(), "sh", args...)
				cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "DIR=" + dir, fmt.Sprint("PID=", os.Getpid())}
				stdin, err := os.Open(stdinFile)
				if err != nil {
					t.Fatal(err)
				}
				defer stdin.Close()
				cmd.Stdin = stdin
				var errs bytes.Buffer
				cmd.Stderr = &errs
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v: %s", err, &errs)
				}
				if read, err := stdin.Seek(0, io.SeekCurrent); err != nil || read != int64(len(unit)) {
					t.Errorf("bytes of the unit that the script has read: got %d, want %d: %v", read, len(unit), err)
				}
				return strings.TrimSpace(string(out))
			}
			if got := run(outdatedScript) == "outdated"; got != tc.outdated {
				t.Errorf("outdated: %t", got)
			}
			if got := run(installScript, uploaded); got != tc.says {
				t.Errorf("got %q, want %q", got, tc.says)
			}
			text, err := os.ReadFile(in("asked"))
			if err != nil {
				t.Fatal(err)
			}
			for verb, want := range map[string]bool{"restart agent.service": tc.says == "replaced", "start agent.service": tc.says == "started"} {
				if got := strings.Contains("\n"+string(text), "\n"+verb+"\n"); got != want {
					t.Errorf("%s: %t; asked:\n%s", verb, got, text)
				}
			}
			if got, err := os.ReadFile(in("unit")); err != nil || string(got) != unit {
				t.Errorf("unit %q, %v", got, err)
			}
			if _, err := os.Stat(in("marker")); err == nil {
				t.Error("the restart marker still exists")
			}
			if left, _ := filepath.Glob(in("*.slipway-new")); len(left) > 0 {
				t.Errorf("temporary files: got %v, want none", left)
			}
			if got, err := os.ReadFile(in("bin")); tc.new && (err != nil || string(got) != "new") {
				t.Errorf("program %q, %v", got, err)
			}
		})
	}
}
