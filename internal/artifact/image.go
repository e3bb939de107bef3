// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// epoch is the time of every file and image. It is not zero, because some tools treat zero as unset.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// imageKey covers everything that determines an image's bytes. Increase the number when the code below
// changes the output.
func imageKey(i catalog.Image, binary Digest) key {
	spec, err := json.Marshal(i)
	if err != nil {
		panic(err) // strings only
	}
	h := sha256.New()
	field(h, "image", "2", runtime.GOARCH, runtime.Version(), string(spec), binary.String())
	return key(hex.EncodeToString(h.Sum(nil)))
}

// packImage adds a tarball for `ctr images import` to the store. The image has one layer, which is not
// compressed: the file never leaves the cluster's machines, and decompression would delay the first pod.
func packImage(ctx context.Context, s *Store, i catalog.Image, binary Blob) (Blob, error) {
	tag, err := name.NewTag(i.Name, name.StrictValidation)
	if err != nil {
		return Blob{}, fmt.Errorf("pack image: %w", err)
	}
	layer, err := imageLayer(ctx, s, i, binary)
	if err != nil {
		return Blob{}, fmt.Errorf("pack image %s: %w", i.Name, err)
	}
	image, err := imageOf(i, layer)
	if err != nil {
		return Blob{}, fmt.Errorf("pack image %s: %w", i.Name, err)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(tarball.Write(tag, image, w)) }()
	defer r.Close() // ends the goroutine if Add fails
	return s.Add(ctx, r)
}

// imageOf assembles an image from a layer, with a fixed creation time.
func imageOf(i catalog.Image, layer []byte) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", runtime.GOARCH, v1.Time{Time: epoch}
	file.Config = v1.Config{Entrypoint: i.Entrypoint, User: i.User, Env: []string{"PATH=/"}, WorkingDir: "/"}
	file.History = []v1.History{{Created: v1.Time{Time: epoch}, CreatedBy: "slipway"}}
	return mutate.ConfigFile(image, file)
}

// imageLayer builds the layer in memory: it contains one binary of at most about 130 MB.
func imageLayer(ctx context.Context, s *Store, i catalog.Image, binary Blob) ([]byte, error) {
	var layer bytes.Buffer
	layer.Grow(int(binary.Size) + 64<<10)
	w := tar.NewWriter(&layer)
	if err := writeDirsAndFiles(w, i); err != nil {
		return nil, err
	}
	if err := w.WriteHeader(entry(i.Binary, tar.TypeReg, 0o755, binary.Size)); err != nil {
		return nil, err
	}
	if err := s.copyTo(ctx, binary.Digest, w); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		link := entry(name, tar.TypeSymlink, 0o777, 0)
		link.Linkname = i.Links[name]
		if err := w.WriteHeader(link); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

// writeDirsAndFiles writes the image's directories with their parents, its files in /etc, and passwd and
// group, which give the image's numeric user a name.
func writeDirsAndFiles(w *tar.Writer, i catalog.Image) error {
	dirs := []string{"etc"}
	for _, d := range i.Dirs {
		for d = strings.Trim(path.Clean(d), "/"); d != "." && d != ""; d = path.Dir(d) {
			dirs = append(dirs, d)
		}
	}
	slices.Sort(dirs)
	for _, d := range slices.Compact(dirs) {
		mode := int64(0o755)
		if d == "tmp" {
			mode = 0o1777
		}
		if err := w.WriteHeader(entry(d+"/", tar.TypeDir, mode, 0)); err != nil {
			return err
		}
	}
	uid, gid, _ := strings.Cut(i.User, ":")
	passwd, group := "root:x:0:0:root:/:\n", "root:x:0:\n"
	if uid != "0" {
		passwd += "user:x:" + uid + ":" + gid + ":user:/:\n"
		group += "user:x:" + gid + ":\n"
	}
	texts := map[string]string{"group": group, "passwd": passwd}
	maps.Copy(texts, i.Files)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if err := w.WriteHeader(entry("etc/"+name, tar.TypeReg, 0o644, int64(len(texts[name])))); err != nil {
			return err
		}
		if _, err := io.WriteString(w, texts[name]); err != nil {
			return err
		}
	}
	return nil
}

// entry is a tar header with fixed owner and time, so that the same content gives the same bytes.
func entry(name string, kind byte, mode, size int64) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Mode: mode, Size: size, ModTime: epoch, Format: tar.FormatUSTAR}
}
