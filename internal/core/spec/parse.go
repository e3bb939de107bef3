// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Options are the facts that Parse needs from outside the document.
type Options struct {
	// Minors that the release catalogue has, "1.36". Nil: any minor is accepted.
	Minors []string
	// Name, if not empty, overrides the document's name: one spec can serve several clusters.
	Name string
}

// The limits of a document. They are beyond what people write by hand and stop YAML bombs.
const (
	maxBytes = 1 << 20
	maxDepth = 50
	maxPath  = 500 // each field's path is kept, so long names above many fields would multiply

	maxProblems = 1000
)

// Parse decodes and checks one document. It returns all problems at once, sorted by position. If there are problems, the
// cluster holds what could be read, and is fit only for finding more problems.
func Parse(file string, doc []byte, o Options) (Cluster, []Problem) {
	d := &decoder{file: file, positions: map[string]Position{}}
	root := d.document(doc)
	if root == nil || !d.head(root) {
		Sort(d.problems)
		return Cluster{}, d.problems
	}
	var in Document
	d.decode(root, reflect.ValueOf(&in).Elem(), at{node: root})
	if o.Name != "" {
		in.Metadata.Name = o.Name
	}
	out := check(in, d, o)
	Sort(d.problems)
	return out, d.problems
}

// document returns the root object of the only document, or reports why there is none.
func (d *decoder) document(doc []byte) *yaml.Node {
	if !d.bytes(doc) {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(doc))
	var first, second yaml.Node
	if err := dec.Decode(&first); err != nil {
		d.syntax(doc, err)
		return nil
	}
	if err := dec.Decode(&second); err == nil {
		d.add(&second, "", "put each cluster in a file of its own", "a second document starts here")
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.syntax(doc, err)
		return nil
	}
	root := first.Content[0]
	switch {
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		d.problem(Problem{Msg: "the document is empty", Hint: shortest})
	case root.Kind != yaml.MappingNode:
		d.add(root, "", shortest, "the document is %s, not an object", kindName(root))
	default:
		return root
	}
	return nil
}

const shortest = "the shortest cluster is {apiVersion: " + APIVersion + ", kind: " + Kind + ", metadata: {name: dev}}"

// bytes refuses what is not text before a parser sees it.
func (d *decoder) bytes(doc []byte) bool {
	if len(doc) > maxBytes {
		d.problem(Problem{Msg: "the document is larger than 1 MiB", Hint: "apply large manifests with kubectl"})
		return false
	}
	if bytes.HasPrefix(doc, []byte("\ufeff")) {
		d.problem(Problem{Line: 1, Column: 1, Msg: "the document starts with a byte order mark", Hint: "save it as UTF-8 without BOM"})
		return false
	}
	line, column := 1, 1
	for i := 0; i < len(doc); column++ {
		r, size := utf8.DecodeRune(doc[i:])
		at := Problem{Line: line, Column: column}
		switch {
		case r == utf8.RuneError && size == 1:
			at.Msg, at.Hint = "byte "+strconv.Quote(string(doc[i:i+1]))+" is not UTF-8", "save the file as UTF-8"
		case r == '\r' && !bytes.HasPrefix(doc[i+1:], []byte("\n")):
			at.Msg, at.Hint = "a carriage return without a line feed", "save the file with Unix line endings"
		case isControl(r) && r != '\n' && r != '\t' && r != '\r':
			at.Msg, at.Hint = "control character "+strconv.QuoteRune(r), "remove it"
		}
		if at.Msg != "" {
			d.problem(at)
			return false
		}
		if i += size; r == '\n' {
			line, column = line+1, 0
		}
	}
	return true
}

// isControl includes Unicode's own line separators: editors do not show them, and YAML counts them as line ends.
func isControl(r rune) bool {
	return r < 0x20 || 0x7f <= r && r <= 0x9f || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}

// syntax reports the parser's error. The parser knows only the line, and describes a tab as "cannot start any token".
func (d *decoder) syntax(doc []byte, err error) {
	if errors.Is(err, io.EOF) {
		d.problem(Problem{Msg: "the document is empty", Hint: shortest})
		return
	}
	lines := strings.Split(string(doc), "\n")
	for i, l := range lines {
		indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		if tab := strings.IndexByte(indent, '\t'); tab >= 0 && strings.TrimSpace(l) != "" {
			d.problem(Problem{Line: i + 1, Column: tab + 1, Msg: "a tab in the indentation", Hint: "indent with spaces"})
			return
		}
	}
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	p := Problem{Msg: "not YAML: " + msg}
	if number, rest, ok := strings.Cut(strings.TrimPrefix(msg, "line "), ": "); ok {
		if line, err := strconv.Atoi(number); err == nil && 0 < line && line <= len(lines) {
			l := lines[line-1]
			p.Line, p.Column, p.Msg = line, len(l)-len(strings.TrimLeft(l, " "))+1, "not YAML: "+rest
		}
	}
	d.problem(p)
}

// head checks the kind of the document first: in another kind, every field would be unknown.
func (d *decoder) head(root *yaml.Node) bool {
	before := len(d.problems)
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		key, value := lookup(root, want.key)
		switch {
		case key == nil:
			d.add(root, want.key, "write "+want.key+": "+want.value, "is missing")
		case value.Kind != yaml.ScalarNode || value.Value != want.value:
			d.add(key, want.key, "write "+want.key+": "+want.value, "is %s: not a document for slipway", kindName(value))
		}
	}
	return len(d.problems) == before
}

func lookup(object *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i], object.Content[i+1]
		}
	}
	return nil, nil
}
