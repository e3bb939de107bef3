// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is a folder with the given files.
func root(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		at := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// says checks that an error holds the words, or that there is none where there are no words.
func says(t *testing.T, err error, words string) {
	t.Helper()
	switch {
	case words == "" && err != nil:
		t.Errorf("error %v, want none", err)
	case words != "" && (err == nil || !strings.Contains(err.Error(), words)):
		t.Errorf("error %v, want one with %q", err, words)
	}
}

// commands records what is executed and answers with the given output or error.
type commands struct {
	ran    []string
	answer func(line string) (string, error)
}

func (c *commands) execute(_ context.Context, _, args []string) (string, error) {
	line := strings.Join(args, " ")
	c.ran = append(c.ran, line)
	if c.answer == nil {
		return "", nil
	}
	return c.answer(line)
}

func TestUnknownTask(t *testing.T) {
	t.Parallel()
	h := Host{Root: t.TempDir()}
	for _, args := range [][]string{nil, {"nosuch"}} {
		says(t, h.Do(t.Context(), args), "task")
		says(t, h.Done(t.Context(), args), "task")
	}
}

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
		want   string // what modprobe is asked for
	}{
		"loaded, built in, in sysfs": {words: []string{"overlay", "bridge", "nf-tables"}},
		"to be loaded":               {words: []string{"br_netfilter", "dm_crypt"}, want: "br_netfilter dm_crypt"},
		"lenient and there":          {words: []string{"-br_netfilter"}, want: "br_netfilter"},
		"lenient and nowhere":        {words: []string{"-wireguard"}},
		"nowhere":                    {words: []string{"wireguard"}, want: "wireguard"},
		"another's kernel":           {words: []string{"br_netfilter", "wireguard"}, shared: true},
		"a kernel without modules":   {words: []string{"wireguard"}, remove: "proc/modules"},
		"lenient, and no right":      {words: []string{"-br_netfilter"}, remove: "proc/self/status"},
		"lenient, and closed":        {words: []string{"-br_netfilter"}, add: "proc/sys/kernel/modules_disabled"},
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
			says(t, h.Done(t.Context(), args), strings.ReplaceAll(tt.want, " ", ", "))
			says(t, h.Do(t.Context(), args), "")
			var asked []string
			for _, line := range c.ran {
				asked = append(asked, strings.TrimPrefix(line, "/usr/bin/env modprobe -- "))
			}
			if got := strings.Join(asked, " "); got != tt.want {
				t.Errorf("modprobe was asked for %q, want %q", got, tt.want)
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
	says(t, h.Do(t.Context(), []string{"modules", "wireguard"}), "wireguard: modprobe: exit status 1: modprobe: FATAL: Module wireguard not found")
}

func TestSwap(t *testing.T) {
	t.Parallel()
	const heading = "Filename\tType\tSize\tUsed\tPriority\n"
	h := Host{Root: root(t, map[string]string{"proc/swaps": heading})}
	says(t, h.Done(t.Context(), []string{"swap-off"}), "")
	says(t, h.Done(t.Context(), []string{"swap-on"}), "there is no swap")
	says(t, h.Do(t.Context(), []string{"swap-on"}), "there is no swap")

	var c commands
	h = Host{Root: root(t, map[string]string{"proc/swaps": heading + "/dev/sda2 partition 1 0 -2\n/swap\\040file file 1 0 -3\n"}), Execute: c.execute}
	says(t, h.Done(t.Context(), []string{"swap-off"}), "swap is on: /dev/sda2, /swap file")
	says(t, h.Done(t.Context(), []string{"swap-on"}), "")
	says(t, h.Do(t.Context(), []string{"swap-off"}), "")
	if got := strings.Join(c.ran, ";"); got != "/usr/bin/env swapoff /dev/sda2;/usr/bin/env swapoff /swap file" {
		t.Errorf("ran %q", got)
	}
	h.Shared, c.ran = true, nil
	says(t, errors.Join(h.Done(t.Context(), []string{"swap-off"}), h.Do(t.Context(), []string{"swap-off"})), "")
	if c.ran != nil {
		t.Errorf("the host's swap was touched: %q", c.ran)
	}
}

func TestHostname(t *testing.T) {
	t.Parallel()
	h := Host{Root: root(t, map[string]string{"proc/sys/kernel/hostname": "old\n", "etc/hostname": "old\n"})}
	h.SetHostname = func(name string) error {
		return os.WriteFile(h.path("/proc/sys/kernel/hostname"), []byte(name+"\n"), 0o600)
	}
	task := []string{"hostname", "dev-main-0"}
	says(t, h.Done(t.Context(), task), "the machine is called old, want dev-main-0")
	says(t, h.Do(t.Context(), task), "")
	says(t, h.Done(t.Context(), task), "")
	if err := os.Remove(h.path("/etc/hostname")); err != nil {
		t.Fatal(err)
	}
	says(t, h.Done(t.Context(), task), `/etc/hostname says "", want dev-main-0`)
}

func TestTimeSync(t *testing.T) {
	t.Parallel()
	synced := false
	h := Host{ClockSynced: func() (bool, error) { return synced, nil }}
	says(t, h.Done(t.Context(), []string{"time-sync"}), "not synchronised: start chrony")
	synced = true
	says(t, h.Done(t.Context(), []string{"time-sync"}), "")
	h.ClockSynced = func() (bool, error) { return true, errors.New("no answer") }
	says(t, h.Done(t.Context(), []string{"time-sync"}), "no answer")
	if _, err := kernelClockSynced(); err != nil {
		t.Errorf("the kernel does not say: %v", err)
	}
}
