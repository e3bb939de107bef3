// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"reflect"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func fieldOf(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); jsonName(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// names lists the fields of an object in the order of the type.
func names(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		out = append(out, jsonName(t.Field(i)))
	}
	return out
}

// hintField helps with an unknown field: a near name, or the object that it belongs to, or the names that there are.
func hintField(t reflect.Type, name string) string {
	if near := Nearest(name, names(t)); near != "" {
		return "did you mean " + show(near) + "?"
	}
	if home := homes(reflect.TypeFor[v1alpha1.Cluster](), "", name); len(home) > 0 {
		return "it belongs to " + strings.Join(home, " or ")
	}
	return "there are " + strings.Join(names(t), ", ")
}

// homes are the paths of all objects that have a field of this name. The components look alike and count once, as COMPONENT.
func homes(t reflect.Type, path, name string) []string {
	switch t.Kind() {
	case reflect.Slice:
		return homes(t.Elem(), path, name)
	case reflect.Struct:
	default:
		return nil
	}
	var out []string
	if _, ok := fieldOf(t, name); ok && path != "" {
		out = append(out, path)
	}
	for i := range t.NumField() {
		f := t.Field(i)
		at := Child(path, jsonName(f))
		if f.Type == reflect.TypeFor[v1alpha1.Component]() {
			at = path + ".COMPONENT"
		}
		for _, home := range homes(f.Type, at, name) {
			if !slices.Contains(out, home) {
				out = append(out, home)
			}
		}
	}
	return out
}

// Nearest is the candidate most like name, or "" if none is near enough to be meant.
func Nearest(name string, candidates []string) string {
	const longest = 64
	best, least := "", len(name)/3+1
	if name == "" || len(name) > longest {
		return ""
	}
	for _, c := range candidates {
		d := distance(strings.ToLower(name), strings.ToLower(c))
		if d < least || d == least && best == "" {
			best, least = c, d
		}
	}
	return best
}

// distance is Damerau's: a swap of neighbours counts one, as it is the most frequent slip.
func distance(a, b string) int {
	prev2, prev := []int(nil), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, row
	}
	return prev[len(b)]
}
