// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Exposed calls look for everything that may not contain a secret: the command lines and environments of all processes of the host, the
// files of the host's API proxy, and in each machine of the cluster the logs, plans, traces, the console and all world-readable files
// except programs and image archives. It returns how many places there are, and how many of them are world-readable files: a test that
// finds none looks in the wrong place.
func (c *Cluster) Exposed(look func(where string, text []byte)) (places, readable int) {
	c.T.Helper()
	count := func(where string, text []byte) {
		places++
		look(where, text)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range procs {
		for _, file := range []string{"cmdline", "environ"} {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil { // it may have exited
				count(file+" of process "+filepath.Base(dir), text)
			}
		}
	}
	file := func(path string, _ fs.FileInfo) { count(path, c.ReadFile(path)) }
	Files(c.T, filepath.Join(Root, "clusters", c.Name, "proxy"), file)
	for _, name := range c.Machines() {
		m := c.On(name)
		for _, dir := range []string{"log", "slipway/plan", "slipway/trace"} {
			Files(c.T, m.Data(dir), file)
		}
		file(filepath.Join(m.Dir(), "console.log"), nil)
		for _, dir := range []string{"data", "upper"} {
			ReachableFiles(c.T, filepath.Join(m.Dir(), dir), func(path string, info fs.FileInfo) {
				program := info.Mode()&0o111 != 0 || strings.HasSuffix(path, ".tar")
				if info.Mode()&0o004 != 0 && !program {
					readable++
					count("world-readable "+path, c.ReadFile(path))
				}
			})
		}
	}
	return places, readable
}

// ReadFile returns the content of a file of the host; it is empty if the file does not exist any more, as after a log rotation.
func (c *Cluster) ReadFile(path string) []byte {
	c.T.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		c.T.Fatal(err)
	}
	return text
}
