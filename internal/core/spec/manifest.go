// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// manifest checks that an add-on's text is a series of Kubernetes objects. Lines are counted within the text.
func (k *checker) manifest(path, text string) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	objects := 0
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
		objects++
		k.manifestObject(path, root)
	}
	if objects == 0 {
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
