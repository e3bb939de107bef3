// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strconv"
	"strings"
)

// Child extends a field path by a key. Keys that hold more than letters, digits, dashes and underscores are quoted, so
// that a path is never ambiguous: evictionHard["memory.available"].
func Child(path, key string) string {
	if !plain(key) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Element extends a field path by an index.
func Element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Split takes a path of keys apart. It is the inverse of repeated Child; indices come back as their digits.
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

// parent is the path without its last key or index.
func parent(path string) string {
	if !strings.HasSuffix(path, `"]`) { // neither a plain key nor an index holds a dot or a bracket
		return path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	keys := Split(path)
	return strings.TrimSuffix(path, "["+strconv.Quote(keys[len(keys)-1])+"]")
}

func plain(key string) bool {
	for _, r := range key {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_') {
			return false
		}
	}
	return key != ""
}
