// SPDX-License-Identifier: Apache-2.0

package systemd

import "testing"

func TestQuote(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ in, command, env string }{
		"a flag":          {"--v=2", "--v=2", "--v=2"},
		"nothing":         {"", `""`, `""`},
		"a space":         {"a b", `"a b"`, `"a b"`},
		"a specifier":     {"100%n", "100%%n", "100%%n"},
		"a variable":      {"$HOME ${x}", `"$$HOME $${x}"`, `"$HOME ${x}"`},
		"quotes":          {`say "it's"`, `"say \"it's\""`, `"say \"it's\""`},
		"a backslash":     {`a\n`, `"a\\n"`, `"a\\n"`},
		"lines":           {"one\ntwo\t", `"one\ntwo\x09"`, `"one\ntwo\x09"`},
		"the end of one":  {";", `";"`, `";"`},
		"no ASCII":        {"hafen-größe", "hafen-größe", "hafen-größe"},
		"an odd one, del": {"\x7f", `"\x7f"`, `"\x7f"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if have := quote(tc.in); have != tc.command {
				t.Errorf("quote(%q) = %s, want %s", tc.in, have, tc.command)
			}
			if have := quoteEnv(tc.in); have != tc.env {
				t.Errorf("quoteEnv(%q) = %s, want %s", tc.in, have, tc.env)
			}
		})
	}
}
