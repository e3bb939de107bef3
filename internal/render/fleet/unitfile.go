// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// Option is one option of a unit file, with continuation lines joined.
type Option struct {
	Section, Name, Value string
	Line                 int
}

// Parse reads a unit file by systemd's rules: a line starting with # or ; is a comment, a backslash at the
// end continues the line, and comments between continuation lines are skipped. The error lists all problems
// with their lines.
func Parse(file, text string) ([]Option, error) {
	var out []Option
	var wrong []error
	section, open, begun := "", "", 0
	bad := func(line int, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s:%d: "+format, append([]any{file, line}, args...)...))
	}
	for i, line := range strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && strings.ContainsRune("#;", rune(trimmed[0])) || trimmed == "" && begun == 0 {
			continue
		}
		if begun == 0 {
			begun = i + 1
		}
		if rest, more := strings.CutSuffix(trimmed, `\`); more {
			open += rest + " "
			continue
		}
		whole, at := strings.TrimSpace(open+trimmed), begun
		open, begun = "", 0
		name, value, isOption := strings.Cut(whole, "=")
		switch {
		case strings.HasPrefix(whole, "[") && strings.HasSuffix(whole, "]"):
			section = strings.Trim(whole, "[]")
		case strings.HasPrefix(whole, "["):
			bad(at, "%q is not a section: use a form such as [Service]", whole)
		case !isOption:
			bad(at, "%q is not an option: use NAME=VALUE", whole)
		case section == "":
			bad(at, "%s is before the first section", name)
		default:
			out = append(out, Option{section, strings.TrimSpace(name), strings.TrimSpace(value), at})
		}
	}
	if begun > 0 {
		bad(begun, "the file ends in a continued line")
	}
	return out, errors.Join(wrong...)
}

// words splits a value by systemd's rules: at spaces, except between single or double quotes; a backslash
// escapes.
func words(value string) ([]string, error) {
	var out []string
	var word strings.Builder
	quote, inside := rune(0), false
	runes := []rune(value)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case r == '\\' && quote != '\'' && i+1 < len(runes):
			i++
			inside = true
			word.WriteRune(unescape(runes[i]))
		case r == '\\' && quote != '\'':
			return nil, errors.New("backslash at the end")
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case (r == '"' || r == '\'') && !inside:
			quote, inside = r, true
		case r == ' ' || r == '\t':
			if inside {
				out = append(out, word.String())
				word.Reset()
				inside = false
			}
		default:
			inside = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("unclosed quote %c", quote)
	}
	if inside {
		out = append(out, word.String())
	}
	return out, nil
}

// unescape is the character that systemd reads for a backslash and r.
func unescape(r rune) rune {
	switch r {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 's':
		return ' '
	}
	return r
}

// quoted is the inverse of words for one word. It doubles percent signs, which start specifiers.
func quoted(s string) string {
	s = placement.Escape(s)
	plain := s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_@%+=:,./-*?[]{}^~", r))
	})
	if plain {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}
