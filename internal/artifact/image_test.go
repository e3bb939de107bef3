// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

func TestImageIsOneLayerWithTheBinary(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	binary, err := s.Add(t.Context(), strings.NewReader("program"))
	if err != nil {
		t.Fatal(err)
	}
	spec := catalog.Image{
		Name: "slipway.dev/thing:1", Binary: "thing", Entrypoint: []string{"/thing"}, User: "65534:65534",
		Dirs: []string{"/var/lib/thing", "/tmp"},
	}
	blob, err := packImage(t.Context(), s, spec, binary)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := packImage(t.Context(), s, spec, binary); err != nil || again != blob {
		t.Errorf("second packImage: got %v, %v; want %v", again, err, blob)
	}
	image, err := tarball.ImageFromPath(s.Path(blob.Digest), nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/thing"}, config.Config.Entrypoint); diff != "" || config.Config.User != spec.User {
		t.Errorf("user: got %q; entrypoint (-want +got): %s", config.Config.User, diff)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers: got %d, %v; want 1", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name)
		if h.Uid != 0 || !h.ModTime.Equal(epoch) {
			t.Errorf("%s: got uid %d, time %v", h.Name, h.Uid, h.ModTime)
		}
	}
	want := []string{
		"drwxr-xr-x etc/", "dtrwxrwxrwx tmp/", "drwxr-xr-x var/", "drwxr-xr-x var/lib/", "drwxr-xr-x var/lib/thing/",
		"-rw-r--r-- etc/group", "-rw-r--r-- etc/passwd", "-rwxr-xr-x thing",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
