// SPDX-License-Identifier: Apache-2.0

package clusterdir

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/report"
)

const head = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec:\n"

// TestCompleteAsksTheCatalogue checks that a flag that a component of the release does not have is refused with its position.
func TestCompleteAsksTheCatalogue(t *testing.T) {
	t.Parallel()
	for _, component := range []string{"etcd", "apiserver", "controllerManager", "scheduler", "kubelet", "kubeProxy", "containerd"} {
		_, err := Complete("cluster.yaml", []byte(head+"  components:\n    "+component+":\n      flags: {no-such-flag: 1}\n"), "")
		want := "cluster.yaml:7:15: spec.components." + component + ".flags.no-such-flag: "
		var bad *report.Error
		if !errors.As(err, &bad) || bad.Kind != report.InvalidSpec || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", component, err, want)
		}
	}
	_, err := Complete("cluster.yaml", []byte(head+"  featureGates: {InPlacePodVerticalScalling: true}\n"), "")
	if err == nil || !strings.Contains(err.Error(), `5:18: spec.featureGates.InPlacePodVerticalScalling: `) {
		t.Errorf("unknown feature gate: got %v, want its position", err)
	}
	c, err := Complete("cluster.yaml", []byte(head+"  featureGates: {InPlacePodVerticalScaling: true}\n"), "1.36")
	if err != nil || c.Config.APIServer.Flags["feature-gates"][0] != "InPlacePodVerticalScaling=true" {
		t.Errorf("known feature gate: %v", err)
	}
}

// TestAllProblemsAtOnce checks that an unknown field does not hide unknown flags and feature gates, and that no problem is
// reported twice.
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

// TestFlagValuesAreChecked checks that flag values that a component could not parse are refused.
func TestFlagValuesAreChecked(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"{v: abc}":                           `flags.v: "abc" is not a whole number`,
		"{v: 3}":                             "",
		"{secure-port: \"0x1bb\"}":           "",
		"{leader-elect-lease-duration: 15}":  `"15" is not a duration: write a number and a unit`,
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

// TestConfigFieldsAreChecked checks that unknown fields and values of the wrong type in component configuration are refused.
func TestConfigFieldsAreChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kubelet: {config: {maxPodz: 3}}":                                     `config.maxPodz: the configuration of kubelet has no such field: did you mean "maxPods"?`,
		"kubelet: {config: {maxPods: -3}}":                                    "config.maxPods: must not be negative",
		"kubelet: {config: {maxPods: many}}":                                  "config.maxPods: must be a whole number",
		"kubelet: {config: {maxPods: 30, evictionHard: {nodefs: \"5%\"}}}":    "",
		"kubelet: {config: {authentication: {anonymus: {}}}}":                 `did you mean "anonymous"?`,
		"kubelet: {config: {authentication: {webhook: {cacheTTL: 5}}}}":       "cacheTTL: is not a duration",
		"kubelet: {config: {logging: {flushFrequency: 5000000000}}}":          "",
		"kubelet: {config: {registerWithTaints: null}}":                       "",
		"kubeProxy: {config: {nftables: {masqueradeAll: 1}}}":                 "masqueradeAll: must be true or false",
		"scheduler: {config: {profiles: [{schedulerName: a}]}}":               "",
		"scheduler: {config: {leaderElection: yes please}}":                   "leaderElection: must be an object",
		"scheduler: {config: {percentageOfNodesToScore: 50, parallelism: 4}}": "",
	} {
		_, err := Complete("cluster.yaml", []byte(head+"  components:\n    "+text+"\n"), "")
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// TestOwnFieldsAreKnown checks that the tables have every field that slipway itself writes, so that a completed spec is valid.
func TestOwnFieldsAreKnown(t *testing.T) {
	t.Parallel()
	c, err := Complete("x", []byte(head), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Complete("complete.yaml", config.Print(c.Config), ""); err != nil {
		t.Error(err)
	}
}

const shortest = "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\n"

func TestCompleteRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, version, want string }{
		"all problems at once": {
			"apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {nam: dev}\nspec: {colour: red}\n", "",
			"cluster.yaml:3:12: metadata.nam: ",
		},
		"a version that is not there": {shortest, "1.12", `find release "1.12": not in the catalogue, which has `},
	} {
		_, err := Complete("cluster.yaml", []byte(tc.spec), tc.version)
		var bad *report.Error
		if !errors.As(err, &bad) || bad.Kind != report.InvalidSpec || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	_, err := Complete("cluster.yaml", []byte("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {nam: dev}\nspec: {colour: red}\n"), "")
	if n := strings.Count(err.Error(), "cluster.yaml:"); n < 2 {
		t.Errorf("got %d problems:\n%s", n, err)
	}
}

func TestVersionByAnyOfItsNames(t *testing.T) {
	t.Parallel()
	c, err := Complete("cluster.yaml", []byte(shortest), "")
	if err != nil {
		t.Fatal(err)
	}
	full := c.Release
	for _, version := range []string{"", full.Minor(), "v" + full.Minor(), full.Kubernetes, "v" + full.Kubernetes} {
		c, err := Complete("cluster.yaml", []byte(shortest), version)
		if err != nil || c.Release.Kubernetes != full.Kubernetes || c.Config.Minor != full.Minor() {
			t.Errorf("%q: %s, %v", version, c.Release.Kubernetes, err)
		}
	}
}
