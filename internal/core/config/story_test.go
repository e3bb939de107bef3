// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"flag"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/golden"
)

var update = flag.Bool("update", false, "rewrite the expected sections in testdata")

var release = catalog.Default()

// withoutTables is a release of which the catalogue knows no flags, feature gates and fields.
func withoutTables() catalog.Release {
	r := release
	r.Kubernetes = "1.0.0"
	return r
}

// TestStories: testdata/NAME.txtar holds spec.yaml and either the completed spec or its problems.
func TestStories(t *testing.T) {
	t.Parallel()
	golden.Check(t, *update, "shortest", func(t *testing.T, doc string) (string, string) {
		c, problems := complete(t, doc)
		if len(problems) > 0 {
			return "problems", lines(problems)
		}
		return "completed.yaml", string(config.Print(c))
	})
}

// TestFixedPoint: a completed spec completes to itself, byte by byte.
func TestFixedPoint(t *testing.T) {
	t.Parallel()
	for name, story := range golden.Read(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, problems := complete(t, golden.Input(story))
			if len(problems) > 0 {
				return
			}
			first := string(config.Print(c))
			again, problems := complete(t, first)
			if len(problems) > 0 {
				t.Fatalf("the completed spec has problems:\n%s", lines(problems))
			}
			if diff := cmp.Diff(first, string(config.Print(again))); diff != "" {
				t.Errorf("completed twice (-first +second):\n%s", diff)
			}
		})
	}
}

func complete(t *testing.T, doc string) (config.Cluster, []spec.Problem) {
	t.Helper()
	return completeFor(t, doc, release)
}

func completeFor(t *testing.T, doc string, r catalog.Release) (config.Cluster, []spec.Problem) {
	t.Helper()
	s, problems := spec.Parse("spec.yaml", []byte(doc), spec.Options{Minors: []string{r.Minor()}})
	if len(problems) > 0 {
		t.Fatalf("the spec has problems:\n%s", lines(problems))
	}
	return config.Complete(s, r)
}

func lines(problems []spec.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}
