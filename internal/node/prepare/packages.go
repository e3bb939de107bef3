// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Words of packages are MANAGER=NAME,NAME…, one for each package manager that somebody has thought of.

// packageManager is how one package manager is asked and told. Names are appended.
type packageManager struct {
	installed func(ctx context.Context, h Host, names []string) (missing []string, err error)
	install   []string
	refresh   []string // nil: it does so by itself
	mend      []string // nil: it mends itself
	env       []string
}

func packageManagers() map[string]packageManager {
	return map[string]packageManager{
		"apt": {
			installed: askDpkg,
			// Others' hold of dpkg's lock is waited for; nothing is removed, and no question is asked.
			install: strings.Fields("apt-get install --yes --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold --"),
			refresh: strings.Fields("apt-get update -o DPkg::Lock::Timeout=300"),
			mend:    strings.Fields("dpkg --configure -a --force-confold"),
			env:     []string{"DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"},
		},
		"dnf":    {installed: askRPM, install: strings.Fields("dnf install --assumeyes --"), env: []string{"LC_ALL=C"}},
		"zypper": {installed: askRPM, install: strings.Fields("zypper --non-interactive install --"), env: []string{"LC_ALL=C", "ZYPP_LOCK_TIMEOUT=300"}},
		"apk":    {installed: askApk, install: strings.Fields("apk add --wait 300 --"), refresh: strings.Fields("apk update --wait 300")},
	}
}

func packagesDone(ctx context.Context, h Host, words []string) error {
	manager, names, err := h.wanted(words)
	if err != nil || len(names) == 0 {
		return err
	}
	missing, err := manager.installed(ctx, h.quiet(), names)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("packages are not installed: %s", strings.Join(missing, ", "))
	}
	return err
}

// installPackages asks the sources for their lists only when it has to.
func installPackages(ctx context.Context, h Host, words []string) error {
	manager, names, err := h.wanted(words)
	if err != nil || len(names) == 0 {
		return err
	}
	missing, err := manager.installed(ctx, h.quiet(), names)
	if err != nil || len(missing) == 0 {
		return err
	}
	if manager.mend != nil { // an installation that was broken off, ours or another, would refuse every later one
		if _, err := h.runWith(ctx, manager.env, program(manager.mend)...); err != nil {
			return installError(err, missing, "")
		}
	}
	_, err = h.runWith(ctx, manager.env, program(append(manager.install, missing...))...)
	if err == nil || manager.refresh == nil || ctx.Err() != nil {
		return installError(err, missing, "")
	}
	lists, refreshErr := h.runWith(ctx, manager.env, program(manager.refresh)...)
	if refreshErr != nil {
		return installError(refreshErr, missing, lists)
	}
	_, err = h.runWith(ctx, manager.env, program(append(manager.install, missing...))...)
	return installError(err, missing, lists)
}

// installError tells a machine without network from one that was asked for what nobody has.
func installError(err error, names []string, lists string) error {
	if err == nil {
		return nil
	}
	text := lists + err.Error()
	for _, sign := range []string{"Could not resolve", "Temporary failure", "Could not connect", "Failed to fetch", "Cannot download", "unable to select", "Network"} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("install %s: %w; the package sources do not answer: if this machine is offline, give it a mirror, or install by hand", strings.Join(names, ", "), err)
		}
	}
	return fmt.Errorf("install %s: %w", strings.Join(names, ", "), err)
}

// wanted chooses this machine's package manager and its list.
func (h Host) wanted(words []string) (packageManager, []string, error) {
	manager, ok := packageManagers()[h.Manager]
	if !ok {
		return packageManager{}, nil, errors.New("this distribution's package manager is none of apt, dnf, zypper and apk (/etc/os-release): leave spec.os.packages away")
	}
	for _, word := range words {
		if name, list, ok := strings.Cut(word, "="); ok && name == h.Manager {
			return manager, strings.FieldsFunc(list, func(r rune) bool { return r == ',' }), nil
		}
	}
	return packageManager{}, nil, fmt.Errorf("this machine's package manager is %s, and the spec has no list for it: write spec.os.packages.%s, [] if it needs nothing", h.Manager, h.Manager)
}

// program is a command line whose program is found by PATH.
func program(args []string) []string { return append([]string{"/usr/bin/env"}, args...) }

// askDpkg counts what an installed package provides as installed, too.
func askDpkg(ctx context.Context, h Host, names []string) ([]string, error) {
	args := program([]string{"dpkg-query", "--show", "--showformat=${db:Status-Status}|${Package}|${Provides}\n"})
	if h.Root != "/" {
		args = append(args, "--admindir="+h.path("/var/lib/dpkg"))
	}
	out, err := h.whole(ctx, args)
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 3 || f[0] != "installed" {
			continue
		}
		have[f[1]] = true
		for provided := range strings.SplitSeq(f[2], ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(provided), " ")
			have[name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return have[n] }), nil
}

func askRPM(ctx context.Context, h Host, names []string) ([]string, error) {
	return h.askEach(ctx, names, "rpm", "--query", "--quiet", "--whatprovides")
}

func askApk(ctx context.Context, h Host, names []string) ([]string, error) {
	return h.askEach(ctx, names, "apk", "info", "--installed", "--quiet")
}

// askEach: a program that ends well for what is installed. One that is not there is no answer.
func (h Host) askEach(ctx context.Context, names []string, args ...string) (missing []string, err error) {
	for _, name := range names {
		out, err := h.run(ctx, program(append(slices.Clone(args), name))...)
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrNotExist) || strings.Contains(out, "No such file or directory"):
			return nil, fmt.Errorf("ask for package %s: %w", name, errors.Join(ctx.Err(), err))
		case err != nil:
			missing = append(missing, name)
		}
	}
	return missing, nil
}
