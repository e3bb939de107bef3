// SPDX-License-Identifier: Apache-2.0

package launch

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

// asked is a stand-in for the systemctl of a far machine: it keeps what it was asked, and the agent is this process.
const asked = `#!/bin/sh
echo "$@" >>"$DIR/asked"
case "$1" in
is-active) [ -e "$DIR/active" ];;
show) echo "$PID";;
esac
`

func TestInstallStartsTheAgentAnewWhenItRunsSomethingElse(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Once for all: a program that a child of another subtest still has open to write cannot be run.
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(asked), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	const unit = "[Unit]\n"
	comes := filepath.Join(bin, "comes")
	if err := os.WriteFile(comes, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		active bool
		unit   string // there before
		bin    string // there before; empty: what this process runs
		due    bool
		new    bool // another program comes
		says   string
		old    bool
	}{
		"a blank machine":                   {says: "started", new: true, bin: "none"},
		"all as it is to be":                {active: true, unit: unit},
		"the agent is down":                 {unit: unit, says: "started"},
		"another program comes":             {active: true, unit: unit, new: true, says: "replaced"},
		"exchanged, and not begun anew":     {active: true, unit: unit, bin: "other", says: "replaced", old: true},
		"another unit":                      {active: true, unit: "[Unit]\n# x\n", says: "replaced", old: true},
		"another unit, and not begun anew":  {active: true, unit: unit, due: true, says: "replaced", old: true},
		"an earlier one begins anew anyway": {unit: unit, due: true, says: "started"},
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
			if tc.due {
				put("due", "")
			}
			if tc.unit != "" {
				put("unit", tc.unit)
			}
			if tc.bin != "" {
				put("bin", tc.bin)
			} else if err := os.Symlink(self, in("bin")); err != nil {
				t.Fatal(err)
			}
			brought := in("bin")
			if tc.new {
				brought = in("new")
				put("new", "new")
			}
			run := func(script string, more ...string) string {
				args := append([]string{"-c", script, "slipway", in("bin"), "agent.service", in("unit"), in("due")}, more...)
				cmd := exec.CommandContext(t.Context(), "sh", args...)
				cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "DIR=" + dir, fmt.Sprint("PID=", os.Getpid())}
				stdin, err := os.Open(comes)
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
					t.Errorf("it has read %d bytes of the unit, want %d: %v", read, len(unit), err)
				}
				return strings.TrimSpace(string(out))
			}
			if got := run(oldScript) == "old"; got != tc.old {
				t.Errorf("old: %t", got)
			}
			if got := run(installScript, brought); got != tc.says {
				t.Errorf("it says %q, want %q", got, tc.says)
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
			if _, err := os.Stat(in("due")); err == nil {
				t.Error("it is still due")
			}
			if left, _ := filepath.Glob(in("*.slipway-new")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
			if got, err := os.ReadFile(in("bin")); tc.new && (err != nil || string(got) != "new") {
				t.Errorf("program %q, %v", got, err)
			}
		})
	}
}
