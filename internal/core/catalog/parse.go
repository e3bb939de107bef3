// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

var (
	versionForm = regexp.MustCompile(`^1\.[0-9]+\.[0-9]+$`)
	minorForm   = regexp.MustCompile(`^1\.[0-9]+$`)
	nameForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`) // safe as a file name
	userForm    = regexp.MustCompile(`^[0-9]+:[0-9]+$`)
)

// Parse reads one release file. Unknown fields, unknown features, names used
// twice and images of binaries that do not exist are errors; it returns all
// that it finds.
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

// name records a name of a kind, which must be well formed and new.
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
	c.must(nameForm.MatchString(component.Source), "component %s: source %q: bad folder name", component.Name, component.Source)
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
