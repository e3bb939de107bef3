// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/netip"
	"strings"
)

const (
	labelHint     = "lower-case letters, digits and dashes, a letter or digit at both ends, at most 63"
	qualifiedHint = "write name or example.org/name; the name has at most 63 letters, digits, dashes, dots and underscores"
)

func lower(r rune) bool  { return 'a' <= r && r <= 'z' }
func upper(r rune) bool  { return 'A' <= r && r <= 'Z' }
func digit(r rune) bool  { return '0' <= r && r <= '9' }
func letter(r rune) bool { return lower(r) || upper(r) }

// only: s is not empty and all its characters are allowed.
func only(s string, allowed func(rune) bool) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !allowed(r) })
}

func isDigits(s string) bool { return only(s, digit) }

// isLabel: a DNS label as Kubernetes names things (RFC 1123, lower case).
func isLabel(s string) bool {
	const longest = 63
	return len(s) <= longest && only(s, func(r rune) bool { return lower(r) || digit(r) || r == '-' }) &&
		s[0] != '-' && s[len(s)-1] != '-'
}

// isDomain: DNS labels joined by dots.
func isDomain(s string) bool {
	const longest = 253
	for _, l := range strings.Split(s, ".") {
		if !isLabel(l) {
			return false
		}
	}
	return len(s) <= longest
}

func isAddress(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == ""
}

// isLabelValue: the value of a Kubernetes label, which may be empty.
func isLabelValue(s string) bool { return s == "" || isWord(s) }

func isWord(s string) bool {
	const longest = 63
	alnum := func(r rune) bool { return letter(r) || digit(r) }
	return len(s) <= longest && only(s, func(r rune) bool { return alnum(r) || r == '-' || r == '_' || r == '.' }) &&
		alnum(rune(s[0])) && alnum(rune(s[len(s)-1]))
}

// isQualified: a key such as "name" or "example.org/name".
func isQualified(s string) bool {
	if prefix, name, ok := strings.Cut(s, "/"); ok {
		return isDomain(prefix) && isWord(name)
	}
	return isWord(s)
}

func isFlag(s string) bool {
	return only(s, func(r rune) bool { return lower(r) || digit(r) || r == '-' })
}

func isGate(s string) bool {
	return only(s, func(r rune) bool { return letter(r) || digit(r) }) && upper(rune(s[0]))
}

func isVariable(s string) bool {
	return only(s, func(r rune) bool { return letter(r) || digit(r) || r == '_' }) && !digit(rune(s[0]))
}
