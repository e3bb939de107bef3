// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// Import reads what Export wrote and puts it into the store. Every blob is
// hashed before it gets a name. The bundle must be complete and come from the
// same sources and the same Go as this program has; then Build finds it and
// needs no Go. Hashes say that the file is whole, not who made it: take it from
// somebody you trust.
//
// Progress counts blobs; it is optional.
func Import(ctx context.Context, s *Store, file io.Reader, progress func(Event)) (Bundle, error) {
	return importFor(ctx, s, file, inTurn(progress), catalog.Find)
}

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
		if err := s.remember(k, m.Records[k].About, m.Records[k].Files); err != nil {
			return Bundle{}, fmt.Errorf("import bundle: %w", err)
		}
	}
	return m.Bundle, nil
}

// readManifest takes the first entry and checks that this program would have
// written it: the same keys, the same names.
func readManifest(in *tar.Reader, find finder) (manifest, error) {
	head, err := in.Next()
	if err != nil {
		return manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	if head.Name != manifestName || head.Typeflag != tar.TypeReg || head.Size > manifestLimit {
		return manifest{}, fmt.Errorf("read %s: the file begins with %q: not an exported bundle", manifestName, head.Name)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	var m manifest
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&m); err != nil {
		return manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	if m.Version != manifestVersion {
		return manifest{}, fmt.Errorf("read %s: version %d, want %d", manifestName, m.Version, manifestVersion)
	}
	return m, m.check(find)
}

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
		return fmt.Errorf("check %s: not exactly the parts of Kubernetes %s are inside", manifestName, release.Kubernetes)
	}
	wanted := b.records()
	for k, w := range wanted {
		if got, ok := m.Records[k]; !ok || !maps.Equal(got.Files, w.Files) {
			return fmt.Errorf("check %s: %s: made by another version of slipway or for another machine: export it with the version that imports it",
				manifestName, w.About)
		}
	}
	if len(m.Records) != len(wanted) {
		return fmt.Errorf("check %s: holds records that do not belong to Kubernetes %s", manifestName, release.Kubernetes)
	}
	return nil
}

// importBlobs wants every blob once and nothing else: no folders, links or
// other paths.
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
		return fmt.Errorf("read entries: %d blobs are missing: the file is cut short", len(wanted))
	}
	return nil
}
