// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// compilation runs go for one component in a folder of its own.
type compilation struct {
	recipe recipe
	goPath string
	dir    string // removed by the caller
	reporter
}

// run builds every binary and returns the files by name.
func (c compilation) run(ctx context.Context) (map[string]string, error) {
	src, tmp := filepath.Join(c.dir, "src"), filepath.Join(c.dir, "tmp")
	for _, f := range c.recipe.files {
		path := filepath.Join(src, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("unpack source: %w", err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			return nil, fmt.Errorf("unpack source: %w", err)
		}
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return nil, fmt.Errorf("unpack source: %w", err)
	}
	built := map[string]string{}
	for _, b := range c.recipe.component.Binaries {
		out := filepath.Join(c.dir, "out", b.Name)
		if err := c.binary(ctx, b, src, out); err != nil {
			return nil, err
		}
		built[b.Name] = out
	}
	return built, nil
}

// binary downloads first, so that progress can tell the two apart: go list
// fetches exactly what the build will read.
func (c compilation) binary(ctx context.Context, b catalog.Binary, src, out string) error {
	modules, packages := 0, 0
	c.report(Event{Binary: b.Name, Phase: Download})
	list := []string{"list", "-deps", "-tags=" + strings.Join(b.Tags, ","), "-f={{.ImportPath}}", b.Package}
	err := c.gocmd(ctx, b, src, list, func(string) { packages++ }, func(line string) {
		if module, ok := strings.CutPrefix(line, "go: downloading "); ok {
			modules++
			c.report(Event{Binary: b.Name, Phase: Download, Done: modules, Line: module})
		}
	})
	if err != nil {
		return fmt.Errorf("download modules of %s: %w", b.Name, err)
	}
	compiled := 0
	c.report(Event{Binary: b.Name, Phase: Compile, Total: packages})
	err = c.gocmd(ctx, b, src, c.recipe.buildArgs(b, out), func(string) {}, func(line string) {
		compiled++
		c.report(Event{Binary: b.Name, Phase: phaseAt(compiled, packages), Done: compiled, Total: packages, Line: line})
	})
	if err != nil {
		return fmt.Errorf("compile %s: %w", b.Name, err)
	}
	return nil
}

// phaseAt guesses that the linker runs once all packages were named. When some
// were in Go's cache the guess errs to Compile.
func phaseAt(compiled, packages int) Phase {
	if packages > 0 && compiled >= packages {
		return Link
	}
	return Compile
}

// gocmd runs go in a process group of its own and kills the group when ctx is
// done, compilers and linker included.
func (c compilation) gocmd(ctx context.Context, b catalog.Binary, src string, args []string, out, err func(line string)) error {
	cmd := exec.CommandContext(ctx, c.goPath, args...)
	cmd.Dir = src
	cmd.Env = append(append(environment(), goEnv(b)...), "GOTMPDIR="+filepath.Join(c.dir, "tmp"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	cmd.WaitDelay = 500 * time.Millisecond
	stdout, stderr := &lines{each: out}, &lines{each: err}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w\n%s", err, stderr)
	}
	return nil
}
