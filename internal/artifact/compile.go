// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// compilation runs go for one component in a directory of its own.
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

// binary downloads the modules before it compiles, so that the progress distinguishes the two: go list
// fetches exactly what the build reads.
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
		phase := Compile
		if packages > 0 && compiled >= packages {
			phase = Link // an estimate: with packages in Go's cache, it stays at Compile
		}
		c.report(Event{Binary: b.Name, Phase: phase, Done: compiled, Total: packages, Line: line})
	})
	if err != nil {
		return fmt.Errorf("compile %s: %w", b.Name, err)
	}
	return nil
}

// gocmd runs go in its own process group, and kills the group, including compilers and linker, when ctx ends.
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

// ErrNoTool reports that a build cannot start because a program or library is not installed. The message says
// which.
var ErrNoTool = errors.New("tool is missing")

// checkTools finds go, and everything that the components' C code needs, before anything is downloaded. It
// returns the path of go.
func checkTools(ctx context.Context, missing []recipe) (goPath string, err error) {
	goPath, err = findGo(ctx)
	if err != nil {
		return "", err
	}
	var absent []string
	need := func(installed bool, tool string) {
		if !installed && !slices.Contains(absent, tool) {
			absent = append(absent, tool)
		}
	}
	var needing string
	for _, r := range missing {
		for _, b := range r.component.Binaries {
			if !b.CGO {
				continue
			}
			needing = r.title()
			need(found(compiler()), "gcc")
			need(len(b.Libraries) == 0 || found("pkg-config"), "pkg-config")
			for _, l := range b.Libraries {
				need(exec.CommandContext(ctx, "pkg-config", "--exists", l).Run() == nil, l)
			}
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if len(absent) == 0 {
		return goPath, nil
	}
	return "", fmt.Errorf("build %s: %w: %s (run slipway preflight --install)", needing, ErrNoTool, strings.Join(absent, ", "))
}

// compiler is the C compiler that cgo uses.
func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return strings.Fields(cc)[0]
	}
	return "gcc"
}

// found reports whether a program is in PATH.
func found(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// findGo looks in PATH and where Go's installer puts it, which is not in sudo's PATH. Go 1.21 or later
// fetches the version of this program if it is a different one.
func findGo(ctx context.Context) (string, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		path, err = exec.LookPath("/usr/local/go/bin/go")
	}
	if err != nil {
		return "", fmt.Errorf("find go: %w: install Go 1.21 or later (it fetches %s), or import a bundle", ErrNoTool, toolchain())
	}
	c := exec.CommandContext(ctx, path, "env", "GOVERSION")
	c.Env = append(environment(), goEnv(catalog.Binary{})...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	version := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("ask %s for %s: %w: %s", path, toolchain(), err, bytes.TrimSpace(stderr.Bytes()))
	}
	if toolchain() != "local" && version != toolchain() {
		return "", fmt.Errorf("find go: %w: %s has version %s and cannot fetch %s: install Go 1.21 or later", ErrNoTool, path, version, toolchain())
	}
	return path, nil
}

// environment is that of this process, with HOME for Go's caches: services may have none.
func environment() []string {
	env := os.Environ()
	if os.Getenv("HOME") == "" {
		env = append(env, "HOME=/root")
	}
	return env
}
