// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/slipway-project/slipway/internal/core/spec"
)

var update = flag.Bool("update", false, "rewrite the expected problems in testdata")

var options = spec.Options{Minors: []string{"1.35", "1.36"}}

// TestBad: testdata/bad/NAME.txtar holds cluster.yaml and the exact problems.
func TestBad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.txtar")
	if err != nil || len(files) < 60 {
		t.Fatalf("found %d bad specs (%v), want at least 60", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			story, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			doc, want := section(story, "cluster.yaml"), section(story, "problems")
			if doc == nil || want == nil {
				t.Fatal("wants the sections cluster.yaml and problems")
			}
			_, problems := spec.Parse("cluster.yaml", doc.Data, options)
			if len(problems) == 0 {
				t.Fatal("no problem found")
			}
			var got strings.Builder
			for _, p := range problems {
				got.WriteString(p.String() + "\n")
			}
			if *update {
				want.Data = []byte(got.String())
				if err := os.WriteFile(file, txtar.Format(story), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(want.Data), got.String()); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func section(a *txtar.Archive, name string) *txtar.File {
	for i := range a.Files {
		if a.Files[i].Name == name {
			return &a.Files[i]
		}
	}
	return nil
}

func TestGood(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("found %d good specs (%v)", len(files), err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, problems := spec.Parse(file, doc, options)
		for _, p := range problems {
			t.Error(p)
		}
		if c.Name == "" {
			t.Errorf("%s: the cluster has no name", file)
		}
	}
}

func TestSSHIsTheClustersUnlessTheMachineSaysOtherwise(t *testing.T) {
	t.Parallel()
	c, problems := spec.Parse("cluster.yaml", []byte(head+`spec:
  ssh: {user: admin, jump: "gate.example.org", identityFile: ~/.ssh/k}
  pools: [{name: a, roles: [control-plane], machines: [{name: m1, address: 192.0.2.1}, {name: m2, address: 192.0.2.2, ssh: {user: root, port: 22022, jump: "j@192.0.2.9:23"}}, {name: m3, address: 192.0.2.3}]}]
`), options)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	all := spec.SSH{User: "admin", IdentityFile: "~/.ssh/k", Jump: spec.Jump{Host: "gate.example.org"}}
	own := spec.SSH{User: "root", Port: 22022, IdentityFile: "~/.ssh/k", Jump: spec.Jump{User: "j", Host: "192.0.2.9", Port: 23}}
	for i, want := range []spec.SSH{all, own, all} {
		if diff := cmp.Diff(want, c.Pools[0].Machines[i].SSH); diff != "" {
			t.Errorf("machine %d (-want +got):\n%s", i, diff)
		}
	}
}

const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"

func TestBombs(t *testing.T) {
	t.Parallel()
	const many = 1 << 20
	fill := func(before, unit, after string) string {
		return before + strings.Repeat(unit, (many-len(before)-len(after))/len(unit)) + after
	}
	for name, doc := range map[string]string{
		"large":          fill("", "a", "aa"),
		"larger":         strings.Repeat("#", many+1),
		"brackets":       fill(head+"spec: ", "[", ""),
		"braces":         fill(head+"spec: ", "{a: ", ""),
		"dashes":         fill(head+"spec: ", "- ", ""),
		"question marks": fill(head+"spec:\n", "? ", ""),
		"unknown fields": head + "spec:\n" + numbered(60000, "  f%d: 1\n"),
		"unknown words":  fill(head+"spec: {pools: [{name: a, roles: [", "x,", "]}]}"),
		"duplicates":     fill(head+"spec:\n", "  a: 1\n", ""),
		"anchors":        fill(head+"spec: [", "&a a,", "]"),
		"aliases":        fill(head+"a: &a [x]\nspec: [", "*a,", "]"),
		"comments":       fill(head, "# c\n", "x: 1\n"),
		"blank":          fill(head, "\n", "x: 1\n"),
		"long key":       fill(head, "k", ": 1\n"),
		"pools":          head + "spec:\n  pools:\n" + numbered(40000, "  - {name: p%d}\n"),
		"long path":      head + "spec: {components: {kubelet: {config: {" + strings.Repeat("k", 400) + ": {" + numbered(60000, "f%d: 1, ") + "}}}}}",
		"quotes":         fill(head+"spec: \"", `\x20`, "\""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, problems := spec.Parse("bomb.yaml", []byte(doc), options)
			if len(problems) == 0 && name != "long path" {
				t.Error("no problem found")
			}
			if len(problems) > 1001 {
				t.Errorf("got %d problems, want at most 1001", len(problems))
			}
			const limit = 30 * time.Second // on a busy machine, with the race detector; alone each takes well under one
			if took := time.Since(start); took > limit {
				t.Errorf("took %s", took)
			}
		})
	}
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.txtar", "testdata/good/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			doc, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			if story := txtar.Parse(doc); section(story, "cluster.yaml") != nil {
				doc = section(story, "cluster.yaml").Data
			}
			f.Add(doc)
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		c, problems := spec.Parse("fuzz.yaml", doc, options)
		for _, p := range problems {
			if p.Msg == "" || p.Line < 0 {
				t.Errorf("empty problem %#v", p)
			}
		}
		if len(problems) == 0 && c.Name == "" {
			t.Error("a cluster without a name passed")
		}
	})
}
