// SPDX-License-Identifier: Apache-2.0

// Package catalog holds the releases that Slipway can launch. A release is one tested set: a Kubernetes version determines
// every other version, how each binary is built, which images exist, and what its programs know.
//
// It is data and parsing only: it builds and fetches nothing. A version that is not in the embedded files does not exist.
//
// Read [Release] and [Binary] first.
//
//	r, err := catalog.Find("1.36")   // or "1.36.4", or "v1.36.4"
//	b, err := r.Binary("kubelet")    // b.Name == "kube": kubelet is a link to it
//	if r.Has(catalog.CgroupV1Refused) { … }
package catalog

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

//go:embed data/*.yaml
var files embed.FS

//go:embed data/flags-*.txt
var flagFiles embed.FS

// Releases returns all releases, oldest minor first. The caller owns the slice, but not what its elements point to.
func Releases() []Release {
	return slices.Clone(load())
}

// Default returns the newest release, for specs that name none.
func Default() Release {
	all := load()
	return all[len(all)-1]
}

// Find returns the release of a minor ("1.36") or a patch version ("1.36.4"), with or without "v". A patch version must be
// the one that was tested.
func Find(version string) (Release, error) {
	wanted := strings.TrimPrefix(version, "v")
	var known []string
	for _, r := range load() {
		if wanted == r.Kubernetes || wanted == r.Minor() {
			return r, nil
		}
		known = append(known, r.Kubernetes)
	}
	return Release{}, fmt.Errorf("find release %q: not in the catalogue, which has %s", version, strings.Join(known, ", "))
}

// load panics on a bad embedded file: the build is broken, which the tests of this package detect.
var load = sync.OnceValue(func() []Release {
	names, err := files.ReadDir("data")
	if err != nil {
		panic(err)
	}
	var all []Release
	for _, name := range names {
		text, err := files.ReadFile(path.Join("data", name.Name()))
		if err != nil {
			panic(err)
		}
		r, err := Parse(text)
		if err != nil {
			panic(fmt.Sprintf("catalog: %s: %v", name.Name(), err))
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Release) int { return compareMinor(a.Minor(), b.Minor()) })
	return all
})
