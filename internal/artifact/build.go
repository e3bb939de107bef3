// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// Options are the parameters of [Build].
type Options struct {
	Store   *Store
	Release catalog.Release

	// Progress receives the events, one call at a time. Optional.
	Progress func(Event)
	// Verify reads every existing blob and makes damaged ones again. Optional: without it, Build reads a blob
	// only if the file has changed since its last verification. Take always checks.
	Verify bool
}

// Build returns the release's bundle and builds what the store lacks. If nothing is missing, it returns
// within milliseconds and needs no Go. Concurrent builds, also of other processes, wait for each other. When
// ctx ends, all child processes are killed within a second; components that were finished stay in the store.
func Build(ctx context.Context, o Options) (Bundle, error) {
	b, err := newBuilder(o)
	if err != nil {
		return Bundle{}, err
	}
	if err := b.lookUp(ctx); err != nil {
		return Bundle{}, err
	}
	if !b.complete() {
		if err := b.buildMissing(ctx); err != nil {
			return Bundle{}, err
		}
	}
	return b.bundle, nil
}

// Lookup returns the release's bundle without building anything: ok is false if something is missing.
func Lookup(ctx context.Context, s *Store, r catalog.Release) (bundle Bundle, ok bool, err error) {
	b, err := newBuilder(Options{Store: s, Release: r})
	if err != nil {
		return Bundle{}, false, err
	}
	if err := b.lookUp(ctx); err != nil {
		return Bundle{}, false, err
	}
	return b.bundle, b.complete(), nil
}

// Recorded returns the bundle according to the records alone, without checking that the blobs exist. A record
// that cannot be read is an error, because callers need the complete list.
func Recorded(ctx context.Context, s *Store, r catalog.Release) (Bundle, error) {
	b, err := newBuilder(Options{Store: s, Release: r})
	if err != nil {
		return Bundle{}, err
	}
	b.trustRecords = true
	err = b.lookUp(ctx)
	return b.bundle, errors.Join(err, b.recordErrs)
}

// builder is the state of one Build, Lookup, Export or Import.
type builder struct {
	Options
	recipes []recipe
	begun   time.Time
	bundle  Bundle // what is in the store

	trustRecords bool  // do not check the blobs
	recordErrs   error // records that could not be read
}

// newBuilder reads the recipes of the release's components.
func newBuilder(o Options) (*builder, error) {
	b := &builder{Options: o, begun: time.Now()}
	b.Progress = serialized(o.Progress)
	for _, c := range o.Release.Components {
		r, err := newRecipe(c)
		if err != nil {
			return nil, err
		}
		b.recipes = append(b.recipes, r)
	}
	return b, nil
}

// lookUp fills in the bundle with what the store has.
func (b *builder) lookUp(ctx context.Context) error {
	b.bundle = Bundle{
		Kubernetes: b.Release.Kubernetes, Arch: runtime.GOARCH,
		Binaries: map[string]Blob{}, Images: map[string]Blob{},
	}
	for _, r := range b.recipes {
		files := b.recorded(ctx, r.title(), r.key)
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
		if blob, ok := b.recorded(ctx, i.Name, imageKey(i, binary.Digest))[i.Name]; ok {
			b.bundle.Images[i.Name] = blob
		}
	}
	return ctx.Err()
}

// recorded returns the files of one record that are in the store. It reports a damaged record and treats it
// as missing.
func (b *builder) recorded(ctx context.Context, title string, k key) map[string]Blob {
	files, _, err := b.Store.loadRecord(k)
	if err != nil {
		b.recordErrs = errors.Join(b.recordErrs, err)
		b.Progress(Event{Component: title, Phase: Wait, Line: err.Error() + ": building it again"})
		return nil
	}
	for name, blob := range files {
		if b.trustRecords {
			continue
		}
		if !b.Store.Sound(ctx, blob) || b.Verify && b.Store.Verify(ctx, blob.Digest) != nil {
			delete(files, name)
		}
	}
	return files
}

// binaries is the number of binaries in the release.
func (b *builder) binaries() (n int) {
	for _, c := range b.Release.Components {
		n += len(c.Binaries)
	}
	return n
}

// complete reports whether the store has every binary and image.
func (b *builder) complete() bool {
	return len(b.missing()) == 0 && len(b.bundle.Images) == len(b.Release.Images())
}

// missing lists the components that lack a binary.
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

// buildMissing builds under the lock, after looking up again: the previous holder may have built everything.
func (b *builder) buildMissing(ctx context.Context) error {
	about := "building the bundle of Kubernetes " + b.Release.Kubernetes
	unlock, err := b.Store.lock(ctx, about, func(holder string) {
		b.Progress(Event{Phase: Wait, Line: "waiting for " + holder, Elapsed: time.Since(b.begun)})
	})
	if err != nil {
		return err
	}
	defer unlock()
	b.Store.cleanTmp()
	if err := b.lookUp(ctx); err != nil {
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

// compile builds two components at a time, because one links on a single core while the other compiles. The
// catalogue lists the slowest first.
func (b *builder) compile(ctx context.Context, missing []recipe) error {
	if len(missing) == 0 {
		return nil
	}
	goPath, err := checkTools(ctx, missing)
	if err != nil {
		return err
	}
	built := make([]map[string]Blob, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for n, r := range missing {
		group.Go(func() (err error) {
			built[n], err = b.buildComponent(ctx, r, goPath)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, files := range built {
		for name, blob := range files {
			b.bundle.Binaries[name] = blob
		}
	}
	return nil
}

// buildComponent builds one component and records it at once, so that a later failure does not lose it.
func (b *builder) buildComponent(ctx context.Context, r recipe, goPath string) (map[string]Blob, error) {
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
	if err := b.Store.saveRecord(r.key, r.about(), files); err != nil {
		return nil, err
	}
	report.report(Event{Phase: Finished})
	return files, nil
}

// pack makes one image, unless it exists, and records it.
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
	if err := b.Store.saveRecord(k, "image "+i.Name, map[string]Blob{i.Name: blob}); err != nil {
		return err
	}
	b.bundle.Images[i.Name] = blob
	report.report(Event{Phase: Finished})
	return nil
}

// cleanTmp removes what interrupted builds have left. The caller holds the lock, so no build is running; but
// a recent file may belong to an Add, which does not lock.
func (s *Store) cleanTmp() {
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

// Phase is the current activity of a component.
type Phase string

// The phases, in order.
const (
	Wait     Phase = "wait"     // another process builds; Line names it
	Download Phase = "download" // Done counts modules
	Compile  Phase = "compile"  // Done counts packages; Total is an upper bound, because cached ones are not counted
	Link     Phase = "link"
	Pack     Phase = "image"
	Copy     Phase = "copy"     // import; Done counts blobs
	Finished Phase = "finished" // the component or image is in the store
)

// Event reports the progress of a build. The events of one component are in order; those of different
// components interleave.
type Event struct {
	Component string // name and version: "etcd 3.6.16"; an image reference; empty for the whole bundle
	Binary    string // which of the component's binaries; may be empty
	Phase     Phase
	Done      int
	Total     int           // 0 if unknown
	Line      string        // last line of output
	Elapsed   time.Duration // since the start of this component
}

// reporter sends events of one component.
type reporter struct {
	component string
	begun     time.Time
	send      func(Event)
}

// report sends e with the component's name and the elapsed time.
func (r reporter) report(e Event) {
	e.Component = r.component
	e.Elapsed = time.Since(r.begun)
	r.send(e)
}

// serialized returns a function that calls f, if not nil, one call at a time.
func serialized(f func(Event)) func(Event) {
	if f == nil {
		return func(Event) {}
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		f(e)
	}
}

// lines is a writer that calls each with every complete line, and keeps the last 20 for an error message. It
// is not safe for concurrent use.
type lines struct {
	each func(line string)
	rest []byte
	tail []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		text := string(line)
		l.tail = append(l.tail, text)
		l.tail = l.tail[max(0, len(l.tail)-20):]
		l.each(text)
		l.rest = rest
	}
}

// String returns the last lines without those of successful downloads.
func (l *lines) String() string {
	var kept []string
	for _, line := range append(l.tail, string(l.rest)) {
		if line != "" && !strings.HasPrefix(line, "go: downloading ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
