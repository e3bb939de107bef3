// SPDX-License-Identifier: Apache-2.0

// Command genexplain writes the table behind spec.Explain: the doc comments of the API types as JSON.
//
//	genexplain api/cluster/v1alpha1/cluster.go explain.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"reflect"
	"strings"
)

// structType and field have the same JSON as the types of the same names in package spec.
type structType struct {
	Name   string  `json:"name"`
	Doc    string  `json:"doc"`
	Fields []field `json:"fields"`
}

type field struct {
	Name string `json:"name"`
	Type string `json:"type"` // as in Go
	Doc  string `json:"doc"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "genexplain:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want the Go file and the output file (- for standard output)")
	}
	types, err := read(args[0])
	if err != nil {
		return err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(types); err != nil {
		return err
	}
	if args[1] == "-" {
		_, err = os.Stdout.Write(out.Bytes())
		return err
	}
	return os.WriteFile(args[1], out.Bytes(), 0o644)
}

func read(file string) ([]structType, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var types []structType
	for _, d := range parsed.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		for _, s := range decl.Specs {
			spec, _ := s.(*ast.TypeSpec)
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			t := structType{Name: spec.Name.Name, Doc: text(decl.Doc)}
			for _, f := range body.Fields.List {
				x, err := fieldOf(f)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", t.Name, err)
				}
				t.Fields = append(t.Fields, x)
			}
			types = append(types, t)
		}
	}
	return types, nil
}

func fieldOf(f *ast.Field) (field, error) {
	if len(f.Names) != 1 || f.Tag == nil {
		return field{}, fmt.Errorf("a field without name or tag")
	}
	var goType strings.Builder
	if err := printer.Fprint(&goType, token.NewFileSet(), f.Type); err != nil {
		return field{}, err
	}
	name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
	doc := text(f.Doc)
	if rest, ok := strings.CutPrefix(doc, f.Names[0].Name+" "); ok && name != strings.ToLower(name) {
		doc = name + " " + rest // users know the field by its name in YAML
	}
	return field{Name: name, Type: goType.String(), Doc: doc}, nil
}

// text is a comment on one line.
func text(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
