// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec:\n"

// TestCompleteAsksTheCatalogue: what the release's programs do not know is refused with its place, whichever program it is.
func TestCompleteAsksTheCatalogue(t *testing.T) {
	t.Parallel()
	for _, component := range []string{"etcd", "apiserver", "controllerManager", "scheduler", "kubelet", "kubeProxy", "containerd"} {
		_, err := Complete("cluster.yaml", []byte(head+"  components:\n    "+component+":\n      flags: {no-such-flag: 1}\n"), "")
		want := "cluster.yaml:7:15: spec.components." + component + ".flags.no-such-flag: "
		var bad *Error
		if !errors.As(err, &bad) || bad.Kind != InvalidSpec || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", component, err, want)
		}
	}
	_, err := Complete("cluster.yaml", []byte(head+"  featureGates: {InPlacePodVerticalScalling: true}\n"), "")
	if err == nil || !strings.Contains(err.Error(), `5:18: spec.featureGates.InPlacePodVerticalScalling: `) {
		t.Errorf("unknown gate: %v", err)
	}
	c, err := Complete("cluster.yaml", []byte(head+"  featureGates: {InPlacePodVerticalScaling: true}\n"), "1.36")
	if err != nil || c.Config.APIServer.Flags["feature-gates"].Values[0] != "InPlacePodVerticalScaling=true" {
		t.Errorf("known gate: %v", err)
	}
}

// TestAllProblemsAtOnce: a field that nobody knows does not hide the flags and gates that the release does not know, and what
// is wrong already is not told twice.
func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	const doc = head + `  featureGates: {Nonsense: true}
  componentz: {}
  components:
    apiserver:
      flags: {nosuch: 1, --dashed: 1}
`
	_, err := Complete("cluster.yaml", []byte(doc), "")
	var problems ProblemsError
	if !errors.As(err, &problems) {
		t.Fatalf("got %v", err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, p.Path)
	}
	want := []string{
		"spec.featureGates.Nonsense", "spec.componentz", "spec.components.apiserver.flags.nosuch", "spec.components.apiserver.flags.--dashed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s\n%v", diff, err)
	}
}

// TestFlagValuesAreChecked: a program would end on a value that it cannot read.
func TestFlagValuesAreChecked(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"{v: abc}":                           `flags.v: "abc" is no whole number`,
		"{v: 3}":                             "",
		"{secure-port: \"0x1bb\"}":           "",
		"{leader-elect-lease-duration: 15}":  `"15" is no length of time: write number and unit`,
		"{leader-elect-lease-duration: 15s}": "",
		"{v: null}":                          "",
	} {
		_, err := Complete("cluster.yaml", []byte(head+"  components:\n    scheduler:\n      flags: "+flags+"\n"), "")
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", flags, got, want)
		}
	}
}
