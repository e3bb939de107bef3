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

var errCrash = errors.New("crash")

// After a crash at any change of a file, the next Ensure completes the work and keeps what was already durable.
func TestCrashAtEveryWrite(t *testing.T) {
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
						return errCrash
					}
					return nil
				}
				err := l.Ensure(t.Context(), w)
				if err == nil {
					if n != tt.points+1 {
						t.Errorf("got %d changes, want %d", n-1, tt.points)
					}
					return
				}
				if !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
				secretAtCrash, _ := os.ReadFile(w.KeyPath)
				l = at(start)
				ensure(t, l, w)
				if ok, _, detail, err := l.Check(t.Context(), w); !ok || detail != "" || err != nil {
					t.Errorf("crash at %d: got ok=%v, detail %q, error %v", n, ok, detail, err)
				}
				after, _ := os.ReadFile(w.KeyPath)
				if n > 1 && len(secretAtCrash) > 0 && !bytes.Equal(secretAtCrash, after) {
					t.Errorf("crash at %d: a second key was created", n)
				}
				for path := range snapshot(t, dir) {
					if strings.HasSuffix(path, ".tmp") || strings.HasSuffix(path, stagedExt) {
						t.Errorf("crash at %d: %s was not removed", n, path)
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

func TestTemporaryFilesAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ensure(t, at(start), everything(dir)...)
	before := snapshot(t, dir)
	for _, name := range []string{".ca.key.123-0.tmp", ".apiserver.crt.new.9-12.tmp", ".encryption.key.1-0.tmp"} {
		write(name, 0o600, "half a key")(t, dir, nil)
	}
	write(".ca.key.mine.tmp", 0o600, "of another program")(t, dir, nil)
	ensure(t, at(start), everything(dir)...)
	remove(".ca.key.mine.tmp")(t, dir, nil)
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// Files have the right mode from their creation, for any umask. Not parallel: the umask belongs to the process.
func TestModes(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077} {
		dir := t.TempDir()
		old := syscall.Umask(mask)
		modes := map[string]string{}
		l := at(start)
		l.crash = func(string) error { // runs after every write
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

// Errors and details contain no byte of a secret, however the file is damaged.
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
	reported := 0
	for _, w := range wants {
		whole, _ := os.ReadFile(w.KeyPath)
		for cut := 0; cut < len(whole)*2; cut += 7 {
			data := whole[:min(cut, len(whole))]
			if cut >= len(whole) { // flip a byte instead
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
			reported += len(text)
			for _, c := range canaries {
				if strings.Contains(text, c) {
					t.Fatalf("%s, damaged at %d: the text contains a secret: %q", w.Name, cut, text)
				}
			}
		}
	}
	if reported == 0 {
		t.Error("no damage was reported: the test checked nothing")
	}
}
