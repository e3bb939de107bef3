// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// flow writes a value on one line. Within brackets commas and braces need quotes too.
func flow(v any, within bool) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		return text(v, within)
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = flow(v[i], true)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, text(k, true)+": "+flow(v[k], true))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		panic("config: no YAML for a value of this type") // the tables and the decoder make no other
	}
}

func keyText(key string) string { return text(key, true) }

// text quotes what YAML could take for anything but text. Go's quoting is also YAML's.
func text(s string, within bool) string {
	allowed := "_./-"
	if !within {
		allowed += ",:${}="
	}
	for i, r := range s {
		word := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || r == '/' || r == '$' && !within
		if !word && (i == 0 || !('0' <= r && r <= '9') && !strings.ContainsRune(allowed, r)) && !quad(s) {
			return strconv.Quote(s)
		}
	}
	if s == "" || reserved(s) || strings.HasSuffix(s, ":") {
		return strconv.Quote(s)
	}
	return s
}

// quad: digits and dots that can be no number, such as 10.96.0.10 or 10.96.0.0/16.
func quad(s string) bool {
	const dots = 3
	return strings.Count(s, ".") == dots && strings.Trim(s, "0123456789./") == "" && '0' <= s[0] && s[0] <= '9'
}

// reserved words mean something else to YAML 1.1 or 1.2.
func reserved(s string) bool {
	switch strings.ToLower(s) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return true
	}
	return false
}

// blockable: a text of several lines that a literal block keeps byte by byte.
func blockable(s string) bool {
	body := strings.TrimSuffix(s, "\n")
	if !strings.Contains(s, "\n") || body == "" || strings.HasSuffix(body, "\n") || strings.HasPrefix(body, "\n") {
		return false
	}
	for _, line := range strings.Split(body, "\n") {
		if line != "" && strings.TrimSpace(line) == "" {
			return false
		}
	}
	return body[0] != ' ' && body[0] != '\t' && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && r != '\t' && !strconv.IsPrint(r)
	})
}
