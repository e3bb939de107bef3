// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"strings"
	"testing"
)

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
		reason string            // before
		failed string            // of doing it
		after  map[string]string // changed files
	}{
		"right already":             {words: "net.ipv4.ip_forward=0 vm.swappiness=60"},
		"to be set":                 {words: "net.ipv4.ip_forward=1", reason: "net.ipv4.ip_forward is 0, want 1", after: map[string]string{"net/ipv4/ip_forward": "1"}},
		"a dot within a name":       {words: "net.ipv4.conf.eth0/7.proxy=1", reason: "is 0, want 1", after: map[string]string{"net/ipv4/conf/eth0.7/proxy": "1"}},
		"lenient and there":         {words: "-net.ipv4.ip_forward=1", reason: "is 0, want 1", after: map[string]string{"net/ipv4/ip_forward": "1"}},
		"lenient and missing":       {words: "-net.bridge.x=1"},
		"missing, others are set":   {words: "net.bridge.x=1 vm.swappiness=1", reason: "net.bridge.x: this kernel has no such", failed: "net.bridge.x: this kernel has no such", after: map[string]string{"vm/swappiness": "1"}},
		"another's kernel":          {words: "vm.swappiness=1 vm.nosuch=1", shared: true},
		"own part of that kernel":   {words: "vm.swappiness=1 net.ipv4.ip_forward=1 kernel.shmmax=2", shared: true, reason: "want 1; kernel.shmmax is 1, want 2", after: map[string]string{"net/ipv4/ip_forward": "1", "kernel/shmmax": "2"}},
		"many wrong are not listed": {words: "a.a=1 a.b=1 a.c=1 a.d=1 a.e=1", reason: "and 2 more", failed: "and 2 more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := Host{Root: root(t, machine), Shared: tt.shared}
			args := append([]string{"sysctls"}, strings.Fields(tt.words)...)
			says(t, h.Done(t.Context(), args), tt.reason)
			says(t, h.Do(t.Context(), args), tt.failed)
			if tt.failed == "" {
				says(t, h.Done(t.Context(), args), "")
			}
			for path, before := range machine {
				now, _ := h.read("/" + path)
				want, changed := tt.after[strings.TrimPrefix(path, "proc/sys/")]
				if !changed {
					want = before
				}
				if now != want {
					t.Errorf("%s is %q, want %q", path, now, want)
				}
			}
		})
	}
}

// The tabs of the kernel are the blanks of a spec.
func TestSysctlOfSeveralWords(t *testing.T) {
	t.Parallel()
	h := Host{Root: root(t, map[string]string{"proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n"})}
	says(t, h.Done(t.Context(), []string{"sysctls", "net.ipv4.tcp_rmem=4096 131072 6291456"}), "")
	says(t, h.Done(t.Context(), []string{"sysctls", "net.ipv4.tcp_rmem=4096 131072 1"}), "want 4096 131072 1")
}

// TestSysctlOfTheKernel: what the kernel refuses is told with its reason.
func TestSysctlOfTheKernel(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("writes below /proc/sys need root")
	}
	h := Host{Root: "/"}
	// The kernel's release can never be written, by nobody.
	says(t, h.Do(t.Context(), []string{"sysctls", "kernel.osrelease=7"}), "write 7 to /proc/sys/kernel/osrelease")
	says(t, h.Do(t.Context(), []string{"sysctls", "-kernel.osrelease=7"}), "")
}
