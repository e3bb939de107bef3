// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// everyKind has one item of each of the nine kinds, with every field set.
func everyKind() plan.Plan {
	var b plan.Builder
	dir := b.Add(plan.Dir{Path: "/etc/x", Mode: 0o755, Data: true})
	secret := b.Add(plan.Cert{Want: pki.Want{Name: "secret", Kind: pki.Secret, KeyPath: "/etc/x/secret"}}, dir)
	file := b.Add(plan.File{Path: "/etc/x/f", Mode: 0o600, Content: "<&> \u2028", Fill: map[string]string{"{{s}}": "/etc/x/secret"}, UserOwned: true}, dir, secret)
	bin := b.Add(plan.Artifact{Path: "/opt/bin/x", Digest: "sha256:00", Name: "x v1"})
	mount := b.Add(plan.Mount{Target: "/data", Source: "/dev/x", Type: "ext4", Options: []string{"ro"}})
	cert := b.Add(plan.Cert{Want: pki.Want{
		Name: "leaf", Kind: pki.Leaf, Signer: "ca", CommonName: "cn", Organizations: []string{"o"}, DNSNames: []string{"a"},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Usages: []pki.Usage{pki.ServerAuth}, Lifetime: time.Hour,
		CertPath: "/c", KeyPath: "/k", SignerCert: "/sc", SignerKey: "/sk", Permit: "/permit",
	}})
	conf := b.Add(plan.Kubeconfig{
		Path: "/etc/k.conf", Cluster: "c", User: "u", Server: "https://127.0.0.1:6443", CAFile: "/ca", CertFile: "/c", KeyFile: "/k", Embed: true,
	}, cert)
	precondition := b.Add(plan.Precondition{Name: "quorum", Provider: "the others", Ready: plan.Probe{Kind: plan.ProbeFile, Path: "/p"}})
	b.Add(plan.StaticPod{
		Name: "p", Path: "/etc/kubernetes/manifests/p.yaml", Manifest: "kind: Pod\n", At: "/data/p.yaml", Component: true, Image: "x:1",
		Ready: plan.Probe{Kind: plan.ProbeTCP, Address: "a:2"}, Inputs: []plan.Ref{file}, DataGuard: plan.DataGuard{Mark: "/m", Data: "/d", FreshStart: "/n"},
	}, precondition, file)
	b.Add(plan.Unit{
		Name: "u", Args: []string{"/opt/bin/x", "--a"}, Env: []string{"A=b"}, EnvFile: "/env", Dir: "/", Oneshot: true, Inputs: []plan.Ref{file},
		Ready: plan.Probe{
			Kind: plan.ProbeHTTP, URL: "https://127.0.0.1", CA: "/ca", Cert: "/c", Key: "/k", Contains: "ok", Address: "a:1", Args: []string{"/t"}, Path: "/q",
		},
		StopTimeout: time.Minute, KillChildren: true, OOMScore: -7,
	}, file, bin, mount, conf)
	p := b.Plan("dev", "n1", "1.36.4")
	p.Entries[0].Deadline = time.Second
	return p
}

func TestCodecRoundTrip(t *testing.T) {
	t.Parallel()
	want := everyKind()
	kinds := map[plan.Kind]bool{}
	for _, e := range want.Entries {
		kinds[e.Item.Kind()] = true
	}
	if len(kinds) != 9 {
		t.Fatalf("got %d kinds, want 9: %v", len(kinds), kinds)
	}
	first := encode(t, want)
	got, err := plan.Decode(first)
	if err != nil {
		t.Fatal(err)
	}
	opts := cmp.Options{cmp.AllowUnexported(plan.Ref{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(want, got, opts); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
	if second := encode(t, got); string(first) != string(second) {
		t.Errorf("the second encoding differs:\n%s", cmp.Diff(string(first), string(second)))
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	const (
		head = `{"version":1,"cluster":"c","node":"n","release":"r","entries":[`
		dir  = `{"ref":"dir//a","kind":"dir","item":{"path":"/a","mode":493}}`
	)
	for name, tc := range map[string]struct{ in, want string }{
		"nothing":            {``, `decode plan: unexpected end of JSON input`},
		"no plan":            {`[]`, `decode plan: json: cannot unmarshal array into Go value of type struct { Version int "json:\"version\"" }`},
		"no version":         {`{}`, `decode plan: version 0, want 1 (use the same slipway version on the operator's host and the node)`},
		"newer, unknown all": {`{"version":2,"phases":[]}`, `decode plan: version 2, want 1 (use the same slipway version on the operator's host and the node)`},
		"unknown field":      {`{"version":1,"colour":"red"}`, `decode plan: json: unknown field "colour"`},
		"more behind":        {head + dir + `]} {}`, `decode plan: invalid character '{' after top-level value`},
		"unknown kind": {
			head + `{"ref":"vm//a","kind":"vm","item":{}}]}`,
			`decode plan: entry vm//a: unknown kind "vm": the agent is older than the plan; update slipway on the node`,
		},
		"no item":            {head + `{"ref":"dir//a","kind":"dir"}]}`, `decode plan: entry dir//a: no item`},
		"null item":          {head + `{"ref":"dir//a","kind":"dir","item":null}]}`, `decode plan: entry dir//a: reference does not match the item or is used twice`},
		"unknown item field": {head + `{"ref":"dir//a","kind":"dir","item":{"path":"/a","colour":"me"}}]}`, `decode plan: entry dir//a: json: unknown field "colour"`},
		"unknown entry field": {
			head + `{"ref":"dir//a","kind":"dir","wave":1,"item":{"path":"/a"}}]}`, `decode plan: entry dir//a: json: unknown field "wave"`,
		},
		"reference of another": {head + `{"ref":"dir//b","kind":"dir","item":{"path":"/a"}}]}`, `decode plan: entry dir//b: reference does not match the item or is used twice`},
		"twice":                {head + dir + `,` + dir + `]}`, `decode plan: entry dir//a: reference does not match the item or is used twice`},
		"needs a later one": {
			head + `{"ref":"file//a/f","kind":"file","needs":["dir//a"],"item":{"path":"/a/f"}},` + dir + `]}`,
			`decode plan: entry file//a/f: needs dir//a, which does not come before it`,
		},
		"needs itself": {
			head + `{"ref":"dir//a","kind":"dir","needs":["dir//a"],"item":{"path":"/a"}}]}`,
			`decode plan: entry dir//a: needs dir//a, which does not come before it`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := plan.Decode([]byte(tc.in))
			if err == nil || err.Error() != tc.want {
				t.Errorf("error %v\nwant  %s", err, tc.want)
			}
			if len(p.Entries) > 0 || p.Version != 0 {
				t.Errorf("Decode returned %+v with an error, want the zero Plan", p)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	good, err := plan.Encode(everyKind())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"entries":[{"ref":"precondition/g","kind":"precondition","item":{"name":"g"}}]}`))
	f.Add([]byte(strings.ReplaceAll(string(good), "unit", "vm")))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := plan.Decode(data)
		if err != nil {
			return
		}
		first := encode(t, p)
		again, err := plan.Decode(first)
		if err != nil {
			t.Fatalf("decode an encoded plan: %v", err)
		}
		if second := encode(t, again); string(first) != string(second) {
			t.Fatalf("encoding is not stable:\n%s\n%s", first, second)
		}
	})
}

func encode(t testing.TB, p plan.Plan) []byte {
	t.Helper()
	data, err := plan.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
