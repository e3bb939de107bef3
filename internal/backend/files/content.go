// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// content is the wanted state of a regular file, for any kind of item.
type content struct {
	path    string
	mode    fs.FileMode
	render  func() ([]byte, error)
	secret  bool   // no part of the content may be printed
	scratch string // directory for the temporary file; empty means the directory of path
}

// file returns the wanted content of a File, with the secrets of Fill filled in when it is rendered.
func file(f plan.File) content {
	return content{path: f.Path, mode: fs.FileMode(f.Mode).Perm(), secret: len(f.Fill) > 0, render: func() ([]byte, error) {
		text := f.Content
		for placeholder, source := range f.Fill {
			secret, err := os.ReadFile(source)
			if err != nil {
				return nil, fmt.Errorf("fill %s: %w", placeholder, err)
			}
			text = strings.ReplaceAll(text, placeholder, base64.StdEncoding.EncodeToString(secret))
		}
		return []byte(text), nil
	}}
}

// observeContent compares a file with its wanted type, mode, owner and content. Links are not followed.
func observeContent(c content) (plan.State, error) {
	info, err := os.Lstat(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent(), nil
	}
	if err != nil {
		return plan.State{}, err
	}
	if !info.Mode().IsRegular() {
		return wrong("it is " + typeName(info.Mode()) + ", want a file"), nil
	}
	want, err := c.render()
	if err != nil {
		return plan.State{}, fmt.Errorf("observe %s: %w", c.path, err)
	}
	have, err := os.ReadFile(c.path)
	if err != nil {
		return plan.State{}, err
	}
	details := drift(info, c.mode, os.Geteuid(), -1)
	if !bytes.Equal(have, want) {
		details = append(details, c.difference(have, want))
	}
	if len(details) > 0 {
		return wrong(strings.Join(details, "; ")), nil
	}
	return right(), nil
}

// difference describes where the content differs, without printing any of it.
func (c content) difference(have, want []byte) string {
	if c.secret {
		return "its content differs"
	}
	a, b := bytes.Split(have, []byte("\n")), bytes.Split(want, []byte("\n"))
	line := 0
	for line < len(a) && line < len(b) && bytes.Equal(a[line], b[line]) {
		line++
	}
	return fmt.Sprintf("its content differs from line %d onwards", line+1)
}

// makeContent writes a file atomically and durably. It refuses to replace a directory.
func makeContent(c content) error {
	if info, err := os.Lstat(c.path); err == nil && info.IsDir() {
		return fmt.Errorf("write %s: it is a directory; remove it if its contents are not needed", c.path)
	}
	data, err := c.render()
	if err != nil {
		return fmt.Errorf("write %s: %w", c.path, err)
	}
	if err := makeParent(c.path); err != nil {
		return err
	}
	if c.scratch == "" {
		return durable.WriteFile(c.path, c.mode, data)
	}
	scratch := filepath.Join(c.scratch, "."+filepath.Base(c.path)+".slipway")
	if err := durable.WriteFile(scratch, c.mode, data); err != nil {
		return err
	}
	err = os.Rename(scratch, c.path)
	if errors.Is(err, syscall.EXDEV) { // the directory is a mount point; the kubelet ignores names with a leading dot
		return errors.Join(os.Remove(scratch), durable.WriteFile(c.path, c.mode, data))
	}
	if err != nil {
		return errors.Join(err, os.Remove(scratch))
	}
	return durable.SyncDir(filepath.Dir(c.path))
}

// makeParent creates the missing parent directories of path.
func makeParent(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make parent directory of %s: %w", path, err)
	}
	return nil
}

// drift describes how mode and owner differ from what is wanted. A negative gid allows any group.
func drift(info fs.FileInfo, mode fs.FileMode, uid, gid int) []string {
	var details []string
	if have := info.Mode().Perm(); have != mode {
		details = append(details, fmt.Sprintf("mode %04o, want %04o", have, mode))
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(st.Uid) != uid {
		details = append(details, fmt.Sprintf("owner %d, want %d", st.Uid, uid))
	}
	if ok && gid >= 0 && int(st.Gid) != gid {
		details = append(details, fmt.Sprintf("group %d, want %d", st.Gid, gid))
	}
	return slices.Clip(details)
}

func typeName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symlink"
	case m.IsRegular():
		return "a file"
	}
	return "a special file"
}

const kubeconfigText = `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[3]s
    %[4]s
contexts:
- name: %[7]s
  context:
    cluster: %[1]s
    user: %[2]s
current-context: %[7]s
users:
- name: %[2]s
  user:
    %[5]s
    %[6]s
`

// kubeconfig returns the wanted content of a Kubeconfig. With Embed, the credentials are read when it is
// rendered.
func kubeconfig(k plan.Kubeconfig) content {
	return content{path: k.Path, mode: 0o600, secret: k.Embed, render: func() ([]byte, error) {
		var lines [3]string
		for i, c := range []struct{ field, path string }{
			{"certificate-authority", k.CAFile}, {"client-certificate", k.CertFile}, {"client-key", k.KeyFile},
		} {
			if !k.Embed {
				lines[i] = c.field + ": " + strconv.Quote(c.path)
				continue
			}
			data, err := os.ReadFile(c.path)
			if err != nil {
				return nil, fmt.Errorf("embed credentials: %w", err)
			}
			lines[i] = c.field + "-data: " + base64.StdEncoding.EncodeToString(data)
		}
		q := strconv.Quote // a quoted string of Go with these characters is one of YAML too
		return fmt.Appendf(nil, kubeconfigText, q(k.Cluster), q(k.User), q(k.Server), lines[0], lines[1], lines[2],
			q(k.User+"@"+k.Cluster)), nil
	}}
}
