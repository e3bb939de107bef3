// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Install installs the packages that the findings' problems name, in one call of the distribution's package manager, and
// passes its output on, line by line, to progress. Settings that they name are set until the next boot. The package lists are fetched only when there are none or when the first
// attempt fails. With nothing to install it does nothing.
func Install(ctx context.Context, findings []Finding, progress func(line string)) error {
	in := installer{host{"/"}.packageManager(), host{"/"}, progress, execute}
	for _, s := range Settings(findings) {
		if err := in.set(s); err != nil {
			return err
		}
	}
	for _, m := range Modules(findings) {
		in.load(ctx, m)
	}
	return in.install(ctx, Packages(findings))
}

// Fixable lists what Install would do, in words.
func Fixable(findings []Finding) []string {
	return append(append(Settings(findings), Modules(findings)...), Packages(findings)...)
}

// Settings lists what Install would set.
func Settings(findings []Finding) []string {
	var settings []string
	for _, f := range Problems(findings) {
		if f.Setting != "" {
			settings = append(settings, f.Setting)
		}
	}
	return settings
}

// Packages lists what Install would install.
func Packages(findings []Finding) []string {
	var packages []string
	for _, f := range Problems(findings) {
		packages = append(packages, strings.Fields(f.Package)...)
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// set changes a kernel setting, as sysctl(8) would.
func (in installer) set(setting string) error {
	name, value, _ := strings.Cut(setting, "=")
	in.progress("$ sysctl -w " + setting)
	path := filepath.Join(in.host.root, "proc/sys", strings.ReplaceAll(name, ".", "/"))
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s: %w; try it by hand: sysctl -w %s", name, err, setting)
	}
	return nil
}

type installer struct {
	manager  manager
	host     host
	progress func(string)
	execute  func(ctx context.Context, args []string, line func(string)) error
}

func (in installer) install(ctx context.Context, packages []string) error {
	if len(packages) == 0 {
		return nil
	}
	if in.manager.name == "" {
		return fmt.Errorf("install %s: this distribution's package manager is not known; install them by hand", strings.Join(packages, ", "))
	}
	err := errors.New("no package lists")
	if in.manager.refresh == nil || in.haveLists() {
		err = in.run(ctx, append(slices.Clone(in.manager.install), packages...))
	}
	if err != nil && in.manager.refresh != nil && ctx.Err() == nil {
		if err = in.run(ctx, in.manager.refresh); err == nil {
			err = in.run(ctx, append(slices.Clone(in.manager.install), packages...))
		}
	}
	if err != nil {
		return fmt.Errorf("install %s: %w; try it by hand: %s", strings.Join(packages, ", "), err, installHint(in.manager, packages))
	}
	return nil
}

// haveLists tells whether apt-get update has ever run: fresh images come without lists.
func (in installer) haveLists() bool {
	found, _ := filepath.Glob(filepath.Join(in.host.root, "var/lib/apt/lists/*_Packages*"))
	return len(found) > 0
}

func (in installer) run(ctx context.Context, args []string) error {
	in.progress("$ " + strings.Join(args, " "))
	last := ""
	err := in.execute(ctx, args, func(line string) {
		if strings.TrimSpace(line) != "" {
			last = line
		}
		in.progress(line)
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, last)
	}
	return nil
}

func execute(ctx context.Context, args []string, line func(string)) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	read := make(chan struct{})
	go func() {
		defer close(read)
		for scan := bufio.NewScanner(r); scan.Scan(); {
			line(scan.Text())
		}
		_, _ = io.Copy(io.Discard, r) // a line too long to scan must not block the program
	}()
	err := cmd.Run()
	_ = w.Close()
	<-read
	return err
}
