// SPDX-License-Identifier: Apache-2.0

package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/preflight"
)

// baseSystem lists the programs that a test may run without the preflight knowing them, by the reason.
func baseSystem() map[string]string {
	programs := map[string]string{}
	for reason, names := range map[string]string{
		"Debian's essential packages coreutils, dash, bash, diffutils, findutils, grep, sed, tar, hostname": `sh bash cat chmod chown cp cut date dd echo env false head id install ln ls
			mkdir mkfifo mktemp mv nproc od printf readlink rm rmdir seq sha256sum sleep sort stat sync tail tee test timeout touch tr true truncate tty uname uniq wc
			basename dirname realpath stdbuf yes cmp diff find xargs grep sed tar hostname`,
		"Debian's essential package util-linux":                  "nsenter unshare setsid flock dmesg kill",
		"Debian's essential package base-files depends on awk":   "awk",
		"Debian's package mount, which the preflight requires":   "mount umount",
		"Debian's package systemd, which the preflight requires": "systemd-run systemd-notify",
		"built by the Makefile or the test itself":               "slipway bin/slipway /opt/slipway/bin/slipway",
		"the test binary itself":                                 "/proc/self/exe",
	} {
		for name := range strings.FieldsSeq(names) {
			programs[name] = reason
		}
	}
	return programs
}

// TestProgramsOfTests fails if a test or a test kit runs a program that a fresh machine lacks after `make
// test` has installed what the preflight knows. It finds program names that are written as literals: in
// calls of os/exec and of functions that pass their arguments on to it, in shell scripts, in commands for
// machines, and in .ci/run.
func TestProgramsOfTests(t *testing.T) {
	t.Parallel()
	found := programsOfTests(t, sources(t))
	script, err := os.ReadFile("../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range shellPrograms(string(script)) {
		found = append(found, program{name, ".ci/run"})
	}
	if len(found) < 100 {
		t.Errorf("found %d programs: the test does not see them any more", len(found))
	}
	known := baseSystem()
	for name := range components() {
		known[name], known["/opt/slipway/bin/"+name], known["/"+name] = "component store", "component store", "component store's images"
	}
	for _, name := range preflight.TestPrograms() {
		known[name] = "preflight"
	}
	for _, p := range found {
		if dir, name := path.Split(p.name); slices.Contains([]string{"/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/"}, dir) {
			p.name = name
		}
		if known[p.name] == "" {
			t.Errorf("%s runs %s, which a fresh machine may lack: add it to testNeeds in internal/preflight/programs.go", p.where, p.name)
		}
	}
}

// TestProgramsOfTestsSeesNewOnes proves that the check finds programs in each form in which tests run them.
func TestProgramsOfTestsSeesNewOnes(t *testing.T) {
	t.Parallel()
	const file = "test/x/x_test.go"
	parsed, err := parser.ParseFile(token.NewFileSet(), file, `package x

const script = "set -e\nfor f in a b; do foo1 $f | foo2; done\nx=$(foo3 <<EOF\nnot a program\nEOF\n)"

func direct() {
	exec.Command("foo4")
	exec.CommandContext(ctx, "foo5", "a")
	exec.LookPath("foo6")
	exec.Command("/bin/sh", "-c", script)
	local.Exec(machine.Command{Args: []string{"foo7", "-x"}})
}

func wrapper(t *testing.T, name string, args ...string) { exec.Command(name, args...) }
func outer(args ...string)                              { wrapper(nil, args[0], args[1:]...) }
func inShell(command string)                            { wrapper(nil, "sh", "-ec", command) }

func indirect() {
	wrapper(t, "foo8", "x")
	outer("foo9")
	inShell("true && foo10 'quoted; word' # comment")
}
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := source{path: file, ast: parsed}
	var got []string
	for _, p := range programsOfTests(t, []source{text}) {
		if strings.HasPrefix(p.name, "foo") {
			got = append(got, p.name)
		}
	}
	slices.Sort(got)
	want := []string{"foo1", "foo10", "foo2", "foo3", "foo4", "foo5", "foo6", "foo7", "foo8", "foo9"}
	if !slices.Equal(got, want) {
		t.Errorf("got programs %q, want %q", got, want)
	}
}

// components are the names of the programs that the component store has, with their links.
func components() map[string]bool {
	names := map[string]bool{}
	for _, r := range catalog.Releases() {
		for _, c := range r.Components {
			for _, b := range c.Binaries {
				names[b.Name] = true
				for _, link := range b.Links {
					names[link] = true
				}
			}
		}
	}
	return names
}

// TestComponentsOfTests checks the names of real programs that tests request from the component store.
func TestComponentsOfTests(t *testing.T) {
	t.Parallel()
	known := components()
	for _, s := range sources(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !isSelector(call.Fun, "bintest", "Dir") {
				return true
			}
			for _, arg := range call.Args[1:] {
				if name, ok := literal(arg, nil); ok && !known[name] {
					t.Errorf("%s requests %s, which no release builds", s.path, name)
				}
			}
			return true
		})
	}
}

// program is a program that a test runs.
type program struct{ name, where string }

// runner is a function that runs a program: its name is argument arg, or arg is a shell script.
type runner struct {
	arg   int
	shell bool
}

// testCode reports whether a file belongs to the tests or to what make check runs.
func testCode(file string) bool {
	for _, dir := range []string{"test/", "internal/backend/hosttest/", "internal/etcd/etcdtest/", "internal/render/rendertest/", "internal/core/catalog/gen", "internal/core/spec/gen", "internal/artifact/source/gen/"} {
		if strings.HasPrefix(file, dir) {
			return true
		}
	}
	return strings.HasSuffix(file, "_test.go") && file != "internal/programs_test.go"
}

// programsOfTests lists the programs that the test code among the files runs.
func programsOfTests(t *testing.T, files []source) []program {
	t.Helper()
	runners := map[string]runner{"os/exec.Command": {0, false}, "os/exec.CommandContext": {1, false}, "os/exec.LookPath": {0, false}}
	var found []program
	for changed := true; changed; {
		before := len(runners)
		found = found[:0]
		for _, s := range files {
			if !testCode(s.path) {
				continue
			}
			f := finder{file: s, runners: runners, constants: constants(s.ast)}
			for _, d := range s.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					f.function(fn)
				}
			}
			found = append(found, f.found...)
		}
		changed = len(runners) > before
	}
	return found
}

// finder finds the programs that one file's functions run.
type finder struct {
	file      source
	runners   map[string]runner // by directory and name; shared by all files
	constants map[string]string
	found     []program
}

func (f *finder) function(fn *ast.FuncDecl) {
	if fn.Body == nil {
		return
	}
	params := map[string]int{} // by name
	n := 0
	for _, field := range fn.Type.Params.List {
		for _, name := range field.Names {
			params[name.Name] = n
			n++
		}
	}
	self := path.Dir(f.file.path) + "." + fn.Name.Name
	param := func(e ast.Expr) (int, bool) {
		if index, ok := e.(*ast.IndexExpr); ok { // args[0]
			if at, ok := index.Index.(*ast.BasicLit); ok && at.Value == "0" {
				e = index.X
			}
		}
		name, ok := e.(*ast.Ident)
		if !ok {
			return 0, false
		}
		i, ok := params[name.Name]
		return i, ok
	}
	// use notes a command line whose first element is at args[0].
	use := func(args []ast.Expr) {
		name, ok := literal(args[0], f.constants)
		if !ok {
			if i, ok := param(args[0]); ok {
				f.runners[self] = runner{i, false}
			}
			return
		}
		if strings.HasPrefix(name, "-") || strings.Contains(name, " ") {
			return // an option or a text: the runner with this name is another function
		}
		f.found = append(f.found, program{name, f.file.path})
		if base := path.Base(name); base != "sh" && base != "bash" || len(args) < 3 {
			return
		}
		if flag, ok := literal(args[1], nil); !ok || !strings.HasPrefix(flag, "-") || !strings.Contains(flag, "c") {
			return
		}
		if text, ok := literal(args[2], f.constants); ok {
			f.script(text)
		} else if i, ok := param(args[2]); ok {
			f.runners[self] = runner{i, true}
		}
	}
	ast.Inspect(fn.Body, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CallExpr:
			r, ok := f.runner(n.Fun)
			switch {
			case !ok || r.arg >= len(n.Args):
			case r.shell:
				if text, ok := literal(n.Args[r.arg], f.constants); ok {
					f.script(text)
				} else if i, ok := param(n.Args[r.arg]); ok {
					f.runners[self] = runner{i, true}
				}
			default:
				use(n.Args[r.arg:])
			}
			for i, arg := range n.Args { // slipway exec … -- PROGRAM
				if dashes, _ := literal(arg, nil); dashes == "--" && i+1 < len(n.Args) && i > 0 && f.inMachine(n.Args[:i]) {
					use(n.Args[i+1:])
				}
			}
		case *ast.CompositeLit: // machine.Command{Args: …}
			if !isSelector(n.Type, "machine", "Command") && !isIdent(n.Type, "Command") || !strings.HasPrefix(f.file.path, "test/") && !strings.HasPrefix(f.file.path, "internal/machine/") {
				return true // others give commands to a fake
			}
			for _, e := range n.Elts {
				field, ok := e.(*ast.KeyValueExpr)
				if !ok || !isIdent(field.Key, "Args") {
					continue
				}
				if args, ok := field.Value.(*ast.CompositeLit); ok && len(args.Elts) > 0 {
					use(args.Elts)
				}
			}
		}
		return true
	})
}

// inMachine reports whether the arguments are those of `slipway exec`, which runs a program in a machine.
// kubectl exec runs it in a pod.
func (f *finder) inMachine(args []ast.Expr) bool {
	return slices.ContainsFunc(args, func(e ast.Expr) bool { text, _ := literal(e, nil); return text == "exec" }) &&
		!slices.ContainsFunc(args, func(e ast.Expr) bool { text, _ := literal(e, nil); return text == "kubectl" || text == "-n" })
}

// runner looks up the function that is called: of os/exec, of this package, or an exported function of
// another test kit.
func (f *finder) runner(fun ast.Expr) (runner, bool) {
	var name string
	switch fn := fun.(type) {
	case *ast.Ident:
		name = fn.Name
	case *ast.SelectorExpr:
		name = fn.Sel.Name
		if isIdent(fn.X, "exec") {
			r, ok := f.runners["os/exec."+name]
			return r, ok
		}
		for _, dir := range []string{"test/e2e/kit", "test/bare"} {
			if r, ok := f.runners[dir+"."+name]; ok {
				return r, true
			}
		}
	}
	r, ok := f.runners[path.Dir(f.file.path)+"."+name]
	return r, ok
}

func (f *finder) script(text string) {
	for _, name := range shellPrograms(text) {
		f.found = append(f.found, program{name, f.file.path})
	}
}

// constants are a file's string constants.
func constants(file *ast.File) map[string]string {
	values := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					if text, ok := literal(spec.Values[i], nil); ok {
						values[name.Name] = text
					}
				}
			}
		}
		return true
	})
	return values
}

// literal returns the text of a string literal, a concatenation that begins with one, or a constant.
func literal(e ast.Expr, constants map[string]string) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.Ident:
		text, ok := constants[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, ok := literal(e.X, constants)
		right, rightOK := literal(e.Y, constants)
		if !rightOK {
			right = "$VALUE"
		}
		return left + right, ok
	case *ast.CallExpr: // fmt.Sprintf
		if isSelector(e.Fun, "fmt", "Sprintf") && len(e.Args) > 0 {
			text, ok := literal(e.Args[0], constants)
			return strings.NewReplacer("%%", "%", "%s", "$VALUE", "%d", "$VALUE", "%q", "$VALUE").Replace(text), ok
		}
	}
	return "", false
}

func isIdent(e ast.Expr, name string) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == name
}

func isSelector(e ast.Expr, pkg, name string) bool {
	selector, ok := e.(*ast.SelectorExpr)
	return ok && isIdent(selector.X, pkg) && selector.Sel.Name == name
}
