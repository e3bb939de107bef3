// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// noTokenLeaks searches for a token's secret part where no secret may be, and in the cluster's directory on the host. While a machine tries
// to join, one file of that machine must hold the token, which shows that the search works.
func noTokenLeaks(c *kit.Cluster, token kit.Token) {
	secret := token.Token[strings.LastIndex(token.Token, ".")+1:]
	needles := [][]byte{[]byte(secret), []byte(base64.StdEncoding.EncodeToString([]byte(token.Token)))[:24]}
	holds := func(text []byte) bool { return bytes.Contains(text, needles[0]) || bytes.Contains(text, needles[1]) }
	look := func(where string, text []byte) {
		if holds(text) {
			c.T.Errorf("%s contains the token", where)
		}
	}
	places, _ := c.Exposed(look)
	kit.Files(c.T, filepath.Join(kit.Root, "clusters", c.Name), func(path string, _ fs.FileInfo) { look(path, c.ReadFile(path)) })
	owners := 0
	for _, m := range c.Machines() {
		kit.Files(c.T, c.On(m).Data("slipway", "state"), func(path string, info fs.FileInfo) {
			if !holds(c.ReadFile(path)) {
				return
			}
			owners++
			if info.Mode().Perm() != 0o600 || strings.Contains(m, "main") || m == c.Name+"-extra-0" {
				c.T.Errorf("%s, mode %04o, contains the token", path, info.Mode().Perm())
			}
		})
	}
	if places < 100 || owners == 0 {
		c.T.Errorf("got %d places and %d files that may contain the token, want 100 and 1: the test looks in the wrong places", places, owners)
	}
}

// needle is a part of a private key that occurs wherever the key is, with the machine and the file of the key.
type needle struct {
	machine, path string
	text          []byte
}

// noKeyLeaks searches for every private key of every machine where no secret may be, and on workers for the keys that control planes
// share. It also checks that nothing of the init secret is left.
func noKeyLeaks(c *kit.Cluster) {
	keys := privateKeys(c)
	places, _ := c.Exposed(func(where string, text []byte) {
		for _, k := range keys {
			if bytes.Contains(text, k.text) {
				c.T.Errorf("%s contains %s of %s", where, k.path, k.machine)
			}
		}
	})
	for _, m := range c.Machines() {
		machine := c.On(m)
		if _, err := os.Stat(machine.Data("slipway", "init-secret.json")); err == nil {
			c.T.Errorf("%s still has the hash of the init secret", m)
		}
		if !strings.Contains(m, "main") {
			noSharedKeys(machine, keys)
		}
	}
	kit.Files(c.T, filepath.Join(kit.Root, "clusters", c.Name), func(path string, _ fs.FileInfo) {
		if strings.HasPrefix(filepath.Base(path), "init.json") {
			c.T.Errorf("%s still exists: it contains the init secret", path)
		}
	})
	if places < 100 || len(keys) < 15 {
		c.T.Errorf("got %d places and %d keys, want 100 and 15: the test looks in the wrong places", places, len(keys))
	}
}

// noSharedKeys fails the test if a worker has a key of another machine anywhere.
func noSharedKeys(worker *kit.Cluster, keys []needle) {
	for _, dir := range []string{"etc-kubernetes", "slipway/state", "slipway/plan", "kubelet", "root"} {
		kit.Files(worker.T, worker.Data(dir), func(path string, info fs.FileInfo) {
			if !info.Mode().IsRegular() || info.Size() > 1<<20 {
				return
			}
			text := worker.ReadFile(path)
			for _, k := range keys {
				if k.machine != worker.Node && bytes.Contains(text, k.text) {
					worker.T.Errorf("%s of %s contains %s of %s", path, worker.Node, k.path, k.machine)
				}
			}
		})
	}
}

// privateKeys returns the private keys of all machines: of PEM files a line of the body, of other files everything.
func privateKeys(c *kit.Cluster) (keys []needle) {
	for _, m := range c.Machines() {
		machine := c.On(m)
		for _, dir := range []string{"etc-kubernetes/pki", "slipway/state"} {
			kit.Files(c.T, machine.Data(dir), func(path string, _ fs.FileInfo) {
				if filepath.Ext(path) != ".key" {
					return
				}
				text := c.ReadFile(path)
				if lines := bytes.Split(bytes.TrimSpace(text), []byte("\n")); bytes.HasPrefix(text, []byte("-----BEGIN")) && len(lines) > 3 {
					keys = append(keys, needle{m, filepath.Base(path), lines[2]})
				} else if len(text) == 32 {
					keys = append(keys, needle{m, filepath.Base(path), text}, needle{m, filepath.Base(path), []byte(base64.StdEncoding.EncodeToString(text))})
				}
			})
		}
	}
	return keys
}
