// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// Options say what to build.
type Options struct {
	Store   *Store
	Release catalog.Release

	// Progress is told how it goes, from one goroutine at a time. Optional.
	Progress func(Event)
	// Verify reads every blob that is there and makes damaged ones again.
	// Optional: without it a blob is checked when it is taken.
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

type builder struct {
	Options
	recipes []recipe
	begun   time.Time
	bundle  Bundle // what is known to be in the store
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
		b.Progress(Event{Component: title, Phase: Wait, Line: err.Error() + ": making it again"})
		return nil
	}
	for name, blob := range files {
		if !b.Store.Has(blob) || b.Verify && b.Store.Verify(ctx, blob.Digest) != nil {
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

// makeMissing looks again once it has the lock: the one it waited for may have
// made everything.
func (b *builder) makeMissing(ctx context.Context) error {
	about := "building the bundle of Kubernetes " + b.Release.Kubernetes
	unlock, err := b.Store.lock(ctx, about, func(holder string) {
		b.Progress(Event{Phase: Wait, Line: "waiting for " + holder, Elapsed: time.Since(b.begun)})
	})
	if err != nil {
		return err
	}
	defer unlock()
	b.Store.sweep()
	if err := b.look(ctx); err != nil {
		return err
	}
	if err := b.compile(ctx, b.missing()); err != nil {
		return err
	}
	for _, i := range b.Release.Images() {
		if err := b.pack(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// compile keeps two components in flight: one links on a single core while the
// other compiles. The catalogue lists the longest first.
func (b *builder) compile(ctx context.Context, missing []recipe) error {
	if len(missing) == 0 {
		return nil
	}
	goPath, err := checkTools(ctx, missing)
	if err != nil {
		return err
	}
	made := make([]map[string]Blob, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for n, r := range missing {
		group.Go(func() (err error) {
			made[n], err = b.component(ctx, r, goPath)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, files := range made {
		for name, blob := range files {
			b.bundle.Binaries[name] = blob
		}
	}
	return nil
}

// component builds one component and remembers it at once: a later failure or
// crash does not cost it.
func (b *builder) component(ctx context.Context, r recipe, goPath string) (map[string]Blob, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.Store.tmp(), "work-")
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", r.title(), err)
	}
	defer os.RemoveAll(dir)
	report := reporter{component: r.title(), begun: time.Now(), send: b.Progress}
	built, err := compilation{recipe: r, goPath: goPath, dir: dir, reporter: report}.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", r.title(), err)
	}
	files := map[string]Blob{}
	for name, path := range built {
		if files[name], err = b.Store.AddFile(ctx, path); err != nil {
			return nil, fmt.Errorf("build %s: %w", r.title(), err)
		}
	}
	if err := b.Store.remember(r.key, r.about(), files); err != nil {
		return nil, err
	}
	report.report(Event{Phase: Finished})
	return files, nil
}

func (b *builder) pack(ctx context.Context, i catalog.Image) error {
	binary := b.bundle.Binaries[i.Binary]
	k := imageKey(i, binary.Digest)
	if _, ok := b.bundle.Images[i.Name]; ok {
		return nil
	}
	report := reporter{component: i.Name, begun: time.Now(), send: b.Progress}
	report.report(Event{Phase: Pack})
	blob, err := packImage(ctx, b.Store, i, binary)
	if err != nil {
		return err
	}
	if err := b.Store.remember(k, "image "+i.Name, map[string]Blob{i.Name: blob}); err != nil {
		return err
	}
	b.bundle.Images[i.Name] = blob
	report.report(Event{Phase: Finished})
	return nil
}

// sweep removes what a killed build left behind. The caller holds the lock, so
// no build is alive; a fresh file may be of an Add, which needs no lock.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.tmp())
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && (strings.HasPrefix(e.Name(), "work-") || time.Since(info.ModTime()) > time.Hour) {
			_ = os.RemoveAll(filepath.Join(s.tmp(), e.Name()))
		}
	}
}
