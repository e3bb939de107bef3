// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong with a spec.
type Problem struct {
	File         string
	Path         string // "spec.pools[0].roles"; empty: the whole document
	Line, Column int    // from 1; 0: unknown
	Msg          string
	Hint         string // what to do; may be empty
}

// String is "cluster.yaml:7:5: spec.pools[0].roles: unknown role "contol-plane": did you mean "control-plane"?".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	for _, s := range []string{p.Path, p.Msg, p.Hint} {
		if s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	return b.String()
}

// Report builds a problem at the position of a field, or of the nearest enclosing field that the document sets.
func (c Cluster) Report(path, hint, format string, args ...any) Problem {
	p := Problem{File: c.File, Path: path, Msg: fmt.Sprintf(format, args...), Hint: hint}
	for at := path; ; at = parent(at) {
		if position, ok := c.Positions[at]; ok {
			p.Line, p.Column = position.Line, position.Column
			return p
		}
		if at == "" {
			return p
		}
	}
}

// Sort orders problems by position, then by text.
func Sort(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Msg, b.Msg))
	})
}

// Child extends a field path by a key. Keys with other characters than letters, digits, dashes and underscores are
// quoted, so that a path is never ambiguous: evictionHard["memory.available"].
func Child(path, key string) string {
	if !only(key, func(r rune) bool { return letter(r) || digit(r) || r == '-' || r == '_' }) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Element extends a field path by an index.
func Element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Split returns the keys of a path. It is the inverse of repeated Child; indices come back as their digits.
func Split(path string) []string {
	var keys []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			if q, err := strconv.QuotedPrefix(path[1:]); err == nil {
				key, _ := strconv.Unquote(q)
				keys, path = append(keys, key), strings.TrimPrefix(path[1+len(q):], "]")
				continue
			}
			index, rest, _ := strings.Cut(path[1:], "]")
			keys, path = append(keys, index), rest
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			keys, path = append(keys, path[:end]), path[end:]
		}
	}
	return keys
}

// parent returns the path without its last key or index.
func parent(path string) string {
	if !strings.HasSuffix(path, `"]`) { // neither a plain key nor an index holds a dot or a bracket
		return path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	keys := Split(path)
	return strings.TrimSuffix(path, "["+strconv.Quote(keys[len(keys)-1])+"]")
}

// Nearest returns the candidate most similar to name, or "" if none is similar enough to suggest.
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

// distance is the Damerau-Levenshtein distance: swapped neighbours, the most frequent typing error, count one.
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

// show quotes a value for a message, shortened.
func show(s string) string { return strconv.Quote(clip(s)) }

func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
