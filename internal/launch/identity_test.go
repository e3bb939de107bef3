// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/node/initserver"
)

func TestCreateInitSecret(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	l, socket, path := &Launcher{Root: dir}, filepath.Join(dir, "s"), filepath.Join(dir, machineSecret)
	a := &scripted{facts: &nodev1.FactsReply{Key: somePin, Facts: coremachine.Facts{Address: netip.MustParseAddr("10.0.0.4")}.Encode(), Lock: "committed", Cluster: "id", Node: "dev-main-0"}}
	if _, _, err := l.CreateInitSecret(t.Context(), socket, false); err == nil || !strings.Contains(err.Error(), "no agent") {
		t.Errorf("without an agent: %v", err)
	}
	serve(t, socket, a)
	if _, _, err := l.CreateInitSecret(t.Context(), socket, true); err == nil || !strings.Contains(err.Error(), "node dev-main-0 of cluster id") {
		t.Errorf("on a node: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("a node was given an init secret")
	}
	a.facts = &nodev1.FactsReply{Key: somePin, Facts: coremachine.Facts{Address: netip.MustParseAddr("10.0.0.4")}.Encode(), Lock: "free"}
	secret, id, err := l.CreateInitSecret(t.Context(), socket, false)
	if err != nil || id != (Identity{Key: somePin, Address: "10.0.0.4", Lock: "free"}) || len(secret) < 32 {
		t.Fatalf("%d characters, %+v, %v", len(secret), id, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(text, initserver.SecretFile(secret)) || bytes.Contains(text, []byte(secret)) {
		t.Errorf("the machine's file: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the machine's file: %v, %v", info, err)
	}
	if _, _, err := l.CreateInitSecret(t.Context(), socket, false); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a second one: %v", err)
	}
	if again, _, err := l.CreateInitSecret(t.Context(), socket, true); err != nil || again == secret {
		t.Errorf("a second one in place of the first: %v", err)
	}
}
