// SPDX-License-Identifier: Apache-2.0

// Command retry runs go test and runs each failed test once more. A test that then passes is reported as
// FLAKY, with its first failure; one that fails twice fails the run. It takes go test's flags, written
// -flag=value, followed by packages:
//
//	go run ./test/retry -count=1 -p=1 -timeout=45m ./test/e2e/...
//
// Like go test, it prints the output of failed tests only. Packages that do not build are not run again. A
// package that ended before all of its tests, because of a panic or its time limit, is run again as a
// whole.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ok, err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "retry:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run reports whether every test has passed in its first or its second run.
func run(ctx context.Context, out io.Writer, args []string) (ok bool, err error) {
	split := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if split < 0 {
		return false, errors.New("read arguments: no packages (write flags as -flag=value, then packages)")
	}
	flags := args[:split]
	first, err := goTest(ctx, out, args)
	if err != nil {
		return false, err
	}
	ok = true
	for _, name := range slices.Sorted(maps.Keys(first)) {
		p := first[name]
		if !p.failed {
			continue
		}
		if p.unbuilt || ctx.Err() != nil {
			ok = false
			continue
		}
		again := slices.Clone(flags)
		if !p.interrupted() {
			again = append(again, "-run=^("+strings.Join(p.failures(), "|")+")$")
		}
		fmt.Fprintf(out, "RETRY %s %s\n", name, strings.Join(p.failures(), " "))
		packages, err := goTest(ctx, out, append(again, name))
		if err != nil {
			return false, err
		}
		second := packages[name]
		if second == nil {
			second = &result{}
		}
		if second.failed {
			ok = false
		}
		for _, test := range p.failures() {
			if second.tests[test] == nil || second.tests[test].action != "pass" {
				fmt.Fprintf(out, "FAILED TWICE %s.%s\n", name, test)
				ok = false
				continue
			}
			fmt.Fprintf(out, "FLAKY %s.%s; its first failure:\n", name, test)
			lines := p.tests[test].lines
			for _, line := range lines[:min(len(lines), 40)] {
				fmt.Fprint(out, "    "+line)
			}
		}
	}
	return ok, nil
}

// result is how a package's tests ended.
type result struct {
	failed  bool
	unbuilt bool
	panics  bool
	tests   map[string]*test // top-level tests
}

// test is a top-level test with its subtests.
type test struct {
	action string // pass, fail or skip; "" if it did not end
	lines  []string
}

// interrupted reports whether tests may be missing from the result: the test binary died, or no test failed.
func (r *result) interrupted() bool {
	for _, t := range r.tests {
		if t.action == "" {
			return true
		}
	}
	return r.panics || len(r.failures()) == 0
}

// failures lists the tests that failed or did not end.
func (r *result) failures() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r.tests)) {
		if a := r.tests[name].action; a == "fail" || a == "" {
			names = append(names, name)
		}
	}
	return names
}

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action, Package, Test, Output, FailedBuild string
}

// goTest runs go test, copies what matters to out, and returns the results by package. Failed tests are not
// an error.
func goTest(ctx context.Context, out io.Writer, args []string) (map[string]*result, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets tests clean up
	cmd.Stderr = out
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	results := map[string]*result{}
	lines := bufio.NewReader(pipe)
	for {
		line, readErr := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 {
			if json.Unmarshal(line, &e) != nil {
				_, _ = out.Write(line) // not an event: an error of the go command itself
			} else {
				note(out, results, e)
			}
		}
		if readErr != nil {
			break
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	if err != nil && !slices.ContainsFunc(slices.Collect(maps.Values(results)), func(r *result) bool { return r.failed }) {
		return nil, fmt.Errorf("run go test: %w, and no package failed", err)
	}
	return results, nil
}

// note adds an event to the results and prints output that is not a passing test's.
func note(out io.Writer, results map[string]*result, e event) {
	if e.Package == "" { // of a build
		fmt.Fprint(out, e.Output)
		return
	}
	r := results[e.Package]
	if r == nil {
		r = &result{tests: map[string]*test{}}
		results[e.Package] = r
	}
	r.panics = r.panics || strings.HasPrefix(e.Output, "panic: ")
	if e.Test == "" {
		fmt.Fprint(out, e.Output)
		if e.Action == "fail" {
			r.failed, r.unbuilt = true, e.FailedBuild != ""
			for _, name := range r.failures() {
				if t := r.tests[name]; t.action == "" {
					fmt.Fprintf(out, "--- FAIL: %s (did not end)\n%s", name, strings.Join(t.lines, ""))
				}
			}
		}
		return
	}
	name, sub, _ := strings.Cut(e.Test, "/")
	t := r.tests[name]
	if t == nil {
		t = &test{}
		r.tests[name] = t
	}
	switch e.Action {
	case "output":
		if !strings.HasPrefix(e.Output, "=== ") {
			t.lines = append(t.lines, e.Output)
		}
	case "pass", "skip", "fail":
		if sub != "" {
			return
		}
		t.action = e.Action
		if t.action == "fail" {
			fmt.Fprint(out, strings.Join(t.lines, ""))
		} else {
			t.lines = nil
		}
	}
}
