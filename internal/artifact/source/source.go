// SPDX-License-Identifier: Apache-2.0

// Package source carries the source of every component inside the program, so
// that one binary can build a bundle wherever Go is. Go's embedding refuses
// folders that hold a go.mod, hence one text archive, made from components/ by
// the generator in gen/ and committed.
//
// Read [Component] and [File] first.
//
// It never touches the disk: [Component] gives names and bytes. Modules that
// the components require are not inside; go.sum pins them.
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

// File is one source file; Name is relative to its component's folder and uses
// slashes.
type File struct {
	Name string
	Data []byte
}

// Component returns the files of one folder of components/, sorted by name. The
// caller must not change the bytes.
func Component(folder string) ([]File, error) {
	files, ok := parse()[folder]
	if !ok {
		return nil, fmt.Errorf("find source %q: not in the program", folder)
	}
	return files, nil
}

var parse = sync.OnceValue(func() map[string][]File {
	components := map[string][]File{}
	for _, f := range txtar.Parse(archive).Files {
		folder, name, _ := strings.Cut(f.Name, "/")
		components[folder] = append(components[folder], File{Name: name, Data: f.Data})
	}
	return components
})

// Pack makes the archive from the folder of components: every go.mod, go.sum
// and .go file but tests, in sorted order. Same input, same bytes.
func Pack(components fs.FS) ([]byte, error) {
	packed := txtar.Archive{Comment: []byte("Made from components/ by go generate. Do not edit.\n\n")}
	err := fs.WalkDir(components, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !wanted(name) {
			return err
		}
		data, err := fs.ReadFile(components, name)
		if err != nil {
			return err
		}
		if !slices.Equal(data, txtar.Parse(txtar.Format(&txtar.Archive{Files: []txtar.File{{Name: name, Data: data}}})).Files[0].Data) {
			return fmt.Errorf("pack %s: the text archive would change it (a missing last newline?)", name)
		}
		packed.Files = append(packed.Files, txtar.File{Name: name, Data: data})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pack components: %w", err)
	}
	return txtar.Format(&packed), nil
}

func wanted(name string) bool {
	base := path.Base(name)
	return base == "go.mod" || base == "go.sum" || strings.HasSuffix(base, ".go") && !strings.HasSuffix(base, "_test.go")
}
