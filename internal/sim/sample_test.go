// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/slipway-project/slipway/internal/testkit"
)

// sample selects what a run tries of all the crash points, boots, seeds and mutants that there are. It depends on
// the commit alone: runs of one commit try the same, and another commit tries others. Its size is a number of
// items, never a time, so that a slow machine tries as much as a fast one.
type sample struct {
	name string // as in "37 of 812 crash points, sample 8c52870"
	seed uint64
	all  bool // SIM_ALL is set
}

// newSample takes the name of the sample from SLIPWAY_SAMPLE, or else from the commit that is checked out, or else
// uses a fixed one.
func newSample(t *testing.T) sample {
	t.Helper()
	if os.Getenv("SIM_ALL") != "" {
		return sample{name: "all", all: true}
	}
	var s sample
	s.name, s.seed = testkit.Sample(t)
	return s
}

// dice draws what belongs to one purpose: two purposes draw independently of each other.
func (s sample) dice(purpose string) *rand.Rand {
	return rand.New(rand.NewPCG(s.seed, testkit.Hash(purpose)))
}

// pick returns want of the numbers below total in ascending order, or all of them, and logs how many of what they
// are. With -short it returns a quarter of that.
func (s sample) pick(t *testing.T, want, total int, what string) []int {
	t.Helper()
	if testing.Short() {
		want = (want + 3) / 4
	}
	picked := s.dice(t.Name() + what).Perm(total)
	if !s.all {
		picked = picked[:min(want, total)]
	}
	slices.Sort(picked)
	t.Logf("%d of %d %s, %s", len(picked), total, what, s)
	return picked
}

func (s sample) String() string { return fmt.Sprintf("sample %s", s.name) }

func TestSampleDependsOnTheCommitAlone(t *testing.T) {
	t.Setenv("SIM_ALL", "")
	t.Setenv("SLIPWAY_SAMPLE", "8c52870")
	first := newSample(t).pick(t, 10, 1000, "points")
	if again := newSample(t).pick(t, 10, 1000, "points"); !slices.Equal(first, again) {
		t.Errorf("the same commit picked %v, then %v", first, again)
	}
	if other := newSample(t).pick(t, 10, 1000, "seeds"); slices.Equal(first, other) {
		t.Errorf("two purposes both picked %v", other)
	}
	t.Setenv("SLIPWAY_SAMPLE", "8c52871")
	if other := newSample(t).pick(t, 10, 1000, "points"); slices.Equal(first, other) {
		t.Errorf("two commits both picked %v", other)
	}
	t.Setenv("SIM_ALL", "1")
	if all := newSample(t).pick(t, 10, 1000, "points"); len(all) != 1000 {
		t.Errorf("SIM_ALL picked %d of 1000 points", len(all))
	}
}
