// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/strictjson"
)

const (
	manifestName    = "bundle.json"
	manifestVersion = 1
	manifestLimit   = 1 << 20
	blobPrefix      = "blobs/sha256/"
)

// manifest is the first entry of an exported bundle. The blobs follow in the order of their hashes, each once.
type manifest struct {
	Version int              `json:"version"`
	Bundle  Bundle           `json:"bundle"`
	Records map[key]exported `json:"records"`
}

// exported is a record of the store in a manifest.
type exported struct {
	About string          `json:"about"`
	Files map[string]Blob `json:"files"`
}

// Export writes a complete bundle as one tar file, for a machine without Go or without a network. The same
// bundle always gives the same file.
func Export(ctx context.Context, s *Store, r catalog.Release, w io.Writer) error {
	b, err := newBuilder(Options{Store: s, Release: r})
	if err != nil {
		return err
	}
	if err := b.lookUp(ctx); err != nil {
		return err
	}
	if !b.complete() {
		return fmt.Errorf("export bundle: Kubernetes %s is not in the store: build it first with slipway bundle build", r.Kubernetes)
	}
	m := manifest{Version: manifestVersion, Bundle: b.bundle, Records: b.records()}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("export bundle: %w", err)
	}
	out := tar.NewWriter(w)
	put := func(name string, mode, size int64, write func(io.Writer) error) error {
		return errors.Join(out.WriteHeader(entry(name, tar.TypeReg, mode, size)), write(out), out.Flush())
	}
	err = put(manifestName, 0o644, int64(len(text)), func(w io.Writer) error { _, err := w.Write(text); return err })
	if err != nil {
		return fmt.Errorf("export bundle: %w", err)
	}
	blobs := b.bundle.blobs()
	for _, d := range slices.Sorted(maps.Keys(blobs)) {
		err := put(blobPrefix+d.Hex(), 0o755, blobs[d], func(w io.Writer) error { return s.copyTo(ctx, d, w) })
		if err != nil {
			return fmt.Errorf("export bundle: %w", err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("export bundle: %w", err)
	}
	return nil
}

// finder is [catalog.Find], except in tests.
type finder func(version string) (catalog.Release, error)

// blobs lists the size of each blob.
func (b Bundle) blobs() map[Digest]int64 {
	all := map[Digest]int64{}
	for _, files := range []map[string]Blob{b.Binaries, b.Images} {
		for _, blob := range files {
			all[blob.Digest] = blob.Size
		}
	}
	return all
}

// records reconstructs the store's records from a complete bundle.
func (b *builder) records() map[key]exported {
	all := map[key]exported{}
	for _, r := range b.recipes {
		files := map[string]Blob{}
		for _, binary := range r.component.Binaries {
			files[binary.Name] = b.bundle.Binaries[binary.Name]
		}
		all[r.key] = exported{About: r.about(), Files: files}
	}
	for _, i := range b.Release.Images() {
		k := imageKey(i, b.bundle.Binaries[i.Binary].Digest)
		all[k] = exported{About: "image " + i.Name, Files: map[string]Blob{i.Name: b.bundle.Images[i.Name]}}
	}
	return all
}

// Import reads a file written by Export into the store. Every blob's hash is checked before it is stored. The
// bundle must be complete and built from the same sources with the same Go version as this program; then
// Build finds it and needs no Go. Hashes show that the file is complete, not who made it: the caller must
// trust its origin.
//
// Progress counts blobs; it is optional.
func Import(ctx context.Context, s *Store, file io.Reader, progress func(Event)) (Bundle, error) {
	return importFor(ctx, s, file, serialized(progress), catalog.Find)
}

// importFor is Import with another catalogue.
func importFor(ctx context.Context, s *Store, file io.Reader, progress func(Event), find finder) (Bundle, error) {
	unlock, err := s.lock(ctx, "importing a bundle", func(holder string) {
		progress(Event{Phase: Wait, Line: "waiting for " + holder})
	})
	if err != nil {
		return Bundle{}, err
	}
	defer unlock()
	in := tar.NewReader(reader{ctx, file})
	m, err := readManifest(in, find)
	if err != nil {
		return Bundle{}, fmt.Errorf("import bundle: %w", err)
	}
	if err := importBlobs(ctx, s, in, m.Bundle.blobs(), progress); err != nil {
		return Bundle{}, fmt.Errorf("import bundle: %w", err)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Records)) {
		if err := s.saveRecord(k, m.Records[k].About, m.Records[k].Files); err != nil {
			return Bundle{}, fmt.Errorf("import bundle: %w", err)
		}
	}
	return m.Bundle, nil
}

// readManifest reads and checks the first entry.
func readManifest(in *tar.Reader, find finder) (manifest, error) {
	head, err := in.Next()
	if err != nil {
		return manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	if head.Name != manifestName || head.Typeflag != tar.TypeReg || head.Size > manifestLimit {
		return manifest{}, fmt.Errorf("read %s: not an exported bundle: the first entry is %q", manifestName, head.Name)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	var m manifest
	if err := strictjson.Decode(text, &m); err != nil {
		return manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	if m.Version != manifestVersion {
		return manifest{}, fmt.Errorf("read %s: version %d, want %d", manifestName, m.Version, manifestVersion)
	}
	return m, m.check(find)
}

// check requires that this program would have written the same manifest: the same build keys and the same names.
func (m manifest) check(find finder) error {
	for d := range m.Bundle.blobs() {
		if _, err := ParseDigest(d.String()); err != nil {
			return fmt.Errorf("check %s: %w", manifestName, err)
		}
	}
	release, err := find(m.Bundle.Kubernetes)
	if err != nil {
		return fmt.Errorf("check %s: %w", manifestName, err)
	}
	b, err := newBuilder(Options{Release: release})
	if err != nil {
		return err
	}
	b.bundle = m.Bundle
	if !b.complete() || len(m.Bundle.Binaries) != b.binaries() {
		return fmt.Errorf("check %s: the files do not match those of Kubernetes %s", manifestName, release.Kubernetes)
	}
	wanted := b.records()
	for k, w := range wanted {
		if got, ok := m.Records[k]; !ok || !maps.Equal(got.Files, w.Files) {
			return fmt.Errorf("check %s: %s: built by another version of slipway or for another architecture: export and import with the same version",
				manifestName, w.About)
		}
	}
	if len(m.Records) != len(wanted) {
		return fmt.Errorf("check %s: contains records that do not belong to Kubernetes %s", manifestName, release.Kubernetes)
	}
	return nil
}

// importBlobs requires every wanted blob exactly once, and no other entries such as directories or links.
func importBlobs(ctx context.Context, s *Store, in *tar.Reader, wanted map[Digest]int64, progress func(Event)) error {
	total := len(wanted)
	for {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read entry: %w", err)
		}
		h, isBlob := strings.CutPrefix(head.Name, blobPrefix)
		d := Digest("sha256:" + h)
		size, expected := wanted[d]
		if !isBlob || !expected || head.Typeflag != tar.TypeReg || head.Size != size {
			return fmt.Errorf("read entry %q: not a blob of this bundle", head.Name)
		}
		if _, err := s.add(ctx, in, &Blob{Digest: d, Size: size}); err != nil {
			return fmt.Errorf("read entry %q: %w", head.Name, err)
		}
		delete(wanted, d)
		progress(Event{Phase: Copy, Done: total - len(wanted), Total: total})
	}
	if len(wanted) > 0 {
		return fmt.Errorf("read entries: the file is truncated: %d blobs are missing", len(wanted))
	}
	return nil
}
