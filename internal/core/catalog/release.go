// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Release is one tested set of versions. It is not changed after Parse, so goroutines may share it.
type Release struct {
	Kubernetes string      `json:"kubernetes"` // "1.36.4"
	NextMinors []string    `json:"nextMinors"` // minors a cluster may be upgraded to; they need not be in the catalogue yet
	Features   []Feature   `json:"features"`
	Components []Component `json:"components"` // longest build first
	ImageSet   []Image     `json:"images"`
}

// Component is one source module and the binaries made from it.
type Component struct {
	Name     string            `json:"name"`
	Version  string            `json:"version"`
	Source   string            `json:"source"` // directory in components/
	Stamps   map[string]string `json:"stamps"` // linker -X: package.variable → value
	Binaries []Binary          `json:"binaries"`
}

// Binary is one executable file.
type Binary struct {
	Name      string   `json:"name"`    // file name
	Package   string   `json:"package"` // relative to the component's directory, or an import path
	Links     []string `json:"links"`   // other names of the file, by argv[0] or first argument
	CGO       bool     `json:"cgo"`     // needs a C compiler; still linked statically
	Libraries []string `json:"libraries"`
	Tags      []string `json:"tags"`
}

// Image is a container image of one layer that holds one binary at /name.
type Image struct {
	Name       string   `json:"name"` // full reference, never pulled: imported on every node
	Binary     string   `json:"binary"`
	Entrypoint []string `json:"entrypoint"`
	User       string   `json:"user"` // "uid:gid"
	Dirs       []string `json:"dirs"` // empty directories, mode 0755
	// Links are symlinks in the root directory, by name: other names of the binary, or directories that a pod mounts from its
	// machine.
	Links map[string]string `json:"links,omitempty"`
	Files map[string]string `json:"files,omitempty"` // small texts by name, in /etc
	Test  bool              `json:"test"`            // only for tests and the benchmark
}

// Minor is "1.36" for 1.36.4.
func (r Release) Minor() string {
	major, rest, _ := strings.Cut(r.Kubernetes, ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// Images returns all images, including those for tests: see [Image.Test].
func (r Release) Images() []Image { return slices.Clone(r.ImageSet) }

// ImageName is the reference of the image made from a binary: ImageName("pause") goes into containerd's
// configuration. Empty: the release has no such image.
func (r Release) ImageName(binary string) string {
	for _, i := range r.ImageSet {
		if i.Binary == binary {
			return i.Name
		}
	}
	return ""
}

// Component returns a component by name.
func (r Release) Component(name string) (Component, error) {
	for _, c := range r.Components {
		if c.Name == name {
			return c, nil
		}
	}
	return Component{}, fmt.Errorf("find component %q: not in release %s", name, r.Kubernetes)
}

// Binary returns a binary by its file name or by one of its links.
func (r Release) Binary(name string) (Binary, error) {
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			if b.Name == name || slices.Contains(b.Links, name) {
				return b, nil
			}
		}
	}
	return Binary{}, fmt.Errorf("find binary %q: not in release %s", name, r.Kubernetes)
}

// MayUpgradeTo reports whether a cluster of this release may be upgraded to next in one step: to a later patch of the same
// minor, or to an allowed next minor.
func (r Release) MayUpgradeTo(next Release) bool {
	if r.Minor() == next.Minor() {
		return patch(next.Kubernetes) >= patch(r.Kubernetes)
	}
	return slices.Contains(r.NextMinors, next.Minor())
}

// MaxKubeletSkew is how many minors a kubelet may be older than its API server (the Kubernetes version skew policy). It may
// never be newer.
const MaxKubeletSkew = 3

func compareMinor(a, b string) int { return minorNumber(a) - minorNumber(b) }

// minorNumber orders versions of one major. Parse has checked the digits.
func minorNumber(version string) int {
	n, _ := strconv.Atoi(strings.Split(version, ".")[1])
	return n
}

func patch(version string) int {
	n, _ := strconv.Atoi(strings.Split(version, ".")[2])
	return n
}

// Feature is something that is true of some releases and not of others. Code asks [Release.Has] and never
// compares versions. A feature that no code asks about is removed.
type Feature string

// CgroupV1Refused: the kubelet exits on a cgroup v1 host unless failCgroupV1 is false (KEP-5573, since 1.35).
const CgroupV1Refused Feature = "CgroupV1Refused"

// features are the names that a release file may use.
var features = []Feature{CgroupV1Refused}

// Has reports whether f is true of this release.
func (r Release) Has(f Feature) bool { return slices.Contains(r.Features, f) }

var (
	versionForm = regexp.MustCompile(`^1\.[0-9]+\.[0-9]+$`)
	minorForm   = regexp.MustCompile(`^1\.[0-9]+$`)
	nameForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`) // safe as a file name
	userForm    = regexp.MustCompile(`^[0-9]+:[0-9]+$`)
)

// Parse reads one release file. It returns all errors: unknown fields and features, duplicate names, and images of binaries
// that do not exist.
func Parse(text []byte) (Release, error) {
	var r Release
	if err := yaml.UnmarshalStrict(text, &r); err != nil {
		return Release{}, fmt.Errorf("parse release: %w", err)
	}
	c := checker{seen: map[string]bool{}}
	c.release(r)
	if len(c.problems) > 0 {
		return Release{}, fmt.Errorf("check release %q: %w", r.Kubernetes, errors.Join(c.problems...))
	}
	return r, nil
}

type checker struct {
	seen     map[string]bool
	problems []error
}

func (c *checker) must(ok bool, format string, args ...any) {
	if !ok {
		c.problems = append(c.problems, fmt.Errorf(format, args...))
	}
}

// name records a name of a kind, which must be well formed and unique.
func (c *checker) name(kind, name string) {
	c.must(nameForm.MatchString(name), "%s %q: bad name", kind, name)
	key := kind + " " + name
	c.must(!c.seen[key], "%s named twice", key)
	c.seen[key] = true
}

func (c *checker) release(r Release) {
	c.must(versionForm.MatchString(r.Kubernetes), "kubernetes %q: want 1.minor.patch", r.Kubernetes)
	for _, m := range r.NextMinors {
		c.must(minorForm.MatchString(m), "next minor %q: want 1.minor", m)
	}
	for _, f := range r.Features {
		c.must(slices.Contains(features, f), "feature %q: unknown", f)
	}
	c.must(len(r.Components) > 0, "no components")
	for _, component := range r.Components {
		c.component(component)
	}
	for _, image := range r.ImageSet {
		c.image(image)
	}
}

func (c *checker) component(component Component) {
	c.name("component", component.Name)
	c.must(nameForm.MatchString(component.Source), "component %s: source %q: bad directory name", component.Name, component.Source)
	c.must(component.Version != "", "component %s: no version", component.Name)
	c.must(len(component.Binaries) > 0, "component %s: no binaries", component.Name)
	for _, b := range component.Binaries {
		c.name("binary", b.Name)
		c.must(b.Package != "", "binary %s: no package", b.Name)
		c.must(b.CGO || len(b.Libraries) == 0, "binary %s: libraries without cgo", b.Name)
		for _, link := range b.Links {
			c.name("binary", link)
		}
	}
}

func (c *checker) image(image Image) {
	c.must(image.Name != "" && !c.seen["image "+image.Name], "image %q: no name, or named twice", image.Name)
	c.seen["image "+image.Name] = true
	c.must(c.seen["binary "+image.Binary], "image %s: binary %q: unknown", image.Name, image.Binary)
	c.must(len(image.Entrypoint) > 0, "image %s: no entrypoint", image.Name)
	for name, target := range image.Links {
		c.must(nameForm.MatchString(name) && target != "" && target[0] != '/', "image %s: link %q to %q: want a plain name and a relative target", image.Name, name, target)
	}
	for name := range image.Files {
		c.must(nameForm.MatchString(name) && name != "passwd" && name != "group", "image %s: file %q: want a plain name that the image does not have", image.Name, name)
	}
	c.must(userForm.MatchString(image.User), "image %s: user %q: want uid:gid", image.Name, image.User)
}
