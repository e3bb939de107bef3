// SPDX-License-Identifier: Apache-2.0

package dataguard_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
)

// TestMain lets the test's own program be the guarded one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == dataguard.Command {
		if err := dataguard.Guard(os.Args[2:]); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func TestGuardBecomesTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark, data, permit := filepath.Join(dir, "mark"), filepath.Join(dir, "data"), filepath.Join(dir, "permit")
	if err := os.WriteFile(permit, []byte("WORD_OF_PERMIT=new\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guarded := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), os.Args[0], dataguard.Command, "--mark="+mark, "--data="+data, "--anew=", "--env-file="+permit,
			"--", "/usr/bin/env").CombinedOutput()
		return string(out), err
	}
	if out, err := guarded(); err != nil || !strings.Contains(out, "WORD_OF_PERMIT=new\n") {
		t.Errorf("the first start: %v, %q", err, out)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := guarded(); err == nil || !strings.Contains(out, "lost data") {
		t.Errorf("over lost data: %v, %q", err, out)
	}
	if err := os.Remove(permit); err != nil {
		t.Fatal(err)
	}
	if out, err := guarded(); err == nil || !strings.Contains(out, "environment file") {
		t.Errorf("without its permit: %v, %q", err, out)
	}
}
