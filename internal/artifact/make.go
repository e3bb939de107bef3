// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

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
