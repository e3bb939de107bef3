// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
)

var errCut = errors.New("power cut")

// Killed after each change of a file, Ensure ends in the same good state, and what was finished before the cut is kept.
func TestKillSweep(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		prepare func(t *testing.T, dir string)
		want    func(dir string) pki.Want
		points  int
	}{
		"first CA":     {func(*testing.T, string) {}, caOf, 3},
		"first leaf":   {prepareCA, leafOf, 3},
		"renewed leaf": {prepareDue, leafOf, 3},
		"orphan key":   {prepareOrphan, leafOf, 2},
		"key pair":     {func(*testing.T, string) {}, keyPairWant, 2},
		"secret":       {func(*testing.T, string) {}, secretWant, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				dir := t.TempDir()
				tt.prepare(t, dir)
				w := tt.want(dir)
				l, seen := at(start), 0
				l.crash = func(string) error {
					if seen++; seen == n {
						return errCut
					}
					return nil
				}
				err := l.Ensure(t.Context(), w)
				if err == nil {
					if n != tt.points+1 {
						t.Errorf("%d changes, want %d: the sweep must cover all", n-1, tt.points)
					}
					return
				}
				if !errors.Is(err, errCut) {
					t.Fatal(err)
				}
				secretAtCut, _ := os.ReadFile(w.KeyPath)
				l = at(start)
				ensure(t, l, w)
				if ok, _, detail, err := l.Check(t.Context(), w); !ok || detail != "" || err != nil {
					t.Errorf("cut at %d: ok %v, %q, %v", n, ok, detail, err)
				}
				after, _ := os.ReadFile(w.KeyPath)
				if n > 1 && len(secretAtCut) > 0 && !bytes.Equal(secretAtCut, after) {
					t.Errorf("cut at %d: a second key was made", n)
				}
				for path := range snapshot(t, dir) {
					if strings.HasSuffix(path, ".tmp") || strings.HasSuffix(path, stagedExt) {
						t.Errorf("cut at %d: %s is left over", n, path)
					}
				}
			}
		})
	}
}

func prepareCA(t *testing.T, dir string) { ensure(t, at(start), authority(dir, "ca")) }

func prepareDue(t *testing.T, dir string) {
	w := leafOf(dir)
	w.Lifetime = time.Hour
	ensure(t, at(start.Add(-50*time.Minute)), authority(dir, "ca"), w)
}

func prepareOrphan(t *testing.T, dir string) {
	ensure(t, at(start), authority(dir, "ca"), leafOf(dir))
	remove("apiserver.crt")(t, dir, nil)
}

func TestDebrisIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ensure(t, at(start), everything(dir)...)
	before := snapshot(t, dir)
	for _, name := range []string{".ca.key.123-0.tmp", ".apiserver.crt.new.9-12.tmp", ".encryption.key.1-0.tmp"} {
		write(name, 0o600, "half a key")(t, dir, nil)
	}
	write(".ca.key.mine.tmp", 0o600, "not ours")(t, dir, nil)
	ensure(t, at(start), everything(dir)...)
	remove(".ca.key.mine.tmp")(t, dir, nil)
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// Modes are right from creation, whatever the umask. Not parallel: the umask belongs to the process.
func TestModes(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077} {
		dir := t.TempDir()
		old := syscall.Umask(mask)
		modes := map[string]string{}
		l := at(start)
		l.crash = func(string) error { // looks at every file the moment it has been written
			for path, text := range snapshot(t, dir) {
				modes[path], _, _ = strings.Cut(text, " ")
			}
			return nil
		}
		ensure(t, l, everything(dir)...)
		syscall.Umask(old)
		want := map[string]string{
			"/ca.key": "-rw-------", "/ca.crt": "-rw-r--r--", "/ca.crt.new": "-rw-r--r--",
			"/apiserver.key": "-rw-------", "/apiserver.crt": "-rw-r--r--", "/apiserver.crt.new": "-rw-r--r--",
			"/sa.key": "-rw-------", "/sa.pub": "-rw-r--r--", "/encryption.key": "-rw-------",
		}
		if diff := cmp.Diff(want, modes); diff != "" {
			t.Errorf("umask %04o: %s", mask, diff)
		}
	}
}

// No byte of a secret reaches an error or a detail, however the file is damaged.
func TestNoSecretInErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wants := everything(dir)
	ensure(t, at(start), wants...)
	var canaries []string
	for _, w := range wants {
		data, _ := os.ReadFile(w.KeyPath)
		if block, _ := pem.Decode(data); block != nil {
			canaries = append(canaries, strings.Split(string(data), "\n")[1:3]...)
			data = block.Bytes
		}
		canaries = append(canaries, hex.EncodeToString(data)[8:40], string(data[8:24]))
	}
	said := 0
	for _, w := range wants {
		whole, _ := os.ReadFile(w.KeyPath)
		for cut := 0; cut < len(whole)*2; cut += 7 {
			data := whole[:min(cut, len(whole))]
			if cut >= len(whole) { // a flipped byte instead
				data = bytes.Clone(whole)
				data[cut-len(whole)] ^= 4
			}
			write(filepath.Base(w.KeyPath), 0o600, string(data))(t, dir, nil)
			_, _, detail, err := at(start).Check(t.Context(), w)
			text := detail
			for _, e := range []error{err, at(start).Ensure(t.Context(), w)} {
				if e != nil {
					text += e.Error()
				}
			}
			said += len(text)
			for _, c := range canaries {
				if strings.Contains(text, c) {
					t.Fatalf("%s, damaged at %d: a secret is in %q", w.Name, cut, text)
				}
			}
		}
	}
	if said == 0 {
		t.Error("no damage was ever reported: the test looked at nothing")
	}
}
