// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// variables are what systemd replaces in a command; $$ is none.
func variables(arg string) bool {
	found := regexp.MustCompile(`\$(\$|\{\w+\}|\w+)`).FindAllString(arg, -1)
	return slices.ContainsFunc(found, func(v string) bool { return v != "$$" })
}

// finish makes the program out of all that was said before it. A shell comes between only where systemd does what a shell does.
func (d *decoder) finish() {
	if d.start.Name == "" {
		d.wrong = append(d.wrong, fmt.Errorf("%s: there is no ExecStart", d.file))
		return
	}
	args := d.arguments(d.start)
	if len(args) == 0 {
		return
	}
	plain := len(d.before) == 0
	if plain && !slices.ContainsFunc(args, variables) {
		for _, a := range args {
			d.unit.Exec = append(d.unit.Exec, strings.ReplaceAll(a, "$$", "$"))
		}
		return
	}
	d.unit.Exec = []string{"/bin/sh", "-ec", strings.Join(append(d.before, "exec "+shell(args)), "\n")}
}

// arguments are the words of a command, specifiers replaced.
func (d *decoder) arguments(o Option) []string {
	list, err := words(strings.TrimLeft(o.Value, "-@+!:"))
	if err != nil || len(list) == 0 {
		d.bad(o, "%q is no command: %v", o.Value, err)
		return nil
	}
	if strings.ContainsRune("@+!:", rune(o.Value[0])) {
		d.bad(o, "the prefix %q has no meaning here: leave it away", o.Value[:1])
		return nil
	}
	for i, w := range list {
		if list[i], err = placement.Expand(d.unit.Name, w); err != nil {
			d.bad(o, "%v", err)
			return nil
		}
	}
	return list
}

// prepare turns a command that runs before into a line of shell; those of facts are our own.
func (d *decoder) prepare(o Option) {
	args := d.arguments(o)
	if len(args) == 3 && args[0] == "/bin/sh" && strings.HasPrefix(args[2], "test -s /run/slipway/facts/") {
		return
	}
	if len(args) == 0 {
		return
	}
	line := shell(args)
	if strings.HasPrefix(o.Value, "-") {
		line += " || true"
	}
	d.before = append(d.before, line)
}

// environment reads a file into the environment, as a shell does. The machine's facts are there anyhow.
func (d *decoder) environment(o Option) {
	name, optional := strings.CutPrefix(o.Value, "-")
	name, err := placement.Expand(d.unit.Name, name)
	switch {
	case err != nil:
		d.bad(o, "%v", err)
	case name == factsFile:
	case optional:
		d.before = append(d.before, "set -a; [ ! -e "+single(name)+" ] || . "+single(name)+"; set +a")
	default:
		d.before = append(d.before, "set -a; . "+single(name)+"; set +a")
	}
}

// shell is the command as a shell reads it. ${NAME} stays one word, as with systemd, and a word that is $NAME becomes several.
func shell(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		switch {
		case !strings.Contains(a, "$"):
			out[i] = single(a)
		case regexp.MustCompile(`^\$\w+$`).MatchString(a):
			out[i] = a
		default:
			text := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`").Replace(a)
			out[i] = `"` + strings.ReplaceAll(text, "$$", `\$`) + `"`
		}
	}
	return strings.Join(out, " ")
}

// single quotes for a shell what needs it.
func single(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
