// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/objects"
)

// manifest checks that an add-on's text is a series of Kubernetes objects. Lines are counted within the text.
func (k *checker) manifest(path, text string) {
	before := len(k.d.problems)
	k.manifestText(path, text)
	if len(k.d.problems) > before || k.d.full() {
		return
	}
	for _, err := range objects.Problems(text) { // what up would refuse
		k.say(path, "", "%s", strings.TrimPrefix(oneLine(err.Error()), "document 1: "))
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (k *checker) manifestText(path, text string) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	count := 0
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			k.say(path, "", "not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
			return
		}
		root := doc.Content[0]
		if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
			continue
		}
		count++
		k.manifestObject(path, root)
	}
	if count == 0 {
		k.say(path, "", "holds no object")
	}
}

func (k *checker) manifestObject(path string, root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		k.say(path, "", "%s%s is no Kubernetes object", line(root.Line), kindName(root))
		return
	}
	_, meta := lookup(root, "metadata")
	if meta == nil {
		meta = &yaml.Node{}
	}
	if _, kind := lookup(root, "kind"); kind != nil && strings.HasSuffix(kind.Value, "List") {
		return // a list's items have names
	}
	for _, want := range []struct {
		object *yaml.Node
		name   string
		path   string
	}{{root, "apiVersion", "apiVersion"}, {root, "kind", "kind"}, {meta, "name", "metadata.name"}} {
		if _, v := lookup(want.object, want.name); v == nil || v.Kind != yaml.ScalarNode || v.Value == "" {
			k.say(path, "", "%sthe object has no %s", line(root.Line), want.path)
		}
	}
}
