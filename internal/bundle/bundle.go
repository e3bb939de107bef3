// SPDX-License-Identifier: Apache-2.0

// Package bundle has the operations on this host's component store: build, import, export, list, verify, unpack and clean up
// the bundle of a release. A bundle is everything that one Kubernetes release needs: binaries built from source, and images
// made of them. How a store keeps files and how components are built is package artifact's business.
//
// Read [Store] first.
package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/report"
)

// ErrNoStore means that nothing has been built on this host.
var ErrNoStore = errors.New("no component store")

// Store is the component store in a directory. The directory need not exist; only methods that write create it.
type Store struct {
	Dir string
}

// Open opens the store, and creates it if it does not exist.
func (s Store) Open() (*artifact.Store, error) { return artifact.Open(s.Dir) }

// exists reports whether there is a store, so that a command that only reads does not create one.
func (s Store) exists() bool {
	_, err := os.Stat(s.Dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// Build builds what the store lacks of a release. It may be interrupted at any moment; finished components are kept.
func (s Store) Build(ctx context.Context, r catalog.Release, to report.Func) (artifact.Bundle, error) {
	store, err := s.Open()
	if err != nil {
		return artifact.Bundle{}, err
	}
	b, err := artifact.Build(ctx, artifact.Options{Store: store, Release: r, Progress: progress(to)})
	if err != nil {
		return artifact.Bundle{}, fmt.Errorf("build bundle %s: %w", r.Kubernetes, err)
	}
	return b, nil
}

// Import reads an exported bundle into the store.
func (s Store) Import(ctx context.Context, in io.Reader, to report.Func) (artifact.Bundle, error) {
	store, err := s.Open()
	if err != nil {
		return artifact.Bundle{}, err
	}
	return artifact.Import(ctx, store, in, progress(to))
}

func progress(to report.Func) func(artifact.Event) {
	to = to.Since(time.Now())
	return func(e artifact.Event) {
		to(report.Event{Stage: report.StageBundle, Item: e.Component, Phase: string(e.Phase), Text: e.Line, Done: e.Done, Total: e.Total})
	}
}

// Export writes a release's bundle as one tar file. The same bundle gives the same bytes.
func (s Store) Export(ctx context.Context, r catalog.Release, w io.Writer) error {
	store, err := s.Open()
	if err != nil {
		return err
	}
	return artifact.Export(ctx, store, r, w)
}

// Lookup returns the parts of a release that the store has, and whether that is all of them. It does not create a store.
func (s Store) Lookup(ctx context.Context, r catalog.Release) (have artifact.Bundle, complete bool, err error) {
	if !s.exists() {
		return artifact.Bundle{}, false, nil
	}
	store, err := s.Open()
	if err != nil {
		return artifact.Bundle{}, false, err
	}
	return artifact.Lookup(ctx, store, r)
}

// Unpack copies a release's binaries into a directory, verifying each, and returns how many. It builds what is missing.
func (s Store) Unpack(ctx context.Context, r catalog.Release, dir string) (int, error) {
	b, err := s.Build(ctx, r, nil)
	if err != nil {
		return 0, err
	}
	store, err := s.Open()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, fmt.Errorf("unpack bundle: %w", err)
	}
	for name, blob := range b.Binaries {
		if err := store.Take(ctx, blob.Digest, filepath.Join(dir, name), 0o755); err != nil {
			return 0, fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	return len(b.Binaries), nil
}

// Runc is the path of the runc of the newest release in the store. Without one it is the host's runc, or empty, so that a
// cluster can be removed after its components are gone.
func (s Store) Runc(ctx context.Context) string {
	if store, err := s.Open(); err == nil {
		for _, r := range catalog.Releases() {
			if b, ok, err := artifact.Lookup(ctx, store, r); ok && err == nil {
				return store.Path(b.Binaries["runc"].Digest)
			}
		}
	}
	path, _ := exec.LookPath("runc")
	return path
}

// Part is one file or image of a release. Without a digest it is not in the store.
type Part struct {
	Release string `json:"release"`
	Kind    string `json:"kind"` // "file" or "image"
	Name    string `json:"name"`
	Digest  string `json:"digest,omitempty"`
	Size    int64  `json:"size,omitempty"`
}

// Parts lists what a release consists of, files first, by name. It changes nothing.
func (s Store) Parts(ctx context.Context, r catalog.Release) ([]Part, error) {
	have, _, err := s.Lookup(ctx, r)
	if err != nil {
		return nil, err
	}
	return partsOf(r, have), nil
}

// BuiltParts is Parts with everything that has ever been built, including what is damaged or lost by now.
func (s Store) BuiltParts(ctx context.Context, r catalog.Release) ([]Part, error) {
	if !s.exists() {
		return partsOf(r, artifact.Bundle{}), nil
	}
	store, err := s.Open()
	if err != nil {
		return nil, err
	}
	built, err := artifact.Recorded(ctx, store, r)
	if err != nil {
		return nil, fmt.Errorf("%w: rebuild it with slipway bundle build", err)
	}
	return partsOf(r, built), nil
}

func partsOf(r catalog.Release, have artifact.Bundle) []Part {
	files, images := map[string]bool{}, map[string]bool{}
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			files[b.Name] = true
		}
	}
	for _, i := range r.Images() {
		images[i.Name] = true
	}
	var out []Part
	for _, name := range slices.Sorted(maps.Keys(files)) {
		out = append(out, Part{r.Kubernetes, "file", name, have.Binaries[name].Digest.String(), have.Binaries[name].Size})
	}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		out = append(out, Part{r.Kubernetes, "image", name, have.Images[name].Digest.String(), have.Images[name].Size})
	}
	return out
}

// Verify reads a part and compares it with its digest.
func (s Store) Verify(ctx context.Context, p Part) error {
	if p.Digest == "" {
		return errors.New("not built")
	}
	store, err := s.Open()
	if err != nil {
		return err
	}
	switch err = store.Verify(ctx, artifact.Digest(p.Digest)); {
	case errors.Is(err, artifact.ErrDamaged):
		return errors.New("damaged, and now set aside")
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("built, but its file is missing")
	}
	return err
}

// CollectGarbage removes from the store what belongs to no release of the catalogue, and returns how many bytes that freed
// and which releases it kept. It removes nothing while it is unknown what belongs to a release.
func (s Store) CollectGarbage(ctx context.Context) (freed int64, kept []string, err error) {
	if !s.exists() {
		return 0, nil, ErrNoStore
	}
	store, err := s.Open()
	if err != nil {
		return 0, nil, err
	}
	var keep []artifact.Bundle
	for _, r := range catalog.Releases() {
		b, err := artifact.Recorded(ctx, store, r)
		if err != nil {
			return 0, nil, fmt.Errorf("%w: run slipway bundle build --kubernetes-version %s first", err, r.Minor())
		}
		if len(b.Binaries) > 0 {
			keep, kept = append(keep, b), append(kept, r.Kubernetes)
		}
	}
	freed, err = artifact.GC(ctx, store, keep...)
	return freed, kept, err
}

// Digests is a bundle as the planner needs it: the name of each binary and image with its digest.
func Digests(b artifact.Bundle) planner.Components {
	out := planner.Components{}
	for name, blob := range b.Binaries {
		out[name] = blob.Digest.String()
	}
	for name, blob := range b.Images {
		out[name] = blob.Digest.String()
	}
	return out
}

// NotBuilt takes the place of the digest of a component that is not in the store.
const NotBuilt = "not-built"

// Placeholders is [Digests] of a release of which nothing is built.
func Placeholders(r catalog.Release) planner.Components {
	out := planner.Components{}
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			out[b.Name] = NotBuilt
		}
	}
	for _, i := range r.Images() {
		out[i.Name] = NotBuilt
	}
	return out
}
