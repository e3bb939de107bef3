// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/artifact/source"
	"github.com/slipway-project/slipway/internal/core/catalog"
)

// recipe is how one component is built: the same recipe gives the same bytes.
type recipe struct {
	component catalog.Component
	files     []source.File
	key       key
}

func newRecipe(c catalog.Component) (recipe, error) {
	files, err := source.Component(c.Source)
	if err != nil {
		return recipe{}, err
	}
	r := recipe{component: c, files: files}
	h := sha256.New()
	field(h, "component", "1", runtime.GOARCH, runtime.Version())
	for _, b := range c.Binaries {
		field(h, append(goEnv(b), b.Name)...)
		field(h, r.buildArgs(b, "")...)
	}
	for _, f := range files {
		field(h, f.Name, string(f.Data))
	}
	r.key = key(hex.EncodeToString(h.Sum(nil)))
	return r, nil
}

// field hashes strings so that no two lists look alike.
func field(h hash.Hash, values ...string) {
	fmt.Fprintf(h, "%d\n", len(values))
	for _, v := range values {
		fmt.Fprintf(h, "%d:%s\n", len(v), v)
	}
}

func (r recipe) title() string { return r.component.Name + " " + r.component.Version }

// about is for people who read a record.
func (r recipe) about() string {
	return fmt.Sprintf("%s, %s %s", r.title(), runtime.Version(), runtime.GOARCH)
}

// buildArgs are the arguments of go. -v names each package as it is compiled,
// which is the progress.
func (r recipe) buildArgs(b catalog.Binary, out string) []string {
	ld := []string{"-s", "-w", "-buildid="}
	if b.CGO {
		ld = append(ld, "-linkmode external", "-extldflags -static")
	}
	for _, name := range slices.Sorted(maps.Keys(r.component.Stamps)) {
		ld = append(ld, "-X "+name+"="+r.component.Stamps[name])
	}
	return []string{
		"build", "-v", "-trimpath", "-buildvcs=false", "-tags=" + strings.Join(b.Tags, ","),
		"-ldflags=" + strings.Join(ld, " "), "-o", out, b.Package,
	}
}

// goEnv pins all that changes the output. GOPROXY, GOCACHE and GOMODCACHE stay
// the user's.
func goEnv(b catalog.Binary) []string {
	cgo := "0"
	if b.CGO {
		cgo = "1"
	}
	return []string{
		"CGO_ENABLED=" + cgo, "CGO_CFLAGS=-O2 -g", "CGO_LDFLAGS=-O2 -g",
		"GOOS=linux", "GOARCH=" + runtime.GOARCH, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off",
		"GOTOOLCHAIN=" + toolchain(),
	}
}

var plainVersion = regexp.MustCompile(`^go1\.[0-9]+(\.[0-9]+)?$`)

// toolchain makes go use the version that this program was itself built with,
// so that one slipway gives one bundle wherever it builds. An unreleased Go has
// no name that could be asked for.
func toolchain() string {
	if v := runtime.Version(); plainVersion.MatchString(v) {
		return v
	}
	return "local"
}
