// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/operate"
)

// TestMemberTexts compares the output of the commands for nodes, tokens and init with golden files.
func TestMemberTexts(t *testing.T) {
	t.Parallel()
	nodes := []operate.Node{
		{
			Name: "dev-main-0", Roles: []string{"control-plane", "worker"}, Addresses: []string{"10.89.0.10"}, Ready: true, Version: "v1.36.4", PodCIDR: "10.244.0.0/24",
			Member: "voter",
		},
		{Name: "dev-main-1", Roles: []string{"control-plane", "worker"}, Addresses: []string{"10.89.0.11"}, Ready: true, Version: "v1.36.4", Unschedulable: true},
		{Name: "dev-worker-0", Roles: []string{"worker"}, Addresses: []string{}, Waiting: "its machine\nto come"},
	}
	tokens := []operate.Token{
		{ID: "a1", Pool: "worker", Expires: now().Add(90 * time.Second)},
		{ID: "b2", Pool: "worker", Node: "dev-worker-1", Expires: before(time.Minute)},
		{ID: "c3", Pool: "main", Expires: now().Add(time.Minute), UsedBy: "sha256:12"},
	}
	made := bootstrap.Initialized{
		Name: "prod", Cluster: "0123", Node: "prod-main-0", Machine: "sha256:12", Server: "https://10.0.0.4:6443", Kubeconfig: "/k", Changed: true,
	}
	for name, show := range map[string]func(w io.Writer){
		"nodes":     func(w io.Writer) { nodeText(w, nodes) },
		"no-nodes":  func(w io.Writer) { nodeText(w, nil) },
		"tokens":    func(w io.Writer) { tokensText(w, tokens, now()) },
		"no-tokens": func(w io.Writer) { tokensText(w, nil, now()) },
		"token": func(w io.Writer) {
			tokenText(w, operate.NewToken{
				ID: "a1", Token: "a1.secret", Pool: "worker", Pin: "sha256:12", Endpoints: []string{"10.89.0.10:9440", "10.89.0.11:9440"}, Expires: now(),
			})
		},
		"init":       func(w io.Writer) { initText(w, made, 12340*time.Millisecond) },
		"nodes-json": func(w io.Writer) { _ = asJSON.array(w, nodes) },
		"none-json":  func(w io.Writer) { _ = asJSON.array(w, []operate.Node{}) },
		"nodes-yaml": func(w io.Writer) { _ = asYAML.array(w, nodes) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			show(&out)
			golden(t, filepath.Join("testdata", "members", name+".txt"), out.String())
		})
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "yes": true, "n\n": false, "\n": false, "": false, "yess\n": false} {
		var out bytes.Buffer
		err := ask(strings.NewReader(answer), &out, "Sure?")
		if (err == nil) != want || out.String() != "Sure? [y/N] " {
			t.Errorf("answer %q: got %v and question %q, want confirmed %v", answer, err, out.String(), want)
		}
	}
}

// TestSecret checks that a secret is one word of limited length.
func TestSecret(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want, err string }{
		"a line":     {"abc\n", "abc", ""},
		"no end":     {"abc", "abc", ""},
		"spaces":     {"  abc \r\n", "abc", ""},
		"nothing":    {"\n", "", "no token: pass it"},
		"two lines":  {"abc\ndef\n", "", "contains white space"},
		"a megabyte": {strings.Repeat("x", 1<<20), "", "longer than 4096 bytes"},
	} {
		got, err := secret(Env{In: strings.NewReader(test.in)}, "", "token", "--token-file")
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got %q (%v), want %q (%s)", name, got, err, test.want, test.err)
		}
	}
}
