// SPDX-License-Identifier: Apache-2.0

package internal_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	assignment = regexp.MustCompile(`^[A-Za-z_]\w*=`)
	plainWord  = regexp.MustCompile(`^[A-Za-z_./][\w./+-]*$`)
	function   = regexp.MustCompile(`(?m)^\s*([A-Za-z_]\w*)\(\)`)
	heredoc    = regexp.MustCompile(`(?s)<<-?\s*'?"?(\w+)'?"?([^\n]*)\n.*?\n\s*(\w+)(\n|$)`)
)

var (
	// shellWords are builtins and reserved words that a command word cannot follow.
	shellWords = strings.Fields(`[ : . alias break case cd command continue declare done esac eval exec exit export false fi for function getopts
		hash kill local popd printf pushd pwd read readonly return select set shift source test time times trap true type ulimit umask unset wait echo in [[ }`)
	// shellPrefixes are words that a command word follows.
	shellPrefixes = strings.Fields("if then elif else do while until ! { ( time exec command sudo nohup setsid env timeout xargs")
)

// shellPrograms lists the programs that a POSIX shell script runs, as far as they are written as plain
// words. It knows quotes, here documents, command substitution and the reserved words; it is not a complete
// parser.
func shellPrograms(script string) []string {
	own := map[string]bool{}
	for _, m := range function.FindAllStringSubmatch(script, -1) {
		own[m[1]] = true
	}
	var programs []string
	add := func(word string) {
		if plainWord.MatchString(word) && !own[word] && !slices.Contains(shellWords, word) {
			programs = append(programs, word)
		}
	}
	s := shellScanner{text: heredoc.ReplaceAllString(script, "<$1$2\n")}
	s.commands(add)
	slices.Sort(programs)
	return slices.Compact(programs)
}

type shellScanner struct {
	text string
	at   int
}

// commands passes on the command words up to the end of the text or an unmatched closing parenthesis.
func (s *shellScanner) commands(add func(word string)) {
	command := true             // the next word is a command
	patterns, cases := false, 0 // inside case … in: up to ), words are patterns
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case c == ' ' || c == '\t':
			s.at++
		case c == '#':
			end := strings.IndexByte(s.text[s.at:], '\n')
			if end < 0 {
				return
			}
			s.at += end
		case c == '\\' && strings.HasPrefix(s.text[s.at:], "\\\n"):
			s.at += 2
		case strings.HasPrefix(s.text[s.at:], ";;"):
			s.at, patterns, command = s.at+2, cases > 0, true
		case c == ')' && patterns:
			s.at, patterns, command = s.at+1, false, true
		case c == ')':
			s.at++
			return
		case c == '(':
			s.at++
			s.commands(add)
			command = true
		case strings.ContainsRune(";&|\n", rune(c)):
			s.at, command = s.at+1, true
		case c == '<' || c == '>':
			for s.at < len(s.text) && strings.IndexByte("<>& \t", s.text[s.at]) >= 0 {
				s.at++
			}
			s.word(add) // a file
		default:
			word := s.word(add)
			switch {
			case patterns && word != "esac", !command && word != "in":
			case word == "in" && !command:
				patterns = cases > 0
			case word == "case":
				cases, command = cases+1, false
			case word == "esac":
				cases, patterns, command = max(0, cases-1), false, false
			case assignment.MatchString(word), slices.Contains(shellPrefixes[:7], word), word == "{":
			case slices.Contains(shellPrefixes, word):
				add(word)
				s.options(add)
			default:
				add(word)
				command = false
			}
		}
	}
}

// options skips the options and numbers between a word such as timeout and the command.
func (s *shellScanner) options(add func(string)) {
	for {
		start := s.at
		for s.at < len(s.text) && s.text[s.at] == ' ' {
			s.at++
		}
		word := s.word(add)
		if word == "" || word[0] != '-' && (word[0] < '0' || word[0] > '9') && !assignment.MatchString(word) {
			s.at = start
			return
		}
	}
}

// word reads a word; the commands that it substitutes are passed on.
func (s *shellScanner) word(add func(string)) string {
	start := s.at
	quote := byte(0)
	for s.at < len(s.text) {
		c := s.text[s.at]
		switch {
		case c == '\\' && quote != '\'':
			s.at++
		case quote != '\'' && strings.HasPrefix(s.text[s.at:], "$(("):
			if end := strings.Index(s.text[s.at:], "))"); end > 0 {
				s.at += end + 1
			}
		case quote != '\'' && strings.HasPrefix(s.text[s.at:], "$("):
			s.at += 2
			s.commands(add)
			continue
		case quote != '\'' && strings.HasPrefix(s.text[s.at:], "${"):
			if end := strings.IndexByte(s.text[s.at:], '}'); end > 0 {
				s.at += end
			}
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case strings.IndexByte(" \t\n;&|()<>", c) >= 0:
			return s.text[start:s.at]
		}
		s.at++
	}
	s.at = min(s.at, len(s.text))
	return s.text[start:s.at]
}

func TestShellPrograms(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"a":                                       "a",
		"a b; c && d | e":                         "a c d e",
		"if a; then b; else c; fi":                "a b c",
		"for x in y z; do a $x; done":             "a",
		"case $x in y|z) a;; *) b;; esac; c":      "a b c",
		"x=1 a >y 2>&1 <z":                        "a",
		"x=$(a \"$(b)\")":                         "a b",
		"x=$((1 + 2)); a":                         "a",
		"a 'b; c' \"d; e\" # f\ng":                "a g",
		"a <<'EOF' | b\nc\nEOF\nd":                "a b d",
		"exec a; timeout 5 b; env -i X=y c":       "a b c env timeout",
		"f() { a; }\nf":                           "a",
		"(a; b) & c":                              "a b c",
		"while [ -e x ]; do sleep 1; done":        "sleep",
		"$VALUE a; \"$X\" b; ./own; /usr/bin/abs": "./own /usr/bin/abs",
	} {
		if got := strings.Join(shellPrograms(script), " "); got != want {
			t.Errorf("%q: got programs %q, want %q", script, got, want)
		}
	}
}
