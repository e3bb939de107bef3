// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
)

func params() Params {
	return Params{
		DNSAddress: netip.MustParseAddr("10.96.0.10"), Replicas: 1, Corefile: ".:53 {\n}\n", CoreDNSImage: "example.test/coredns:1",
		APIEndpoint: netip.MustParseAddrPort("10.0.0.2:6443"),
	}
}

func TestClusterNames(t *testing.T) {
	t.Parallel()
	addons, err := Cluster(params())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, a := range addons {
		for _, o := range a.Objects {
			if err := o.check(); err != nil {
				t.Errorf("%s: %v", a.Name, err)
			}
			got[a.Name] = append(got[a.Name], o.String())
		}
	}
	want := map[string][]string{
		Base: {
			"Namespace kube-system", "Namespace default", "ClusterRoleBinding slipway:cluster-admins", "ClusterRoleBinding slipway:kubelet-api",
			"ClusterRoleBinding slipway:node-renewal", "ClusterRole slipway:control", "ClusterRoleBinding slipway:control",
			"Namespace slipway-system", "Role slipway-system/slipway:control", "RoleBinding slipway-system/slipway:control",
			"ValidatingAdmissionPolicy slipway-removed-nodes", "ValidatingAdmissionPolicyBinding slipway-removed-nodes",
			"ValidatingAdmissionPolicy slipway-records", "ValidatingAdmissionPolicyBinding slipway-records",
		},
		DNS: {
			"ServiceAccount kube-system/coredns", "ClusterRole system:coredns", "ClusterRoleBinding system:coredns",
			"ConfigMap kube-system/coredns", "Service kube-system/kube-dns", "Deployment kube-system/coredns",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The bindings name the groups that package pki writes to certificates.
func TestGroupsOfCertificatesAreBound(t *testing.T) {
	t.Parallel()
	addons, err := Cluster(params())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(addons[0])
	if err != nil {
		t.Fatal(err)
	}
	for group, role := range map[string]string{
		pki.AdminGroup: "cluster-admin", pki.KubeletAPIGroup: "system:kubelet-api-admin", pki.ControlGroup: "slipway:control",
		"system:nodes": "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
	} {
		want := `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role +
			`"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"` + group + `"}]`
		if !strings.Contains(string(text), want) {
			t.Errorf("group %s is not bound to %s", group, role)
		}
	}
	if strings.Contains(string(text), "system:bootstrappers") {
		t.Error("a bootstrap group is bound: a node's first certificate would be approved for any client with a bootstrap token")
	}
}

// Only the control role has rights to Secrets, and only in the namespace of the records.
func TestOnlyControlRoleReadsRecords(t *testing.T) {
	t.Parallel()
	addons, err := Cluster(params())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range addons[0].Objects {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case o.String() == "Role slipway-system/slipway:control":
			if strings.Contains(string(text), `"*"`) || !strings.Contains(string(text), `"secrets"`) {
				t.Errorf("got %s, want a role with rights to Secrets and without wildcards", text)
			}
		case strings.HasPrefix(o.Kind(), "ValidatingAdmissionPolicy"): // it grants no rights
		case strings.Contains(string(text), `"secrets"`):
			t.Errorf("%s grants a right to secrets", o)
		case o.String() == "RoleBinding slipway-system/slipway:control":
			if !strings.Contains(string(text), `"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"`+pki.ControlGroup+`"}]`) {
				t.Errorf("got %s, want a binding of the control role only", text)
			}
		}
	}
}

func TestDNSParams(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change  func(*Params)
		has     []string
		hasNot  []string
		wantErr string
	}{
		"one replica": {func(*Params) {}, []string{
			`"clusterIP":"10.96.0.10"`, `"image":"example.test/coredns:1"`, `"replicas":1`, `{"name":"KUBERNETES_SERVICE_HOST","value":"10.0.0.2"}`,
			`{"name":"KUBERNETES_SERVICE_PORT","value":"6443"}`, `"Corefile":".:53 {\n}\n"`, `"drop":["ALL"]`, `"readOnlyRootFilesystem":true`,
		}, []string{"topologySpread"}, ""},
		"spread":      {func(p *Params) { p.Replicas = 2 }, []string{`"replicas":2`, `"whenUnsatisfiable":"ScheduleAnyway"`}, nil, ""},
		"no endpoint": {func(p *Params) { p.APIEndpoint = netip.AddrPort{} }, nil, []string{"KUBERNETES_SERVICE"}, ""},
		"IPv6":        {func(p *Params) { p.APIEndpoint = netip.MustParseAddrPort("[fd00::2]:6443") }, []string{`"value":"fd00::2"`}, nil, ""},
		"no address":  {func(p *Params) { p.DNSAddress = netip.Addr{} }, nil, nil, "no address for the cluster DNS"},
		"no image":    {func(p *Params) { p.CoreDNSImage = "" }, nil, nil, "no image for the cluster DNS"},
		"negative":    {func(p *Params) { p.Replicas = -1 }, nil, nil, "-1 replicas"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := params()
			tt.change(&p)
			addons, err := Cluster(p)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got error %v, want %q", err, tt.wantErr)
				}
				return
			}
			text, err2 := json.Marshal(addons)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			for _, s := range tt.has {
				if !strings.Contains(string(text), s) {
					t.Errorf("want %s in the objects", s)
				}
			}
			for _, s := range tt.hasNot {
				if strings.Contains(string(text), s) {
					t.Errorf("do not want %s in the objects", s)
				}
			}
		})
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	const cm = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	tests := map[string]struct {
		manifest string
		want     []string
		wantErr  string
	}{
		"empty":                     {"", nil, ""},
		"only comments":             {"# nothing\n---\n# here\n", nil, ""},
		"one":                       {cm, []string{"ConfigMap a"}, ""},
		"JSON":                      {`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n"}}`, []string{"Pod n/p"}, ""},
		"several":                   {"---\n" + cm + "--- # two\n" + strings.Replace(cm, "a}", "b}", 1) + "---\n", []string{"ConfigMap a", "ConfigMap b"}, ""},
		"dashes in a block":         {cm + "data:\n  x: |\n    ---\n    y\n", []string{"ConfigMap a"}, ""},
		"list":                      {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: s}}\n", []string{"Pod s"}, ""},
		"secret":                    {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n", nil, "document 1: Secret s: a spec must not contain secrets: create it with kubectl"},
		"secret in a list":          {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n", nil, "items[0]: Secret s: a spec must not contain secrets"},
		"Secret of another group":   {"apiVersion: vault.example/v1\nkind: Secret\nmetadata: {name: s}\n", []string{"Secret s"}, ""},
		"several problems":          {"hello\n---\n" + cm + "---\nworld\n", nil, "document 3: not an object"},
		"bad name":                  {strings.Replace(cm, "a}", "Bad_Name}", 1), nil, `document 1: ConfigMap: "Bad_Name" is not a valid name: use lower-case`},
		"bad namespace":             {"apiVersion: v1\nkind: Namespace\nmetadata: {name: a.b}", nil, `Namespace: "a.b" is not a valid name`},
		"name with a slash":         {"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: a/b}", nil, `"a/b" is not a valid name`},
		"name of a role":            {"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: \"sys:A_b\"}", []string{"Role sys:A_b"}, ""},
		"dots in a name":            {strings.Replace(cm, "a}", "kube-root.crt}", 1), []string{"ConfigMap kube-root.crt"}, ""},
		"twice":                     {cm + "---\n" + cm, nil, "document 2: ConfigMap a is given twice"},
		"duplicate field":           {cm + "kind: Secret\n", nil, `document 1: `},
		"text":                      {"hello", nil, "document 1: not an object"},
		"no version":                {"kind: ConfigMap\nmetadata: {name: a}", nil, "apiVersion is missing"},
		"no kind":                   {"apiVersion: v1\nmetadata: {name: a}", nil, "kind is missing"},
		"no name":                   {"apiVersion: v1\nkind: ConfigMap", nil, "ConfigMap: metadata.name is missing"},
		"generated name":            {"apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}", nil, "generateName would create another object"},
		"status":                    {cm + "status: {x: 1}", nil, "status cannot be set"},
		"reserved label":            {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {slipway.dev/addon: x}}", nil, "is reserved for Slipway"},
		"bad item":                  {"apiVersion: v1\nkind: List\nitems: [3]\n", nil, "items[0]: not an object"},
		"items without a list kind": {"apiVersion: x/v1\nkind: Shop\nmetadata: {name: s}\nitems: [3]\n", []string{"Shop s"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse("mine", tt.manifest)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got error %v, want %q", err, tt.wantErr)
				}
				return
			}
			var names []string
			for _, o := range got.Objects {
				names = append(names, o.String())
			}
			if diff := cmp.Diff(tt.want, names); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

func TestParseKeepsNumbers(t *testing.T) {
	t.Parallel()
	got, err := Parse("mine", "apiVersion: v1\nkind: X\nmetadata: {name: a}\nbig: 9007199254740993\nport: 53\nshare: 0.25\n")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got.Objects[0])
	if want := `{"apiVersion":"v1","big":9007199254740993,"kind":"X","metadata":{"name":"a"},"port":53,"share":0.25}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v; want %s", text, err, want)
	}
}
