// SPDX-License-Identifier: Apache-2.0

package internal_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// source is one Go file of the repository.
type source struct {
	path string // "internal/core/plan/plan.go"
	text string
	ast  *ast.File
}

// sources reads every Go file except those in hidden directories and in testdata.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	files := token.NewFileSet()
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			return nil
		}
		all = append(all, source{path, string(text), parsed})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("got %d Go files, want at least 100: the test reads the wrong directory", len(all))
	}
	return all
}

func generated(s source) bool { return ast.IsGenerated(s.ast) }

func TestLicenceLine(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		if !generated(s) && !strings.HasPrefix(s.text, "// SPDX-License-Identifier: Apache-2.0\n") {
			t.Errorf("%s does not begin with the licence line", s.path)
		}
	}
}

// TestNoInit: code that runs before main cannot be ordered, tested or omitted.
func TestNoInit(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" && !generated(s) {
				t.Errorf("%s has an init function", s.path)
			}
		}
	}
}

// TestPackageDocs: each package says what it is, and one that exports types says which to read first.
func TestPackageDocs(t *testing.T) {
	t.Parallel()
	type pkg struct {
		doc   string
		types bool // it exports types
	}
	packages := map[string]pkg{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || generated(s) {
			continue
		}
		dir := filepath.Dir(s.path)
		p := packages[dir]
		p.types = p.types || s.ast.Name.Name != "main" && exportsType(s.ast)
		if s.ast.Doc != nil {
			p.doc += s.ast.Doc.Text()
		}
		packages[dir] = p
	}
	read := regexp.MustCompile(`(?s)\bRead .*(\[[A-Z]\w*(\.\w+)?\]|\w+\.go)`)
	for dir, p := range packages {
		switch {
		case len(p.doc) < 60:
			t.Errorf("%s: the package doc is missing or too short: %q", dir, p.doc)
		case p.types && !read.MatchString(p.doc):
			t.Errorf("%s: the package doc does not say which types to read first (\"Read [T] first\")", dir)
		}
	}
}

// packageRow is a row of docs/reference/packages.md that describes one package.
var packageRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| \\S.* \\|$")

// TestPackagesAreListed: docs/reference/packages.md has exactly one row for each package below api, cmd and internal.
func TestPackagesAreListed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/reference/packages.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, m := range packageRow.FindAllStringSubmatch(string(text), -1) {
		rows[m[1]]++
	}
	exists := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.ToSlash(filepath.Dir(s.path))
		if top, _, _ := strings.Cut(dir, "/"); top == "api" || top == "cmd" || top == "internal" {
			exists[dir] = true
		}
	}
	for dir := range exists {
		if rows[dir] != 1 {
			t.Errorf("docs/reference/packages.md: got %d rows for %s, want 1", rows[dir], dir)
		}
	}
	for dir := range rows {
		if !exists[dir] {
			t.Errorf("docs/reference/packages.md: there is no package %s", dir)
		}
	}
}

func exportsType(f *ast.File) bool {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			for _, spec := range g.Specs {
				if spec.(*ast.TypeSpec).Name.IsExported() {
					return true
				}
			}
		}
	}
	return false
}

// statuses of an architecture decision record.
var statuses = []string{"proposed", "accepted", "rejected", "superseded by "}

func TestDecisionRecords(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("../docs/adr")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("there is no docs/adr yet")
	}
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	numbers, records := map[string]string{}, 0
	for _, e := range entries {
		if e.Name() == "README.md" {
			continue
		}
		records++
		m := name.FindStringSubmatch(e.Name())
		if m == nil {
			t.Errorf("docs/adr/%s: the name is not NNNN-title.md", e.Name())
			continue
		}
		if other, twice := numbers[m[1]]; twice {
			t.Errorf("docs/adr/%s has the number of %s", e.Name(), other)
		}
		numbers[m[1]] = e.Name()
		text, err := os.ReadFile("../docs/adr/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if !hasStatus(string(text)) {
			t.Errorf("docs/adr/%s has no status line (\"Status: accepted\"; one of %v)", e.Name(), statuses)
		}
	}
	if records == 0 {
		t.Error("docs/adr is empty")
	}
}

func hasStatus(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.ToLower(strings.Trim(line, " *_-\n"))
		value, ok := strings.CutPrefix(strings.ReplaceAll(line, "*", ""), "status:")
		value = strings.TrimSpace(value)
		if ok && slices.ContainsFunc(statuses, func(s string) bool { return strings.HasPrefix(value, s) }) {
			return true
		}
	}
	return false
}
