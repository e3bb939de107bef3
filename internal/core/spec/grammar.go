// SPDX-License-Identifier: Apache-2.0

package spec

import "strings"

const (
	labelHint     = "lower-case letters, digits and dashes, a letter or digit at both ends, at most 63"
	qualifiedHint = "write name or example.org/name; the name has at most 63 letters, digits, dashes, dots and underscores"
	valueHint     = "at most 63 letters, digits, dashes, dots and underscores"
	variableHint  = "letters, digits and underscores, not beginning with a digit"
	accountHint   = "lower-case letters, digits, dashes and underscores, a letter or underscore first, at most 32"
)

func lower(r rune) bool  { return 'a' <= r && r <= 'z' }
func upper(r rune) bool  { return 'A' <= r && r <= 'Z' }
func digit(r rune) bool  { return '0' <= r && r <= '9' }
func letter(r rune) bool { return lower(r) || upper(r) }

// only reports whether s is not empty and consists of allowed characters.
func only(s string, allowed func(rune) bool) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !allowed(r) })
}

func isDigits(s string) bool { return only(s, digit) }

// isLabel: a DNS label in lower case (RFC 1123).
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

// isUser: a login name that an SSH server may know.
func isUser(s string) bool {
	const longest = 32
	return len(s) <= longest && only(s, func(r rune) bool { return letter(r) || digit(r) || r == '-' || r == '_' || r == '.' }) && s[0] != '-'
}

// isAccount: the name of a user or group that useradd and groupadd accept.
func isAccount(s string) bool {
	const longest = 32
	return len(s) <= longest && only(s, func(r rune) bool { return lower(r) || digit(r) || r == '-' || r == '_' }) && !digit(rune(s[0])) && s[0] != '-'
}

func isModule(s string) bool {
	return only(s, func(r rune) bool { return letter(r) || digit(r) || r == '-' || r == '_' }) && s[0] != '-' && len(s) < 64
}

// isSysctl: at least two words of a path below /proc/sys, joined by dots. As for sysctl(8), a slash within a word is the
// dot in an interface's name.
func isSysctl(s string) bool {
	words := strings.Split(s, ".")
	for _, w := range words {
		if !only(w, func(r rune) bool { return letter(r) || digit(r) || strings.ContainsRune("_-/:@", r) }) || w[0] == '-' || w[0] == '/' {
			return false
		}
	}
	return len(words) > 1
}

func isPackage(s string) bool {
	return only(s, func(r rune) bool { return letter(r) || digit(r) || strings.ContainsRune("+-._", r) }) && (letter(rune(s[0])) || digit(rune(s[0])))
}

// isUnitWord: a unit's name, or one side of the @ in it.
func isUnitWord(s string) bool {
	const longest = 63
	return len(s) <= longest && only(s, func(r rune) bool { return lower(r) || digit(r) || r == '-' || r == '_' || r == '.' }) && (lower(rune(s[0])) || digit(rune(s[0])))
}
