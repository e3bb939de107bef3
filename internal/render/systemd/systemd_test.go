// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/render/systemd"
)

// verify asks systemd itself what it thinks of unit files. It warns and goes on where it drops a line, so any word is an error.
func verify(t *testing.T, dir string, units ...string) {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on this machine (package systemd): unit files are not checked by systemd itself")
	}
	cmd := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no", "--recursive-errors=no"}, units...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	out, err := cmd.CombinedOutput()
	if err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

func TestAgentServiceIsUnderstood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, systemd.AgentUnit)
	if err := os.WriteFile(file, systemd.AgentService("/bin/true"), 0o600); err != nil {
		t.Fatal(err)
	}
	verify(t, dir, file)
}

func TestAgentServiceNamesItsProgram(t *testing.T) {
	t.Parallel()
	if text := string(systemd.AgentService("/opt/my tools/slip%way")); !strings.Contains(text, `ExecStart="/opt/my tools/slip%%way" agent`) {
		t.Errorf("the program is not named as it is: %s", text)
	}
}
