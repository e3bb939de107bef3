// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// style is the library with which a program parses its flags.
type style int

const (
	pflags  style = iota // "-v, --v Level   text": no type means a boolean
	goFlags              // etcd's page: "--name 'default'", without the type
	urfave               // "--config string, -c string   text"
)

var (
	pflagLine  = regexp.MustCompile(`(?m)^ {2,6}(?:-\w, |    )--([a-z0-9-]+)(?: (\S+))?(?: {2,}(.*))?$`)
	goLine     = regexp.MustCompile(`(?m)^  --([a-z0-9-]+)[^\n]*\n((?:    [^\n]*\n)*)`)
	urfaveLine = regexp.MustCompile(`(?m)^   --([a-z0-9-]+)(?: (\w+))?(?:, -\w+(?: \w+)?)? {2,}(.*)$`)
	listedGate = regexp.MustCompile(`(?m)^\s+(?:kube:)?([A-Z]\w+)=true\|false`)
)

// one has the types of pflag with a single value, many those to which each use of the flag adds a value.
var (
	one  = []string{"string", "int", "int32", "uint", "float", "float32", "duration", "ip", "ipport", "quantity", "portRange", "Level", "ProxyMode", "LocalMode"}
	many = []string{"strings", "stringArray", "int32Slice", "stringToString", "mapStringString", "mapStringBool", "namedCertKey", "colonSeparatedMultimapStringString"}
)

// exits are the flags with which a program does something else and exits.
var exits = []string{"cleanup", "help", "init-only", "runonce", "version", "write-config-to"}

// readHelp returns the flags on a help page.
func readHelp(text string, s style) []catalog.Flag {
	var out []catalog.Flag
	line := map[style]*regexp.Regexp{pflags: pflagLine, goFlags: goLine, urfave: urfaveLine}[s]
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		f := catalog.Flag{Name: m[1], Exits: slices.Contains(exits, m[1])}
		about := m[len(m)-1]
		if s != goFlags {
			f.Kind, f.Value = kind(m[2]), value(m[2])
		}
		f.Deprecated = strings.Contains(strings.ToUpper(about), "(DEPRECATED") || strings.HasPrefix(about, "DEPRECATED") ||
			s == goFlags && strings.Contains(strings.ToLower(about), "deprecated in v")
		out = append(out, f)
	}
	return out
}

func kind(word string) catalog.FlagKind {
	switch {
	case word == "":
		return catalog.BoolFlag
	case slices.Contains(one, word):
		return catalog.OneFlag
	case slices.Contains(many, word):
		return catalog.ManyFlag
	}
	return catalog.AnyFlag
}

func value(word string) catalog.FlagValue {
	switch word {
	case "int", "int32", "uint", "Level":
		return catalog.IntValue
	case "duration":
		return catalog.DurationValue
	}
	return catalog.AnyValue
}

// readGates returns the gates on a help page, which are those of unfinished features.
func readGates(help string) []string {
	var out []string
	for _, m := range listedGate.FindAllStringSubmatch(help, -1) {
		out = append(out, m[1])
	}
	return out
}
