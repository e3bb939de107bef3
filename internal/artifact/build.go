// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// Options say what to build.
type Options struct {
	Store   *Store
	Release catalog.Release

	// Progress is told how it goes, from one goroutine at a time. Optional.
	Progress func(Event)
	// Verify reads every blob that is there and makes damaged ones again.
	// Optional: without it a blob is read only if its file was touched since it
	// was last found right; and it is checked when it is taken.
	Verify bool
}

// Build returns the release's bundle and makes what the store does not have
// yet. With nothing to make it returns within milliseconds and needs no Go. It
// may run in several processes at once: the second waits for the first. When
// ctx is done all child processes are dead within a second, and what was
// finished before stays.
func Build(ctx context.Context, o Options) (Bundle, error) {
	b, err := newBuilder(o)
	if err != nil {
		return Bundle{}, err
	}
	if err := b.look(ctx); err != nil {
		return Bundle{}, err
	}
	if !b.complete() {
		if err := b.makeMissing(ctx); err != nil {
			return Bundle{}, err
		}
	}
	return b.bundle, nil
}

// Lookup is Build that makes nothing: ok is false if anything is missing.
func Lookup(ctx context.Context, s *Store, r catalog.Release) (bundle Bundle, ok bool, err error) {
	b, err := newBuilder(Options{Store: s, Release: r})
	if err != nil {
		return Bundle{}, false, err
	}
	if err := b.look(ctx); err != nil {
		return Bundle{}, false, err
	}
	return b.bundle, b.complete(), nil
}

// Recorded is Lookup without a look at the blobs: what was built once and should be there. A record that cannot be believed is
// an error: who asks wants to keep, or to tell, all of it.
func Recorded(ctx context.Context, s *Store, r catalog.Release) (Bundle, error) {
	b, err := newBuilder(Options{Store: s, Release: r})
	if err != nil {
		return Bundle{}, err
	}
	b.believe = true
	err = b.look(ctx)
	return b.bundle, errors.Join(err, b.unsure)
}

type builder struct {
	Options
	recipes []recipe
	begun   time.Time
	bundle  Bundle // what is known to be in the store
	believe bool   // records are enough
	unsure  error  // of records that cannot be read
}

func newBuilder(o Options) (*builder, error) {
	b := &builder{Options: o, begun: time.Now()}
	b.Progress = inTurn(o.Progress)
	for _, c := range o.Release.Components {
		r, err := newRecipe(c)
		if err != nil {
			return nil, err
		}
		b.recipes = append(b.recipes, r)
	}
	return b, nil
}

// look fills the bundle with what the store has.
func (b *builder) look(ctx context.Context) error {
	b.bundle = Bundle{
		Kubernetes: b.Release.Kubernetes, Arch: runtime.GOARCH,
		Binaries: map[string]Blob{}, Images: map[string]Blob{},
	}
	for _, r := range b.recipes {
		files := b.recall(ctx, r.title(), r.key)
		for _, binary := range r.component.Binaries {
			if blob, ok := files[binary.Name]; ok {
				b.bundle.Binaries[binary.Name] = blob
			}
		}
	}
	for _, i := range b.Release.Images() {
		binary, ok := b.bundle.Binaries[i.Binary]
		if !ok {
			continue
		}
		if blob, ok := b.recall(ctx, i.Name, imageKey(i, binary.Digest))[i.Name]; ok {
			b.bundle.Images[i.Name] = blob
		}
	}
	return ctx.Err()
}

// recall gives the files of one record that are in the store. A damaged record
// is told and counts as not there.
func (b *builder) recall(ctx context.Context, title string, k key) map[string]Blob {
	files, _, err := b.Store.recall(k)
	if err != nil {
		b.unsure = errors.Join(b.unsure, err)
		b.Progress(Event{Component: title, Phase: Wait, Line: err.Error() + ": making it again"})
		return nil
	}
	for name, blob := range files {
		if b.believe {
			continue
		}
		if !b.Store.Sound(ctx, blob) || b.Verify && b.Store.Verify(ctx, blob.Digest) != nil {
			delete(files, name)
		}
	}
	return files
}

func (b *builder) binaries() (n int) {
	for _, c := range b.Release.Components {
		n += len(c.Binaries)
	}
	return n
}

func (b *builder) complete() bool {
	return len(b.missing()) == 0 && len(b.bundle.Images) == len(b.Release.Images())
}

func (b *builder) missing() (recipes []recipe) {
	for _, r := range b.recipes {
		for _, binary := range r.component.Binaries {
			if _, ok := b.bundle.Binaries[binary.Name]; !ok {
				recipes = append(recipes, r)
				break
			}
		}
	}
	return recipes
}
