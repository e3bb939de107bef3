// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/distro"
)

// The arguments of the task packages are MANAGER=NAME,NAME…, one for each package manager that the spec
// lists packages for.

func packagesDone(ctx context.Context, h Host, args []string) error {
	missing, err := h.missingPackages(ctx, args)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("packages are not installed: %s", strings.Join(missing, ", "))
	}
	return err
}

// installPackages downloads the package lists only if there are none yet or the first attempt fails.
func installPackages(ctx context.Context, h Host, args []string) error {
	missing, err := h.missingPackages(ctx, args)
	if err != nil || len(missing) == 0 {
		return err
	}
	m, install := h.Manager, slices.Concat(h.Manager.Install, h.Manager.Unattended, missing)
	if m.Repair != nil { // an interrupted installation would make every later one fail
		if _, err := h.run(ctx, m.Env, byPath(m.Repair...)...); err != nil {
			return installError(err, missing, "")
		}
	}
	if h.hasLists() {
		err = h.runLogged(ctx, install)
		if err == nil || m.Refresh == nil || ctx.Err() != nil {
			return installError(err, missing, "")
		}
	}
	h.log("$ %s", strings.Join(m.Refresh, " "))
	lists, err := h.run(ctx, m.Env, byPath(m.Refresh...)...)
	if err == nil {
		err = h.runLogged(ctx, install)
	}
	return installError(err, missing, lists)
}

// runLogged runs the package manager; the command line is shown before its output.
func (h Host) runLogged(ctx context.Context, args []string) error {
	h.log("$ %s", strings.Join(args, " "))
	_, err := h.run(ctx, h.Manager.Env, byPath(args...)...)
	return err
}

// hasLists reports whether the package manager has downloaded its lists: fresh images come without.
func (h Host) hasLists() bool {
	if h.Manager.Lists == "" {
		return true
	}
	found, _ := filepath.Glob(h.path(h.Manager.Lists))
	return len(found) > 0
}

// installError tells a machine without network from a package that does not exist. lists is the output of
// Refresh.
func installError(err error, names []string, lists string) error {
	if err == nil {
		return nil
	}
	text := lists + err.Error()
	for _, sign := range []string{"Could not resolve", "Temporary failure", "Could not connect", "Failed to fetch", "Cannot download", "unable to select", "Network"} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("install %s: %w; the package sources are unreachable (if this machine is offline, configure a mirror or install by hand)", strings.Join(names, ", "), err)
		}
	}
	return fmt.Errorf("install %s: %w", strings.Join(names, ", "), err)
}

// missingPackages returns the packages of this machine's package manager that the arguments name and that
// are not installed.
func (h Host) missingPackages(ctx context.Context, args []string) ([]string, error) {
	m := h.Manager
	if m.Name == "" {
		return nil, fmt.Errorf("find package manager: this distribution (/etc/os-release) has none of %s (remove spec.os.packages)", strings.Join(distro.Names(), ", "))
	}
	i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, m.Name+"=") })
	if i < 0 {
		return nil, fmt.Errorf("find packages: this machine's package manager is %s, and the spec has no list for it (write spec.os.packages.%s, [] if it needs nothing)", m.Name, m.Name)
	}
	names := strings.FieldsFunc(strings.TrimPrefix(args[i], m.Name+"="), func(r rune) bool { return r == ',' })
	if len(names) == 0 {
		return nil, nil
	}
	if m.QueryAll != nil {
		return h.queryAll(ctx, names)
	}
	return h.queryEach(ctx, names)
}

// queryAll reads the whole package database. A name that an installed package provides counts as installed.
func (h Host) queryAll(ctx context.Context, names []string) (missing []string, err error) {
	out, err := h.output(ctx, byPath(h.Manager.QueryAll...))
	if err != nil {
		return nil, fmt.Errorf("query packages: %w", err)
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

// queryEach runs a query for each package. A query program that does not exist is an error, not a missing
// package.
func (h Host) queryEach(ctx context.Context, names []string) (missing []string, err error) {
	h.Out = nil // what queries print is not part of the task's output
	for _, name := range names {
		out, err := h.run(ctx, nil, append(byPath(h.Manager.Query...), name)...)
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrNotExist) || strings.Contains(out, "No such file or directory"):
			return nil, fmt.Errorf("query package %s: %w", name, errors.Join(ctx.Err(), err))
		case err != nil:
			missing = append(missing, name)
		}
	}
	return missing, nil
}
