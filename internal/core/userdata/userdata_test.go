// SPDX-License-Identifier: Apache-2.0

package userdata_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/userdata"
)

func good() userdata.Data {
	return userdata.Data{
		Cluster: "dev", Node: "dev-worker-0", Plan: "sha256:" + strings.Repeat("1", 64), Pin: pin.Pin("sha256:" + strings.Repeat("2", 64)), Program: "sha256:" + strings.Repeat("3", 64),
		Endpoints: []string{"192.0.2.1:9440", "192.0.2.2:9440"}, Stores: []string{"192.0.2.1:9442", "192.0.2.2:9442"}, Agent: "[Service]\nExecStart=/opt/slipway/bin/slipway agent\n",
	}
}

func TestFilesRefuse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(d *userdata.Data){
		"no digest":               func(d *userdata.Data) { d.Program = "" },
		"other digest":            func(d *userdata.Data) { d.Program = "md5:00" },
		"no pin":                  func(d *userdata.Data) { d.Pin = "" },
		"no endpoints":            func(d *userdata.Data) { d.Endpoints = nil },
		"no store":                func(d *userdata.Data) { d.Stores = nil },
		"no agent":                func(d *userdata.Data) { d.Agent = "" },
		"a command":               func(d *userdata.Data) { d.Stores = []string{"192.0.2.1:9442; reboot"} },
		"a command in the digest": func(d *userdata.Data) { d.Program = "sha256:$(reboot)" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := good()
			spoil(&d)
			if files, err := d.Files(); err == nil {
				t.Errorf("made %v", files)
			}
		})
	}
}

// The script is run by a real shell with programs that write down how they are called.
func TestScript(t *testing.T) {
	t.Parallel()
	program := "#!/bin/sh\necho \"slipway $*\" >>\"$CALLS\"\n"
	for name, tt := range map[string]struct {
		curl  string // what it gives; empty: it fails
		calls string
		fails bool
	}{
		"fetched":        {curl: program, calls: "systemctl enable --now slipway-agent.service\nslipway join --known --pin sha256:" + strings.Repeat("2", 64) + " --endpoint 192.0.2.1:9440 --endpoint 192.0.2.2:9440\n"},
		"something else": {curl: "#!/bin/sh\n", fails: true},
		"no server":      {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(path, text string) {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			write(filepath.Join(dir, "given"), program)
			out, err := exec.CommandContext(t.Context(), "sha256sum", filepath.Join(dir, "given")).Output()
			if err != nil {
				t.Fatal(err)
			}
			d := good()
			d.Program = "sha256:" + strings.Fields(string(out))[0]
			files, err := d.Files()
			if err != nil {
				t.Fatal(err)
			}
			script := strings.ReplaceAll(files[0].Text, "/opt/slipway", filepath.Join(dir, "opt"))
			write(filepath.Join(dir, "script"), script)
			write(filepath.Join(dir, "answer"), tt.curl)
			curl := "#!/bin/sh\nexit 7\n"
			if tt.curl != "" {
				curl = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = -o ] && cp " + filepath.Join(dir, "answer") + " \"$2\"; shift; done\n"
			}
			write(filepath.Join(dir, "bin", "curl"), curl)
			write(filepath.Join(dir, "bin", "systemctl"), "#!/bin/sh\necho \"systemctl $*\" >>\"$CALLS\"\n")
			calls := filepath.Join(dir, "calls")
			for range 2 { // the second boot has the program
				cmd := exec.CommandContext(t.Context(), "sh", filepath.Join(dir, "script"))
				cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":/usr/bin:/bin", "CALLS=" + calls}
				said, err := cmd.CombinedOutput()
				if (err != nil) != tt.fails {
					t.Fatalf("%v: %s", err, said)
				}
				if tt.fails {
					if text, _ := os.ReadFile(calls); strings.Contains(string(text), "slipway join") {
						t.Errorf("and yet it did %s", text)
					}
					return
				}
				write(filepath.Join(dir, "bin", "curl"), "#!/bin/sh\nexit 7\n")
			}
			if text, _ := os.ReadFile(calls); string(text) != tt.calls+tt.calls {
				t.Errorf("did\n%swant twice\n%s", text, tt.calls)
			}
		})
	}
}
