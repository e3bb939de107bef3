// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// node is a file or a directory.
type node struct {
	mode    fs.FileMode
	content string
}

func right() plan.State {
	return plan.State{Existence: plan.Present, Matches: true, Ready: true}
}
func wrong(detail string) plan.State { return plan.State{Existence: plan.Present, Detail: detail} }
func absent(detail string) plan.State {
	return plan.State{Existence: plan.Absent, Detail: detail}
}

// nodeOf returns the node for a file or directory of a plan. ok is false for other kinds.
func nodeOf(it plan.Item) (where string, n node, ok bool) {
	switch it := it.(type) {
	case plan.Dir:
		return it.Path, node{mode: fs.ModeDir | fs.FileMode(it.Mode).Perm()}, true
	case plan.File:
		return it.Path, node{fs.FileMode(it.Mode).Perm(), it.Content}, true
	case plan.StaticPod:
		return it.Path, node{0o600, it.Manifest}, true
	case plan.Kubeconfig:
		return it.Path, node{0o600, text(it)}, true
	}
	return "", node{}, false
}

// observeFileLocked returns the state of an item that is neither unit nor precondition.
func (h *Host) observeFileLocked(it plan.Item) plan.State {
	where, want, ok := nodeOf(it)
	if !ok {
		switch have, made := h.made[plan.RefOf(it)]; {
		case !made:
			return absent("it does not exist")
		case text(have) != text(it):
			return wrong("it differs from the plan")
		}
		return right()
	}
	have, there := h.tree[where]
	switch {
	case !there:
		return absent("it does not exist")
	case have.mode.Type() != want.mode.Type():
		return wrong("it is of another type")
	case have.mode != want.mode:
		return wrong(fmt.Sprintf("mode %04o, want %04o", have.mode.Perm(), want.mode.Perm()))
	case have.content != want.content:
		return wrong("its content differs")
	}
	return right()
}

// doFileLocked makes or removes an item that is neither unit nor precondition.
func (h *Host) doFileLocked(v plan.Verb, it plan.Item) error {
	where, want, ok := nodeOf(it)
	switch {
	case !ok && v == plan.Remove:
		delete(h.made, plan.RefOf(it))
	case !ok:
		h.made[plan.RefOf(it)] = it
	case v == plan.Remove:
		if h.emptyLocked(where) {
			delete(h.tree, where)
		}
	default:
		if have, there := h.tree[where]; there && have.mode.Type() != want.mode.Type() {
			return fmt.Errorf("%s is of another type; remove it by hand", where)
		}
		h.parentsLocked(where)
		h.tree[where] = want
	}
	return nil
}

func (h *Host) parentsLocked(p string) {
	for dir := path.Dir(p); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if _, ok := h.tree[dir]; !ok {
			h.tree[dir] = node{mode: fs.ModeDir | 0o755}
		}
	}
}

func (h *Host) emptyLocked(dir string) bool {
	for p := range h.tree {
		if strings.HasPrefix(p, dir+"/") {
			return false
		}
	}
	return true
}

// contents are the files and other items that exist on a host at one moment.
type contents struct {
	tree map[string]node
	made map[plan.Ref]plan.Item
}

func (h *Host) contentsLocked() contents { return contents{h.tree, h.made} }

func (h contents) clone() contents { return contents{maps.Clone(h.tree), maps.Clone(h.made)} }

// fingerprint changes when the content that a process reads of an item changes.
func (h contents) fingerprint(it plan.Item) string {
	if where, _, ok := nodeOf(it); ok {
		return h.tree[where].content
	}
	return text(h.made[plan.RefOf(it)])
}

func (h *Host) fingerprintLocked(ref plan.Ref) (string, error) {
	it, ok := h.seen[ref]
	if !ok {
		return "", fmt.Errorf("input %s has not been observed yet", ref)
	}
	return h.contentsLocked().fingerprint(it), nil
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // items are plain data
	}
	return string(data)
}
