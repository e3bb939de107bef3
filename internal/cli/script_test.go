// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/cli"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/render"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata/script")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"slipway": slipway})
}

// slipway is the program as main builds it, without the commands that run on nodes. Its state directory is in the directory of
// the script.
func slipway() {
	toys := bootstrap.PlanForm("toy", "three units, for tests", toy)
	toys.Example = "--node toy-main-0 --to toys"
	os.Exit(cli.Run(context.Background(), cli.Env{
		Inventory: &inventory.Inventory{Dir: clusterdir.Dir{Root: "root"}, Exe: "/nowhere/slipway", Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
		Out:       os.Stdout, Err: os.Stderr, In: os.Stdin,
		Version: "v0.0.0-test",
		Forms:   []bootstrap.Form{toys},
	}, os.Args[1:]))
}

// toy is a form that renders only units and omits everything else.
func toy(p plan.Plan) (render.Rendered, error) {
	var r render.Rendered
	for _, e := range p.Entries {
		if u, ok := e.Item.(plan.Unit); ok && strings.HasPrefix(u.Name, "kube-") {
			r.Add("units/"+u.Name, 0o644, u.Args[0]+"\n", e.Ref)
			continue
		}
		r.Omit(e.Ref, "toys do not support it: nothing provides it")
	}
	return r.Finish(p)
}

// TestScripts runs the scripts in testdata/script, which need no machine.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exit": exit},
	})
}

// exit CODE COMMAND...: the command must end with exactly this code.
func exit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE COMMAND [ARGUMENT...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = exitCode(err)
	}
	if got != args[0] {
		ts.Fatalf("%v: exit code %s, want %s", args[1:], got, args[0])
	}
}

func exitCode(err error) string {
	var exit *osexec.ExitError
	if errors.As(err, &exit) {
		return strconv.Itoa(exit.ExitCode())
	}
	return err.Error()
}

// TestEveryCommandIsHelpful checks that every command has a description, examples and a check of its arguments.
func TestEveryCommandIsHelpful(t *testing.T) {
	t.Parallel()
	root := cli.New(cli.Env{Inventory: &inventory.Inventory{Dir: clusterdir.Dir{Root: t.TempDir()}}, Out: io.Discard, Err: io.Discard})
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd == root || cmd.Name() == "help" {
			return
		}
		seen++
		examples := 0
		for _, line := range strings.Split(cmd.Example, "\n") {
			if strings.Contains(line, "slipway") {
				examples++
			}
		}
		if examples < 2 && cmd.Name() != "completion" {
			t.Errorf("%s: %d examples, want two or more", cmd.CommandPath(), examples)
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short %q: want one line without a period", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.Args == nil && !cmd.DisableFlagParsing {
			t.Errorf("%s: accepts any arguments", cmd.CommandPath())
		}
	}
	walk(root)
	if seen < 25 {
		t.Errorf("got %d commands, want at least 25", seen)
	}
}
