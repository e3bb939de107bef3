// SPDX-License-Identifier: Apache-2.0

// Package sim runs stories of simulated clusters (package testkit/cluster): those in testdata, some with a crash at
// every step, and invented ones. It holds tests only.
package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/testkit/cluster"
)

var seedFlag = flag.Uint64("seed", 0, "replay this one seed")

// TestStories runs each story with the first seed and one of the next eight that the sample selects.
func TestStories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.story")
	if err != nil || len(files) == 0 {
		t.Fatalf("got no stories, error %v", err)
	}
	seeds := []uint64{1, 2 + newSample(t).dice("stories").Uint64N(8)}
	if testing.Short() {
		seeds = seeds[:1]
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".story")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := parse(t, name, string(text))
			for _, seed := range seeds {
				s.Run(t, fmt.Sprintf("story %s, seed %d", name, seed), seed)
			}
		})
	}
}

func parse(t *testing.T, name, text string) cluster.Story {
	t.Helper()
	s, err := cluster.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
