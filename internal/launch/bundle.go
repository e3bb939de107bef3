// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
)

// BuildBundle makes what the store lacks of a release.
func (l *Launcher) BuildBundle(ctx context.Context, r catalog.Release, report func(Event)) (artifact.Bundle, error) {
	bundle, _, err := l.Bundle(ctx, r, translate(report))
	return bundle, err
}

// ImportBundle reads an exported bundle into the store.
func (l *Launcher) ImportBundle(ctx context.Context, in io.Reader, report func(Event)) (artifact.Bundle, error) {
	store, err := l.Store()
	if err != nil {
		return artifact.Bundle{}, err
	}
	return artifact.Import(ctx, store, in, translate(report))
}

// ExportBundle writes a release's bundle as one tar file.
func (l *Launcher) ExportBundle(ctx context.Context, r catalog.Release, w io.Writer) error {
	store, err := l.Store()
	if err != nil {
		return err
	}
	return artifact.Export(ctx, store, r, w)
}

func translate(report func(Event)) func(artifact.Event) {
	begun := time.Now()
	return func(e artifact.Event) {
		report(Event{
			Stage: StageBundle, Item: e.Component, Phase: string(e.Phase), Text: e.Line, Done: e.Done, Total: e.Total, Elapsed: time.Since(begun),
		})
	}
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
func (l *Launcher) Parts(ctx context.Context, r catalog.Release) ([]Part, error) {
	have, _, err := l.inStore(ctx, r)
	if err != nil {
		return nil, err
	}
	return partsOf(r, have), nil
}

// BuiltParts is Parts with everything that was built once, also what is damaged or lost by now.
func (l *Launcher) BuiltParts(ctx context.Context, r catalog.Release) ([]Part, error) {
	if _, err := os.Stat(filepath.Join(l.Root, "store")); errors.Is(err, fs.ErrNotExist) {
		return partsOf(r, artifact.Bundle{}), nil
	}
	store, err := l.Store()
	if err != nil {
		return nil, err
	}
	built, err := artifact.Recorded(ctx, store, r)
	if err != nil {
		return nil, fmt.Errorf("%w: slipway bundle build makes it again", err)
	}
	return partsOf(r, built), nil
}

// ErrNoStore says that nothing has been built on this host.
var ErrNoStore = errors.New("there is no component store")

// CollectGarbage removes from the component store what belongs to no release of the catalogue, and tells how many bytes that
// gave and which releases it has kept. Nothing is removed while it is unsure what belongs to one.
func (l *Launcher) CollectGarbage(ctx context.Context) (freed int64, kept []string, err error) {
	if _, err := os.Stat(filepath.Join(l.Root, "store")); errors.Is(err, fs.ErrNotExist) {
		return 0, nil, ErrNoStore
	}
	store, err := l.Store()
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
	return append(parts(r, "file", files, have.Binaries), parts(r, "image", images, have.Images)...)
}

func parts(r catalog.Release, kind string, names map[string]bool, have map[string]artifact.Blob) []Part {
	var out []Part
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, Part{r.Kubernetes, kind, name, have[name].Digest.String(), have[name].Size})
	}
	return out
}

// VerifyPart reads a part and compares it with its digest.
func (l *Launcher) VerifyPart(ctx context.Context, p Part) error {
	if p.Digest == "" {
		return errors.New("it is not built")
	}
	store, err := l.Store()
	if err != nil {
		return err
	}
	switch err = store.Verify(ctx, artifact.Digest(p.Digest)); {
	case errors.Is(err, artifact.ErrDamaged):
		return errors.New("it is damaged, and set aside now")
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it was built, and its file is gone")
	}
	return err
}
