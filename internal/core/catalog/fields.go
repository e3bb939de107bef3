// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"embed"
	"strings"
)

//go:generate go run ./genfields ../../../components/kubernetes-1.36 fields/1.36.txt

//go:embed fields/*.txt
var fieldFiles embed.FS

// FieldKind is what a field of a configuration file holds.
type FieldKind string

// The kinds. AnyField is what nothing more is known of, and what is below it is not known either.
const (
	AnyField      FieldKind = "any"
	ObjectField   FieldKind = "object" // its own fields are in the table
	BoolField     FieldKind = "bool"
	IntField      FieldKind = "int"
	TextField     FieldKind = "text"
	DurationField FieldKind = "duration" // 1m30s
)

// Fields lists the fields of a program's configuration file by path, "authentication.anonymous.enabled". Nil: there is no table
// for this release and program.
func (r Release) Fields(program string) map[string]FieldKind {
	text, err := fieldFiles.ReadFile("fields/" + r.Minor() + ".txt")
	if err != nil {
		return nil
	}
	var fields map[string]FieldKind
	in := false
	for line := range strings.Lines(string(text)) {
		name, kind, ok := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case !ok || name == "#":
		case name == "program":
			in = kind == program
		case in:
			if fields == nil {
				fields = map[string]FieldKind{}
			}
			fields[name] = FieldKind(kind)
		}
	}
	return fields
}
