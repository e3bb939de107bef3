// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"slices"
	"testing"
)

func TestFromOSRelease(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"debian":       {"PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n", "apt"},
		"mint":         {"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "apt"},
		"rocky":        {"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf"},
		"leap":         {"ID='opensuse-leap'\nID_LIKE='suse opensuse'\n", "zypper"},
		"alpine":       {"ID=alpine\n", "apk"},
		"flatcar":      {"ID=flatcar\nID_LIKE=coreos\n", ""},
		"empty":        {"", ""},
		"not readable": {"ID\n=\n#ID=debian\n", ""},
	} {
		if got := FromOSRelease(tt.text).Name; got != tt.want {
			t.Errorf("%s: got package manager %q, want %q", name, got, tt.want)
		}
	}
}

// TestTable checks that each row has what its readers rely on.
func TestTable(t *testing.T) {
	t.Parallel()
	families := map[string]string{}
	for _, m := range Managers() {
		if len(m.Install) < 2 || (m.QueryAll == nil) == (m.Query == nil) || m.Lists != "" && m.Refresh == nil || len(m.Refresh) == 1 {
			t.Errorf("%s: the row is not complete: %+v", m.Name, m)
		}
		if !slices.Contains(m.Unattended, "--") {
			t.Errorf("%s: the options of Unattended do not end with --: a package name could be taken for an option", m.Name)
		}
		for _, f := range m.Families {
			if other := families[f]; other != "" {
				t.Errorf("family %s belongs to both %s and %s", f, other, m.Name)
			}
			families[f] = m.Name
		}
		for thing := range Managers()[0].Packages {
			if m.Packages[thing] == "" && thing != Systemd {
				t.Errorf("%s: no package for %s", m.Name, thing)
			}
		}
	}
}
