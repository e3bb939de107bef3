// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"strings"
)

// quote writes one word of a command line so that systemd reads exactly it: no specifier (%), no variable ($), no escape and
// no end of line is left in it. See systemd.service(5), "Command lines".
func quote(word string) string { return escape(word, true) }

// quoteEnv is quote for Environment=, where $ has no meaning.
func quoteEnv(word string) string { return escape(word, false) }

// escape puts quotes only where they are needed: the text is for people too.
func escape(word string, command bool) string {
	var b strings.Builder
	quoted := word == "" || word == ";"
	for i := range len(word) { // bytes: what is above ASCII stands for itself
		switch c := word[i]; {
		case c == '%':
			b.WriteString("%%")
		case c == '$' && command:
			b.WriteString("$$")
		case c == '"', c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
			quoted = true
		case c == '\n':
			b.WriteString(`\n`)
			quoted = true
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
			quoted = true
		default:
			quoted = quoted || c == ' ' || c == '\''
			b.WriteByte(c)
		}
	}
	if !quoted {
		return b.String()
	}
	return `"` + b.String() + `"`
}
