// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Release is one tested set of versions. It is a value to read: nobody changes
// it after Parse, so it may be shared between goroutines.
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
	Source   string            `json:"source"` // folder in components/
	Stamps   map[string]string `json:"stamps"` // linker -X: package.variable → value
	Binaries []Binary          `json:"binaries"`
}

// Binary is one executable file.
type Binary struct {
	Name      string   `json:"name"`    // file name
	Package   string   `json:"package"` // relative to the component's folder, or an import path
	Links     []string `json:"links"`   // other names the file answers to, by argv[0] or first argument
	CGO       bool     `json:"cgo"`     // needs a C compiler; linked statically all the same
	Libraries []string `json:"libraries"`
	Tags      []string `json:"tags"`
}

// Image is a container image of one layer that holds one binary at /name.
type Image struct {
	Name       string   `json:"name"` // full reference, never pulled: imported on every node
	Binary     string   `json:"binary"`
	Entrypoint []string `json:"entrypoint"`
	User       string   `json:"user"` // "uid:gid"
	Dirs       []string `json:"dirs"` // empty folders to make, mode 0755
	// Links are symlinks in the root folder, by name: other names of the binary, or folders that a pod mounts from its machine.
	Links map[string]string `json:"links,omitempty"`
	Files map[string]string `json:"files,omitempty"` // small texts by name, in /etc
	Test  bool              `json:"test"`            // wanted by tests and the benchmark only
}

// Minor is "1.36" for 1.36.4.
func (r Release) Minor() string {
	major, rest, _ := strings.Cut(r.Kubernetes, ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// Images lists all images, those for tests too: see [Image.Test].
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

// Component finds a component by name.
func (r Release) Component(name string) (Component, error) {
	for _, c := range r.Components {
		if c.Name == name {
			return c, nil
		}
	}
	return Component{}, fmt.Errorf("find component %q: not in release %s", name, r.Kubernetes)
}

// Binary finds a binary by its file name or by one of its links.
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

// MayUpgradeTo says whether a cluster of this release may go to next in one
// step: a later patch of the same minor, or an allowed next minor.
func (r Release) MayUpgradeTo(next Release) bool {
	if r.Minor() == next.Minor() {
		return patch(next.Kubernetes) >= patch(r.Kubernetes)
	}
	return slices.Contains(r.NextMinors, next.Minor())
}

// MaxKubeletSkew is how many minors a kubelet may be older than its API server
// (the Kubernetes version skew policy). It may never be newer.
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
