// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/slipway-project/slipway/internal/core/userdata"
	"github.com/slipway-project/slipway/internal/render/cloudinit"
	"github.com/slipway-project/slipway/internal/render/rendertest"
)

func TestRender(t *testing.T) {
	t.Parallel()
	text, err := cloudinit.Render(rendertest.UserData())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		WriteFiles []struct {
			Path        string `json:"path"`
			Permissions string `json:"permissions"`
			Content     string `json:"content"`
		} `json:"write_files"`
		Runcmd [][]string `json:"runcmd"`
	}
	if err := yaml.UnmarshalStrict(text, &got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	files, err := rendertest.UserData().Files()
	if err != nil || len(files) != len(got.WriteFiles) {
		t.Fatalf("got %d files, want %d; %v", len(got.WriteFiles), len(files), err)
	}
	for i, f := range files {
		if diff := cmp.Diff(f.Text, got.WriteFiles[i].Content); diff != "" || got.WriteFiles[i].Path != f.Path {
			t.Errorf("%s: (-want +got)\n%s", f.Path, diff)
		}
	}
	if last := got.Runcmd[len(got.Runcmd)-1]; last[len(last)-1] != userdata.JoinUnit {
		t.Errorf("runcmd: got %q", got.Runcmd)
	}
	if !strings.HasPrefix(string(text), "#cloud-config\n") {
		t.Errorf("first line: got %.40q", text)
	}
	t.Logf("%d bytes", len(text))
}

// The schema check of cloud-init itself, if it is installed.
func TestSchema(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("cloud-init")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs cloud-init (run make preflight)")
	}
	for name, tt := range map[string]struct {
		spoil func(string) string
		fails bool
	}{
		"ours":  {func(s string) string { return s }, false},
		"wrong": {func(s string) string { return strings.Replace(s, "permissions:", "permission:", 1) }, true}, // shows that the check works
	} {
		text, err := cloudinit.Render(rendertest.UserData())
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "user-data")
		if err := os.WriteFile(file, []byte(tt.spoil(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, "schema", "--config-file", file).CombinedOutput()
		if failed := err != nil || strings.Contains(string(out), "Invalid"); failed != tt.fails {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	d := rendertest.UserData()
	for range 200 {
		d.Endpoints = append(d.Endpoints, "192.0.2.1:9440")
	}
	if _, err := cloudinit.Render(d); err == nil || !strings.Contains(err.Error(), "4096") {
		t.Errorf("oversized user data: got %v", err)
	}
}
