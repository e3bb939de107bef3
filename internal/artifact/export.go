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

	"github.com/slipway-project/slipway/internal/core/catalog"
)

const (
	manifestName    = "bundle.json"
	manifestVersion = 1
	manifestLimit   = 1 << 20
	blobPrefix      = "blobs/sha256/"
)

// manifest is the first entry of an exported bundle. The blobs follow, each
// once, in the order of their hashes.
type manifest struct {
	Version int              `json:"version"`
	Bundle  Bundle           `json:"bundle"`
	Records map[key]exported `json:"records"`
}

type exported struct {
	About string          `json:"about"`
	Files map[string]Blob `json:"files"`
}

// Export writes a bundle that was built or imported as one tar file, for a
// machine without Go or without a network. The same bundle gives the same file.
func Export(ctx context.Context, s *Store, r catalog.Release, w io.Writer) error {
	b, err := newBuilder(Options{Store: s, Release: r})
	if err != nil {
		return err
	}
	if err := b.look(ctx); err != nil {
		return err
	}
	if !b.complete() {
		return fmt.Errorf("export bundle: Kubernetes %s is not in the store: build it first", r.Kubernetes)
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

// finder is catalog.Find, but in tests.
type finder func(version string) (catalog.Release, error)

// blobs lists each blob once, with its size.
func (b Bundle) blobs() map[Digest]int64 {
	all := map[Digest]int64{}
	for _, files := range []map[string]Blob{b.Binaries, b.Images} {
		for _, blob := range files {
			all[blob.Digest] = blob.Size
		}
	}
	return all
}

// records rebuilds, from a complete bundle, what the store's records say.
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
