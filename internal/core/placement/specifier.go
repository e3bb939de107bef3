// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strings"
)

// Suffix is what systemd and fleet write behind the name of a unit.
const Suffix = ".service"

// Bare is a name without the suffix.
func Bare(name string) string { return strings.TrimSuffix(name, Suffix) }

// Split takes a name apart: "db@main" is instance main of db, and "db@" is a template, which has no instance yet.
func Split(name string) (prefix, instance string, template bool) {
	prefix, instance, at := strings.Cut(Bare(name), "@")
	return prefix, instance, at && instance == ""
}

// Expand replaces the specifiers in an option of the unit: %n is its name with ".service", %N without, %p what stands before the
// "@", %i what stands behind it, and %% is a percent sign.
func Expand(name, text string) (string, error) {
	prefix, instance, _ := Split(name)
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "%")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if after == "" {
			return "", fmt.Errorf("a percent sign at the end: write %%%% for one")
		}
		switch after[0] {
		case 'n':
			b.WriteString(Bare(name) + Suffix)
		case 'N':
			b.WriteString(Bare(name))
		case 'p':
			b.WriteString(prefix)
		case 'i':
			b.WriteString(instance)
		case '%':
			b.WriteByte('%')
		default:
			return "", fmt.Errorf("unknown specifier %%%c: there are %%n, %%N, %%p, %%i, and %%%% for a percent sign", after[0])
		}
		text = after[1:]
	}
}

// Escape is the text that Expand turns into text again.
func Escape(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// Resolve replaces the specifiers in all rules of the unit. The error names the field.
func (u Unit) Resolve() (Unit, *Problem) {
	out := Unit{Name: Bare(u.Name), Global: u.Global}
	list := func(field string, in []string) (all []string, bad *Problem) {
		for i, text := range in {
			s, err := Expand(u.Name, text)
			if err != nil {
				return nil, &Problem{Unit: u.Name, Field: field, Index: i, Msg: err.Error()}
			}
			all = append(all, Bare(s))
		}
		return all, nil
	}
	var bad *Problem
	if out.With, bad = list("with", u.With); bad != nil {
		return out, bad
	}
	if out.Conflicts, bad = list("conflicts", u.Conflicts); bad != nil {
		return out, bad
	}
	if out.Replaces, bad = list("replaces", u.Replaces); bad != nil {
		return out, bad
	}
	for key, values := range u.On {
		if out.On == nil {
			out.On = map[string][]string{}
		}
		out.On[key] = []string{}
		for i, text := range values {
			s, err := Expand(u.Name, text)
			if err != nil {
				return out, &Problem{Unit: u.Name, Field: "on." + key, Index: i, Msg: err.Error()}
			}
			out.On[key] = append(out.On[key], s)
		}
	}
	pin, err := Expand(u.Name, u.Pin)
	if err != nil {
		return out, &Problem{Unit: u.Name, Field: "pin", Index: -1, Msg: err.Error()}
	}
	out.Pin = pin
	return out, nil
}
