// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// ErrNoTool marks a build that cannot start because a program or library is
// not installed. The message says what to install.
var ErrNoTool = errors.New("tool is missing")

// debian names the Debian package of each thing a build may need.
var debian = map[string]string{
	"gcc":        "gcc libc6-dev",
	"pkg-config": "pkg-config",
	"libseccomp": "libseccomp-dev",
}

// checkTools finds go, and all that the components' C parts need, before
// anything is downloaded. It returns the path of go.
func checkTools(ctx context.Context, missing []recipe) (goPath string, err error) {
	goPath, err = findGo(ctx)
	if err != nil {
		return "", err
	}
	var absent []string
	need := func(there bool, tool string) {
		if !there && !slices.Contains(absent, tool) {
			absent = append(absent, tool)
		}
	}
	var who string
	for _, r := range missing {
		for _, b := range r.component.Binaries {
			if !b.CGO {
				continue
			}
			who = r.title()
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
	return "", fmt.Errorf("build %s: %w: %s (try: apt-get install %s)", who, ErrNoTool, strings.Join(absent, ", "), packages(absent))
}

func packages(tools []string) string {
	var names []string
	for _, t := range tools {
		if p, ok := debian[t]; ok {
			t = p
		}
		names = append(names, t)
	}
	return strings.Join(names, " ")
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return strings.Fields(cc)[0]
	}
	return "gcc"
}

func found(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// findGo looks in PATH and where Go's own installer puts it, which sudo's PATH
// leaves out. The version must be the one of this program; a Go of 1.21 or
// later fetches it when it is another.
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
		return "", fmt.Errorf("find go: %w: %s is %s, which cannot fetch %s: install Go 1.21 or later", ErrNoTool, path, version, toolchain())
	}
	return path, nil
}

// environment is the process's, with a home for Go's caches: services have none.
func environment() []string {
	env := os.Environ()
	if os.Getenv("HOME") == "" {
		env = append(env, "HOME=/root")
	}
	return env
}
