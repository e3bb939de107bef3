// SPDX-License-Identifier: Apache-2.0

// Package source embeds the source of every component, so that the program can build a bundle wherever Go is
// installed. Go's embed excludes directories with a go.mod, so the sources are packed into one text archive,
// which the generator in gen/ creates from components/.
//
// Read [Component] and [File] first.
//
// It never touches the disk: [Component] returns names and bytes. The modules that a component requires are
// not included; its go.sum pins them.
//
//	files, err := source.Component("etcd-3.6") // go.mod, go.sum
package source

import (
	_ "embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/tools/txtar"
)

//go:generate go run ./gen ../../../components components.txtar

//go:embed components.txtar
var archive []byte

// File is one source file. Name is relative to the component's directory and uses slashes.
type File struct {
	Name string
	Data []byte
}

// Component returns the files of one directory of components/, sorted by name. The caller must not modify the
// bytes.
func Component(dir string) ([]File, error) {
	files, ok := parse()[dir]
	if !ok {
		return nil, fmt.Errorf("find source %q: not embedded in this program", dir)
	}
	return files, nil
}

var parse = sync.OnceValue(func() map[string][]File {
	components := map[string][]File{}
	for _, f := range txtar.Parse(archive).Files {
		dir, name, _ := strings.Cut(f.Name, "/")
		components[dir] = append(components[dir], File{Name: name, Data: f.Data})
	}
	return components
})

// Pack creates the archive from the directory of components: every go.mod, go.sum and non-test .go file,
// sorted. The same input always gives the same bytes.
func Pack(components fs.FS) ([]byte, error) {
	packed := txtar.Archive{Comment: []byte("Made from components/ by go generate. Do not edit.\n\n")}
	err := fs.WalkDir(components, ".", func(name string, entry fs.DirEntry, err error) error {
		base := path.Base(name)
		needed := base == "go.mod" || base == "go.sum" || strings.HasSuffix(base, ".go") && !strings.HasSuffix(base, "_test.go")
		if err != nil || entry.IsDir() || !needed {
			return err
		}
		data, err := fs.ReadFile(components, name)
		if err != nil {
			return err
		}
		if !slices.Equal(data, txtar.Parse(txtar.Format(&txtar.Archive{Files: []txtar.File{{Name: name, Data: data}}})).Files[0].Data) {
			return fmt.Errorf("pack %s: the text archive would change it (is the final newline missing?)", name)
		}
		packed.Files = append(packed.Files, txtar.File{Name: name, Data: data})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pack components: %w", err)
	}
	return txtar.Format(&packed), nil
}
