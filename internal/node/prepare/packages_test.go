// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/distro"
)

func manager(name string) distro.Manager {
	for _, m := range distro.Managers() {
		if m.Name == name {
			return m
		}
	}
	return distro.Manager{}
}

func TestPackages(t *testing.T) {
	t.Parallel()
	const dpkg = "installed|git|\ninstalled|exim4|mail-transport-agent, mta (= 4)\nconfig-files|tmux|\nnot-installed|curl|\n"
	const words = "apt=git,tmux,mta,curl dnf=x"
	task := append([]string{"packages"}, strings.Fields(words)...)
	for name, tt := range map[string]struct {
		manager string
		fails   map[string]string // part of a command line → its output
		reason  string            // of Done
		failed  string            // of Do
		ran     string            // command lines without options
	}{
		"installed by apt": {manager: "apt", reason: "packages are not installed: tmux, curl", ran: "dpkg --configure;apt-get install"},
		"old lists": {
			manager: "apt", reason: "tmux, curl", ran: "dpkg --configure;apt-get install;apt-get update;apt-get install",
			fails: map[string]string{"apt-get install": "E: Unable to locate package tmux"}, failed: "install tmux, curl: apt-get: exit status 100: E: Unable to locate package tmux",
		},
		"no network": {
			manager: "apt", reason: "tmux, curl", ran: "dpkg --configure;apt-get install;apt-get update",
			fails:  map[string]string{"apt-get install": "E: Unable to locate package tmux", "apt-get update": "W: Failed to fetch http://x Could not resolve 'x'"},
			failed: "the package sources are unreachable (if this machine is offline",
		},
		"installed, rpm":      {manager: "dnf"},
		"missing, rpm":        {manager: "dnf", reason: "not installed: x", fails: map[string]string{"rpm --query": "no package provides x"}, ran: "dnf install"},
		"no rpm":              {manager: "dnf", reason: "query package x", failed: "query package x", fails: map[string]string{"rpm --query": "env: 'rpm': No such file or directory"}},
		"no list in the spec": {manager: "apk", reason: "write spec.os.packages.apk, [] if", failed: "write spec.os.packages.apk"},
		"unknown":             {manager: "", reason: "none of apt, dnf, zypper, apk", failed: "none of apt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := commands{answer: func(line string) (string, error) {
				if strings.Contains(line, "dpkg-query") {
					return dpkg, nil
				}
				for part, out := range tt.fails {
					if strings.Contains(line, part) {
						return out + "\n", errors.New("exit status 100")
					}
				}
				return "", nil
			}}
			h := Host{Root: "/", Manager: manager(tt.manager), Execute: c.execute}
			wantError(t, h.Done(t.Context(), task), tt.reason)
			if slices.ContainsFunc(c.ran, func(line string) bool { return strings.Contains(line, " install ") }) {
				t.Errorf("Done has installed: got commands %q", c.ran)
			}
			c.ran = nil
			wantError(t, h.Do(t.Context(), task), tt.failed)
			var ran []string
			for _, line := range c.ran {
				if f := strings.Fields(line); f[1] != "dpkg-query" && f[1] != "rpm" {
					ran = append(ran, f[1]+" "+f[2])
				}
			}
			if got := strings.Join(ran, ";"); got != tt.ran {
				t.Errorf("got commands %q, want %q", got, tt.ran)
			}
		})
	}
}

// TestDpkgOfThisHost queries the real database if there is one.
func TestDpkgOfThisHost(t *testing.T) {
	t.Parallel()
	h := Host{Root: "/", Manager: manager("apt")}
	if !h.exists("/var/lib/dpkg/status") {
		t.Skip("needs dpkg")
	}
	wantError(t, h.Done(t.Context(), []string{"packages", "apt=dpkg,base-files"}), "")
	wantError(t, h.Done(t.Context(), []string{"packages", "apt=dpkg,no-such-package-anywhere"}), "not installed: no-such-package-anywhere")
}
