// SPDX-License-Identifier: Apache-2.0

// Package artifact builds and stores the files that nodes run. It consists of a content-addressed store on
// disk and of the bundle of a release, which is built into the store from source or imported from another
// machine.
//
// A blob's hash is checked whenever it is taken out of the store. The package never downloads an image or a
// binary from a registry, and never decides which versions belong together: the catalogue does. Nothing here
// is secret.
//
// Read [Store] and [Bundle] first.
//
//	store, err := artifact.Open("/var/lib/slipway/store")
//	bundle, err := artifact.Build(ctx, artifact.Options{Store: store, Release: release})
//	err = store.Take(ctx, bundle.Binaries["kube"].Digest, "/opt/slipway/bin/kube", 0o755)
//
// On disk:
//
//	blobs/sha256/<hex>   the files, 0755
//	records/<key>        build key → blobs; with a checksum
//	verified/<hex>       file metadata of a blob when its hash was last checked
//	lock                 held during a build or an import
//	tmp/                 incomplete writes; anything found here can be removed
//
// There is no global index that could be damaged: each record describes the result of one build. If a record
// is damaged, the component is built again. Builds are reproducible, so its blobs already exist.
package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

// Digest is "sha256:" and 64 lower-case hex digits, as in plans.
type Digest string

// ParseDigest validates a digest. Digests from outside must pass it before they become part of a path.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, "sha256:")
	if _, err := hex.DecodeString(h); !ok || err != nil || len(h) != 64 || h != strings.ToLower(h) {
		return "", fmt.Errorf("parse digest %q: want sha256: and 64 hex digits", s)
	}
	return Digest(s), nil
}

func (d Digest) String() string { return string(d) }

// Hex is the digest without the prefix "sha256:".
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Blob identifies a file in the store. The size allows cheap checks.
type Blob struct {
	Digest Digest `json:"digest"`
	Size   int64  `json:"size"`
}

// Bundle lists all files of one release by name.
type Bundle struct {
	Kubernetes string          `json:"kubernetes"` // release, such as "1.36.4"
	Arch       string          `json:"arch"`
	Binaries   map[string]Blob `json:"binaries"` // by file name, such as "kube"; links are not included
	Images     map[string]Blob `json:"images"`   // by image reference; each is a tarball for `ctr images import`
}

// ErrDamaged reports that the content of a blob or record does not match its name. Build makes it again.
var ErrDamaged = errors.New("damaged")

// recipe describes how to build one component. The same recipe always gives the same bytes.
type recipe struct {
	component catalog.Component
	files     []source.File
	key       key
}

// newRecipe reads the component's source. The key covers everything that determines the build's output.
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

// field adds strings to a hash with their lengths, so that different lists never hash alike.
func field(h hash.Hash, values ...string) {
	fmt.Fprintf(h, "%d\n", len(values))
	for _, v := range values {
		fmt.Fprintf(h, "%d:%s\n", len(v), v)
	}
}

// title names the component in messages: "etcd 3.6.16".
func (r recipe) title() string { return r.component.Name + " " + r.component.Version }

// about describes the build in a record, for humans.
func (r recipe) about() string {
	return fmt.Sprintf("%s, %s %s", r.title(), runtime.Version(), runtime.GOARCH)
}

// buildArgs are the arguments of the go command. -v prints each package when it is compiled, which gives the
// progress.
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

// goEnv fixes the environment variables that influence the output. GOPROXY, GOCACHE and GOMODCACHE remain the
// user's.
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

var releaseVersion = regexp.MustCompile(`^go1\.[0-9]+(\.[0-9]+)?$`)

// toolchain makes go use the version that this program was built with, so that one slipway version builds the
// same bundle everywhere. An unreleased Go version cannot be requested: "local" then uses what is installed.
func toolchain() string {
	if v := runtime.Version(); releaseVersion.MatchString(v) {
		return v
	}
	return "local"
}
