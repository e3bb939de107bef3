// SPDX-License-Identifier: Apache-2.0

package internal_test

import (
	"go/ast"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// refused lists phrases that make text read as if it were translated, and what to write instead. CONTRIBUTING.md
// has the glossary.
var refused = []struct{ pattern, instead string }{
	{`\b(nobody|somebody|whoever|whomever)\b`, "name the subject"},
	{`\banew\b`, "again, new, or from scratch"},
	{`\bmend(s|ed|ing)?\b`, "fix or repair"},
	{`\b(leave|leaves|leaving|left) (it|them|that|this|the [\w-]+|[\w-]+ [\w-]+) away\b`, "omit or remove"},
	{`\b(lies|lie|lay) (in|on|at|below|there|here|beside|under|outside|where)\b`, "is in, is at"},
	{`\bstands (in|on|at|there|here|for itself|above|below|behind|under)\b`, "is in, is at"},
	{`\bbroken off\b|\bbreaks? (it|them) off\b`, "interrupted"},
	{`\bgo(es)? on (as|with|by itself|where|until|without|and|meanwhile|afterwards)\b`, "continue"},
	{`\b(is|are|was|were) told so\b`, "name who reports it"},
	{`\bfolders?\b`, "directory"},
	{`\b(is|are) no (voter|member|node|machine|worker|leader|learner|error|fault|failure|mistake|reason to|way to|key|name|file|one's)\b`, "is not a, there is no"},
}

// TestLanguage refuses phrases in comments, strings and documents. Legitimate uses, such as "there is no machine", pass.
func TestLanguage(t *testing.T) {
	t.Parallel()
	type rule struct {
		re      *regexp.Regexp
		instead string
	}
	var rules []rule
	for _, r := range refused {
		rules = append(rules, rule{regexp.MustCompile(`(?i)` + r.pattern), r.instead})
	}
	check := func(path string, line int, text string) {
		for _, r := range rules {
			for _, at := range r.re.FindAllStringIndex(text, -1) {
				if strings.HasSuffix(strings.ToLower(strings.TrimRight(text[:at[0]], " ")), "there") {
					continue
				}
				t.Errorf("%s:%d: %q: write %s", path, line+strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], r.instead)
			}
		}
	}
	for _, s := range sources(t) {
		if ast.IsGenerated(s.ast) || s.path == "internal/language_test.go" {
			continue
		}
		files := token.NewFileSet()
		file := files.AddFile(s.path, -1, len(s.text))
		var scan scanner.Scanner
		scan.Init(file, []byte(s.text), nil, scanner.ScanComments)
		for {
			pos, tok, text := scan.Scan()
			if tok == token.EOF {
				break
			}
			if tok == token.COMMENT || tok == token.STRING {
				check(s.path, file.Line(pos), text)
			}
		}
	}
	for _, path := range documents(t) {
		if path == "CONTRIBUTING.md" { // the glossary names them
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Fatal(err)
		}
		check(path, 1, string(text))
	}
}

// documents lists the texts outside Go files: pages, protocols, scripts and stories.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(".."), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		switch filepath.Ext(path) {
		case ".md", ".proto", ".sh", ".story", ".yaml", ".yml":
			paths = append(paths, path)
		}
		if d.Name() == "Makefile" || path == ".ci/run" {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
