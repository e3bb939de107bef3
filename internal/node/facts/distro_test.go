// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseDistribution(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want Distribution
	}{
		"debian":   {"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n", Distribution{"debian", "Debian GNU/Linux 12 (bookworm)", "apt"}},
		"mint":     {"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Distribution{ID: "linuxmint", Manager: "apt"}},
		"rocky":    {"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Distribution{ID: "rocky", Manager: "dnf"}},
		"leap":     {"ID='opensuse-leap'\nID_LIKE='suse opensuse'\n", Distribution{ID: "opensuse-leap", Manager: "zypper"}},
		"alpine":   {"ID=alpine\n", Distribution{ID: "alpine", Manager: "apk"}},
		"flatcar":  {"ID=flatcar\nID_LIKE=coreos\n", Distribution{ID: "flatcar"}},
		"no file":  {"", Distribution{}},
		"nonsense": {"ID\n=\n#ID=debian\n", Distribution{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, parseDistribution(tt.text)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFindDistribution(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if got := FindDistribution(root); got != (Distribution{}) {
		t.Errorf("an empty root is %+v", got)
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/lib/os-release"), []byte("ID=alpine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := FindDistribution(root).Manager; got != "apk" {
		t.Errorf("manager %q", got)
	}
}

func TestSharedKernel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for link, want := range map[string]bool{"pid:[4026531836]": false, "pid:[4026532001]": true} {
		at := filepath.Join(dir, link)
		if err := os.Symlink(link, at); err != nil {
			t.Fatal(err)
		}
		if sharedKernel(at) != want {
			t.Errorf("%s: shared is %t", link, !want)
		}
	}
	if !sharedKernel(filepath.Join(dir, "none")) {
		t.Error("who does not know takes the kernel for his own")
	}
}
