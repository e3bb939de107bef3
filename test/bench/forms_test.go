// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// boots returns undisturbed runs with these times until DNS answers.
func boots(dns ...float64) []Run {
	var out []Run
	for _, d := range dns {
		out = append(out, Run{NodeReady: 1, PodRunning: 2, DNS: d, CPU: 6, Up: 10})
	}
	return out
}

func TestCalmRounds(t *testing.T) {
	t.Parallel()
	noisy := func(at int) []Run {
		runs := boots(1, 1, 1, 1)
		runs[at].Foreign = 2*10*disturbed + 0.1
		return runs
	}
	for name, test := range map[string]struct {
		forms []Form
		want  []int
	}{
		"none":                  {nil, nil},
		"all":                   {[]Form{{Runs: boots(1, 1)}, {Runs: boots(1, 1)}}, []int{0, 1}},
		"one form is disturbed": {[]Form{{Runs: boots(1, 1, 1, 1)}, {Runs: noisy(1)}}, []int{0, 2, 3}},
		"too few would be left": {[]Form{{Runs: noisy(0)}, {Runs: noisy(1)}}, []int{0, 1, 2, 3}},
		"a round is incomplete": {[]Form{{Runs: boots(1, 1)}, {Runs: boots(1)}}, []int{0}},
		"a form has no runs":    {[]Form{{Runs: boots(1)}, {}}, nil},
	} {
		r := Report{Host: Host{CPUs: 2}, Forms: test.forms}
		if diff := cmp.Diff(test.want, r.calmRounds()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Ratios are taken within a round, so that a round that is slow for all forms has no effect.
func TestCompared(t *testing.T) {
	t.Parallel()
	dns := func(r Run) float64 { return r.DNS }
	first, own := boots(4, 40, 5), boots(8, 80, 10)
	if median, ratio := compared(first, own, []int{0, 1, 2}, dns); median != 10 || ratio != 2 {
		t.Errorf("got median %v and ratio %v, want 10 and 2", median, ratio)
	}
	if median, ratio := compared(boots(4, 10), boots(4, 80), []int{1}, dns); median != 80 || ratio != 8 {
		t.Errorf("second round only: got median %v and ratio %v, want 80 and 8", median, ratio)
	}
	if median, ratio := compared(boots(0), boots(8), []int{0}, dns); median != 8 || ratio != 0 {
		t.Errorf("without a value of the first form: got median %v and ratio %v, want 8 and 0", median, ratio)
	}
}

func TestFormTable(t *testing.T) {
	t.Parallel()
	r := Report{
		Host: Host{CPUs: 2},
		Forms: []Form{
			{Name: "one", Runs: boots(4, 4), PSS: map[string]int64{"etcd": 60 * mebibyte, "kubelet": 40 * mebibyte}},
			{Name: "two", Runs: boots(5, 7), PSS: map[string]int64{"etcd": 150 * mebibyte}},
			{Name: "unweighed", Runs: boots(4, 4)},
		},
		Apply: &Apply{Cold: []Timed{{60, 0.1}, {50, 0.1}, {70, 0.1}}, Again: []Timed{{2, 0.1}}},
	}
	var out strings.Builder
	show(&out, r)
	for _, line := range []string{
		"<!-- bench-forms -->",
		"| the same cluster | node Ready, s | first pod Running, s | DNS answers in a pod, s | CPU until DNS answers, s | PSS idle, MiB |",
		"| one              | 1.00          | 2.00                 | 4.00                    | 6.00                     | 100           |",
		"| two              | 1.00 (× 1.00) | 2.00 (× 1.00)        | 6.00 (× 1.50)           | 6.00 (× 1.00)            | 150 (× 1.50)  |",
		"| unweighed        | 1.00 (× 1.00) | 2.00 (× 1.00)        | 4.00 (× 1.00)           | 6.00 (× 1.00)            |               |",
		"| new machines, until all nodes are Ready | 50.00  | 60.00     | 70.00  |",
		"| again, nothing to do                    | 2.00   | 2.00      | 2.00   |",
		"<!-- /bench-forms -->",
	} {
		if !strings.Contains(out.String(), "\n"+line+"\n") {
			t.Errorf("want line %q, got\n%s", line, &out)
		}
	}
	if strings.Contains(out.String(), "WARNING") || strings.Contains(out.String(), "1 000 machines") {
		t.Errorf("want no warning and no figures that were not measured, got\n%s", &out)
	}
	data, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(data), `"name":"two","runs":[{`) || !strings.Contains(string(data), `"apply":{"cold":[{"value":60,`) {
		t.Errorf("report in JSON: got %s, %v", data, err)
	}
	out.Reset()
	if printForms(&out, Report{Runs: boots(1), Forms: []Form{{Runs: boots(1)}, {}}, Apply: &Apply{}}); out.String() != "" {
		t.Errorf("without figures: got %s, want nothing", out.String())
	}
}

// The table has a warning if it contains disturbed rounds.
func TestFormTableWarns(t *testing.T) {
	t.Parallel()
	runs := boots(4)
	runs[0].Foreign = 9
	var out strings.Builder
	printForms(&out, Report{Host: Host{CPUs: 2}, Forms: []Form{{Name: "one", Runs: runs}}})
	if !strings.Contains(out.String(), "WARNING") {
		t.Errorf("want a warning, got\n%s", &out)
	}
}

func TestComplete(t *testing.T) {
	t.Parallel()
	pss := map[string]int64{"pause": 1}
	for _, program := range programs() {
		pss[program] = 1
	}
	if err := complete(pss); err != nil {
		t.Error(err)
	}
	delete(pss, "etcd")
	pss["kubelet"] = 0
	if err := complete(pss); err == nil || !strings.HasSuffix(err.Error(), "no process of etcd, kubelet") {
		t.Errorf("missing programs: got error %v", err)
	}
}

// The specs that bench writes are valid.
func TestSpecs(t *testing.T) {
	t.Parallel()
	var addresses []netip.Addr
	for i := range farMains + farWorkers {
		addresses = append(addresses, netip.AddrFrom4([4]byte{10, 89, 0, byte(10 + i)}))
	}
	far, problems := spec.Parse("far.yaml", []byte(farSpec(addresses)), spec.Options{})
	if len(problems) > 0 || len(far.Pools) != 2 {
		t.Fatalf("%v, %d pools", problems, len(far.Pools))
	}
	if cp, w := far.Pools[0].Machines, far.Pools[1].Machines; len(cp) != farMains || len(w) != farWorkers || w[1].Address != addresses[4] {
		t.Errorf("got control planes %v and workers %v", cp, w)
	}
	for _, f := range forms() {
		parsed, problems := spec.Parse("form.yaml", []byte(formSpec("bench", f.form)), spec.Options{})
		if len(problems) > 0 || parsed.Name != "bench" || parsed.ControlPlane.Form != f.form {
			t.Errorf("%s: %v", f.Name, problems)
		}
	}
}

func TestOnly(t *testing.T) {
	t.Parallel()
	all := options{runs: 10, several: 3, forms: 2, apply: 1}
	if got, err := all.narrowed(); err != nil || got != all {
		t.Errorf("without -only: got %+v, %v, want %+v", got, err, all)
	}
	all.only = onlyForms
	if got, err := all.narrowed(); err != nil || got.runs != 0 || got.several != 0 || got.forms != 2 || got.apply != 1 {
		t.Errorf("-only forms: got %+v, %v", got, err)
	}
	all.only = "form"
	if _, err := all.narrowed(); err == nil || !strings.Contains(err.Error(), "-only form: use forms") {
		t.Errorf("-only form: got error %v", err)
	}
}
