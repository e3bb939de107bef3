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

// leaksNothing looks for a token's secret part where no secret may be: on command lines, in environments, in logs and plans, and in
// whatever everybody may read. While a machine tries to join with it, one file of that machine holds it, and the test finds it there,
// or it would find nothing anywhere.
func leaksNothing(c *kit.Cluster, token kit.Token) {
	secret := token.Token[strings.LastIndex(token.Token, ".")+1:]
	needles := [][]byte{[]byte(secret), []byte(base64.StdEncoding.EncodeToString([]byte(token.Token)))[:24]}
	holds := func(text []byte) bool { return bytes.Contains(text, needles[0]) || bytes.Contains(text, needles[1]) }
	places, owners := 0, 0
	look := func(where string, text []byte) {
		places++
		if holds(text) {
			c.T.Errorf("%s holds the token", where)
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range procs {
		for _, file := range []string{"cmdline", "environ"} {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil { // it may have ended
				look(file+" of process "+filepath.Base(dir), text)
			}
		}
	}
	for _, m := range c.Machines() {
		machine := c.On(m)
		for _, folder := range []string{"log", "slipway/plan", "slipway/trace"} {
			kit.Files(c.T, machine.Data(folder), func(path string, _ fs.FileInfo) { look(path, read(c, path)) })
		}
		for _, folder := range []string{filepath.Join(machine.Folder(), "data"), filepath.Join(machine.Folder(), "upper")} {
			kit.OpenFiles(c.T, folder, func(path string, info fs.FileInfo) {
				if info.Mode()&0o004 != 0 && info.Mode()&0o111 == 0 && info.Size() < 1<<20 {
					look("world-readable "+path, read(c, path))
				}
			})
		}
		look("console", read(c, filepath.Join(machine.Folder(), "console.log")))
		kit.Files(c.T, machine.Data("slipway", "state"), func(path string, info fs.FileInfo) {
			if !holds(read(c, path)) {
				return
			}
			owners++
			if info.Mode().Perm() != 0o600 || strings.Contains(m, "main") || m == c.Name+"-extra-0" {
				c.T.Errorf("%s, mode %04o, holds the token", path, info.Mode().Perm())
			}
		})
	}
	kit.Files(c.T, filepath.Join(kit.Root, "clusters", c.Name), func(path string, _ fs.FileInfo) { look(path, read(c, path)) })
	if places < 100 || owners == 0 {
		c.T.Errorf("%d places, %d files of the machine that tries hold the token: the test looks at the wrong places", places, owners)
	}
}

func read(c *kit.Cluster, path string) []byte {
	c.T.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) { // rotated away since
		c.T.Fatal(err)
	}
	return text
}

// needle is a part of a private key that is found wherever the key is, and the machine and file that it belongs to.
type needle struct {
	machine, path string
	text          []byte
}

// keysStayAtHome looks for every private key of every machine where none may be; on workers it looks for the keys that control planes
// share, in all that they have. Of the init secret nothing is left at all.
func keysStayAtHome(c *kit.Cluster) {
	keys := privateKeys(c)
	places := 0
	look := func(where string, text []byte) {
		places++
		for _, k := range keys {
			if bytes.Contains(text, k.text) {
				c.T.Errorf("%s holds %s of %s", where, k.path, k.machine)
			}
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range procs {
		for _, file := range []string{"cmdline", "environ"} {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil { // it may have ended
				look(file+" of process "+filepath.Base(dir), text)
			}
		}
	}
	for _, m := range c.Machines() {
		machine := c.On(m)
		for _, folder := range []string{"log", "slipway/plan", "slipway/trace"} {
			kit.Files(c.T, machine.Data(folder), func(path string, _ fs.FileInfo) { look(path, read(c, path)) })
		}
		look("console of "+m, read(c, filepath.Join(machine.Folder(), "console.log")))
		kit.OpenFiles(c.T, filepath.Join(machine.Folder(), "data"), func(path string, info fs.FileInfo) {
			if info.Mode()&0o004 != 0 && info.Mode()&0o111 == 0 && info.Size() < 1<<20 {
				look("world-readable "+path, read(c, path))
			}
		})
		if _, err := os.Stat(machine.Data("slipway", "init-secret.json")); err == nil {
			c.T.Errorf("%s has the init secret's hash still", m)
		}
		if !strings.Contains(m, "main") {
			sharesNothing(c, machine, keys)
		}
	}
	kit.Files(c.T, filepath.Join(kit.Root, "clusters", c.Name), func(path string, _ fs.FileInfo) {
		if strings.HasPrefix(filepath.Base(path), "init.json") {
			c.T.Errorf("%s is there still: it holds the init secret", path)
		}
	})
	if places < 100 || len(keys) < 15 {
		c.T.Errorf("%d places, %d keys: the test looks at the wrong things", places, len(keys))
	}
}

// sharesNothing: a worker has nothing of what control planes share, wherever it may lie.
func sharesNothing(c *kit.Cluster, worker *kit.Cluster, keys []needle) {
	for _, folder := range []string{"etc-kubernetes", "slipway/state", "slipway/plan", "kubelet", "root"} {
		kit.Files(c.T, worker.Data(folder), func(path string, info fs.FileInfo) {
			if !info.Mode().IsRegular() || info.Size() > 1<<20 {
				return
			}
			text := read(c, path)
			for _, k := range keys {
				if k.machine != worker.Node && bytes.Contains(text, k.text) {
					c.T.Errorf("%s of %s holds %s of %s", path, worker.Node, k.path, k.machine)
				}
			}
		})
	}
}

// privateKeys are those of all machines: of the PEM files a line from the middle, of the raw ones all.
func privateKeys(c *kit.Cluster) (keys []needle) {
	for _, m := range c.Machines() {
		machine := c.On(m)
		for _, folder := range []string{"etc-kubernetes/pki", "slipway/state"} {
			kit.Files(c.T, machine.Data(folder), func(path string, _ fs.FileInfo) {
				if filepath.Ext(path) != ".key" {
					return
				}
				text := read(c, path)
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
