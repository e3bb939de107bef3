// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestModules(t *testing.T) {
	t.Parallel()
	const lib = "lib/modules/6.1/"
	machine := map[string]string{
		"proc/sys/kernel/osrelease": "6.1\n",
		"proc/modules":              "overlay 151552 12 - Live 0x0\n",
		"sys/module/nf_tables/x":    "",
		lib + "modules.builtin":     "kernel/net/bridge/bridge.ko\n",
		lib + "modules.dep":         "kernel/net/br_netfilter.ko.zst: kernel/x.ko\nkernel/y/dm-crypt.ko:\n",
		"proc/self/status":          "CapEff:\t000001ffffffffff\n",
	}
	for name, tt := range map[string]struct {
		words  []string
		remove string
		add    string
		shared bool
		want   string // the modules that modprobe is asked for
	}{
		"loaded, built in, in sysfs": {words: []string{"overlay", "bridge", "nf-tables"}},
		"not loaded":                 {words: []string{"br_netfilter", "dm_crypt"}, want: "br_netfilter dm_crypt"},
		"optional, available":        {words: []string{"-br_netfilter"}, want: "br_netfilter"},
		"optional, not available":    {words: []string{"-wireguard"}},
		"not available":              {words: []string{"wireguard"}, want: "wireguard"},
		"shared kernel":              {words: []string{"br_netfilter", "wireguard"}, shared: true},
		"kernel without modules":     {words: []string{"wireguard"}, remove: "proc/modules"},
		"optional, no capability":    {words: []string{"-br_netfilter"}, remove: "proc/self/status"},
		"optional, modules disabled": {words: []string{"-br_netfilter"}, add: "proc/sys/kernel/modules_disabled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c commands
			h := Host{Root: root(t, machine), Shared: tt.shared, Execute: c.execute}
			if tt.remove != "" {
				if err := os.Remove(h.path(tt.remove)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.add != "" {
				if err := os.WriteFile(h.path(tt.add), []byte("1\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := append([]string{"modules"}, tt.words...)
			wantError(t, h.Done(t.Context(), args), strings.ReplaceAll(tt.want, " ", ", "))
			wantError(t, h.Do(t.Context(), args), "")
			var asked []string
			for _, line := range c.ran {
				asked = append(asked, strings.TrimPrefix(line, "/usr/bin/env modprobe -- "))
			}
			if got := strings.Join(asked, " "); got != tt.want {
				t.Errorf("got modprobe for %q, want %q", got, tt.want)
			}
		})
	}
}

func TestModprobeFails(t *testing.T) {
	t.Parallel()
	c := commands{answer: func(string) (string, error) {
		return "modprobe: FATAL: Module wireguard not found\n", errors.New("exit status 1")
	}}
	h := Host{Root: root(t, map[string]string{"proc/modules": ""}), Execute: c.execute}
	wantError(t, h.Do(t.Context(), []string{"modules", "wireguard"}), "wireguard: modprobe: exit status 1: modprobe: FATAL: Module wireguard not found")
}

func TestSwap(t *testing.T) {
	t.Parallel()
	const heading = "Filename\tType\tSize\tUsed\tPriority\n"
	h := Host{Root: root(t, map[string]string{"proc/swaps": heading})}
	wantError(t, h.Done(t.Context(), []string{"swap-off"}), "")
	wantError(t, h.Done(t.Context(), []string{"swap-on"}), "there is no swap")
	wantError(t, h.Do(t.Context(), []string{"swap-on"}), "there is no swap")

	var c commands
	h = Host{Root: root(t, map[string]string{"proc/swaps": heading + "/dev/sda2 partition 1 0 -2\n/swap\\040file file 1 0 -3\n"}), Execute: c.execute}
	wantError(t, h.Done(t.Context(), []string{"swap-off"}), "swap is on: /dev/sda2, /swap file")
	wantError(t, h.Done(t.Context(), []string{"swap-on"}), "")
	wantError(t, h.Do(t.Context(), []string{"swap-off"}), "")
	if got := strings.Join(c.ran, ";"); got != "/usr/bin/env swapoff /dev/sda2;/usr/bin/env swapoff /swap file" {
		t.Errorf("got commands %q", got)
	}
	h.Shared, c.ran = true, nil
	wantError(t, errors.Join(h.Done(t.Context(), []string{"swap-off"}), h.Do(t.Context(), []string{"swap-off"})), "")
	if c.ran != nil {
		t.Errorf("shared kernel: got commands %q, want none", c.ran)
	}
}

func TestHostname(t *testing.T) {
	t.Parallel()
	h := Host{Root: root(t, map[string]string{"proc/sys/kernel/hostname": "old\n", "etc/hostname": "old\n"})}
	h.SetHostname = func(name string) error {
		return os.WriteFile(h.path("/proc/sys/kernel/hostname"), []byte(name+"\n"), 0o600)
	}
	task := []string{"hostname", "dev-main-0"}
	wantError(t, h.Done(t.Context(), task), "the host name is old, want dev-main-0")
	wantError(t, h.Do(t.Context(), task), "")
	wantError(t, h.Done(t.Context(), task), "")
	if err := os.Remove(h.path("/etc/hostname")); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.Done(t.Context(), task), `/etc/hostname contains "", want dev-main-0`)
}

func TestTimeSync(t *testing.T) {
	t.Parallel()
	synced := false
	h := Host{ClockSynced: func() (bool, error) { return synced, nil }}
	wantError(t, h.Done(t.Context(), []string{"time-sync"}), "not synchronised (start chrony")
	synced = true
	wantError(t, h.Done(t.Context(), []string{"time-sync"}), "")
	h.ClockSynced = func() (bool, error) { return true, errors.New("no answer") }
	wantError(t, h.Done(t.Context(), []string{"time-sync"}), "no answer")
	if _, err := kernelClockSynced(); err != nil {
		t.Errorf("read the kernel's clock: %v", err)
	}
}

func TestSysctls(t *testing.T) {
	t.Parallel()
	machine := map[string]string{
		"proc/sys/net/ipv4/ip_forward":        "0\n",
		"proc/sys/net/ipv4/tcp_rmem":          "4096\t131072\t6291456\n",
		"proc/sys/net/ipv4/conf/eth0.7/proxy": "0\n",
		"proc/sys/vm/swappiness":              "60\n",
		"proc/sys/kernel/shmmax":              "1\n",
	}
	for name, tt := range map[string]struct {
		words  string
		shared bool
		reason string            // of Done, before Do
		failed string            // of Do
		after  map[string]string // changed files
	}{
		"already set":               {words: "net.ipv4.ip_forward=0 vm.swappiness=60"},
		"differs":                   {words: "net.ipv4.ip_forward=1", reason: "net.ipv4.ip_forward is 0, want 1", after: map[string]string{"net/ipv4/ip_forward": "1"}},
		"dot in an interface name":  {words: "net.ipv4.conf.eth0/7.proxy=1", reason: "is 0, want 1", after: map[string]string{"net/ipv4/conf/eth0.7/proxy": "1"}},
		"optional, available":       {words: "-net.ipv4.ip_forward=1", reason: "is 0, want 1", after: map[string]string{"net/ipv4/ip_forward": "1"}},
		"optional, missing":         {words: "-net.bridge.x=1"},
		"missing, others set":       {words: "net.bridge.x=1 vm.swappiness=1", reason: "net.bridge.x: this kernel does not have this", failed: "net.bridge.x: this kernel does not have this", after: map[string]string{"vm/swappiness": "1"}},
		"shared kernel":             {words: "vm.swappiness=1 vm.nosuch=1", shared: true},
		"namespaced, shared kernel": {words: "vm.swappiness=1 net.ipv4.ip_forward=1 kernel.shmmax=2", shared: true, reason: "want 1; kernel.shmmax is 1, want 2", after: map[string]string{"net/ipv4/ip_forward": "1", "kernel/shmmax": "2"}},
		"long list":                 {words: "a.a=1 a.b=1 a.c=1 a.d=1 a.e=1", reason: "and 2 more", failed: "and 2 more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := Host{Root: root(t, machine), Shared: tt.shared}
			args := append([]string{"sysctls"}, strings.Fields(tt.words)...)
			wantError(t, h.Done(t.Context(), args), tt.reason)
			wantError(t, h.Do(t.Context(), args), tt.failed)
			if tt.failed == "" {
				wantError(t, h.Done(t.Context(), args), "")
			}
			for path, before := range machine {
				now, _ := h.read("/" + path)
				want, changed := tt.after[strings.TrimPrefix(path, "proc/sys/")]
				if !changed {
					want = before
				}
				if now != want {
					t.Errorf("%s: got %q, want %q", path, now, want)
				}
			}
		})
	}
}

// The kernel separates words with tabs, specs with spaces.
func TestSysctlWithSeveralWords(t *testing.T) {
	t.Parallel()
	h := Host{Root: root(t, map[string]string{"proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n"})}
	wantError(t, h.Done(t.Context(), []string{"sysctls", "net.ipv4.tcp_rmem=4096 131072 6291456"}), "")
	wantError(t, h.Done(t.Context(), []string{"sysctls", "net.ipv4.tcp_rmem=4096 131072 1"}), "want 4096 131072 1")
}

// TestSysctlRefused checks that the error contains the kernel's reason.
func TestSysctlRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to write to /proc/sys")
	}
	h := Host{Root: "/"}
	// Not even root can write the kernel's release.
	wantError(t, h.Do(t.Context(), []string{"sysctls", "kernel.osrelease=7"}), "write 7 to /proc/sys/kernel/osrelease")
	wantError(t, h.Do(t.Context(), []string{"sysctls", "-kernel.osrelease=7"}), "")
}
