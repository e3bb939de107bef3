// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/objects"
)

func (k *checker) addOns() {
	seen := map[string]string{}
	for i, a := range k.out.AddOns {
		path := Element("spec.addOns", i)
		k.uniqueLabel(path, a.Name, seen)
		if !k.out.IsSet(path + ".manifest") {
			k.missing(path, "manifest", "write YAML text: manifest: |")
			continue
		}
		k.manifest(path+".manifest", a.Manifest)
	}
}

func (k *checker) staticPods() {
	components := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}
	seen := map[string]string{}
	for i, p := range k.out.StaticPods {
		at := Element("spec.staticPods", i)
		k.uniqueLabel(at, p.Name, seen)
		if slices.Contains(components, p.Name) {
			k.say(at+".name", "choose another name", "%s is the name of a component's own manifest", show(p.Name))
		}
		if !k.out.IsSet(at + ".manifest") {
			k.missing(at, "manifest", "write YAML text: manifest: |")
		} else {
			k.podManifest(at+".manifest", p.Manifest)
		}
		k.roles(at, p.Roles)
	}
}

// manifest checks that a text is a series of Kubernetes objects. Lines are counted within the text.
func (k *checker) manifest(path, text string) {
	before := len(k.d.problems)
	k.manifestForm(path, text)
	if len(k.d.problems) > before || k.d.full() {
		return
	}
	for _, err := range objects.Problems(text) { // what up would refuse
		oneLine := strings.Join(strings.Fields(err.Error()), " ")
		k.say(path, "", "%s", strings.TrimPrefix(oneLine, "document 1: "))
	}
}

func (k *checker) manifestForm(path, text string) {
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
		if root := doc.Content[0]; !isNull(root) {
			count++
			k.manifestObject(path, root)
		}
	}
	if count == 0 {
		k.say(path, "", "contains no object")
	}
}

func (k *checker) manifestObject(path string, root *yaml.Node) {
	line := fmt.Sprintf("line %d: ", root.Line)
	if root.Kind != yaml.MappingNode {
		k.say(path, "", "%s%s is not a Kubernetes object", line, kindName(root))
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
			k.say(path, "", "%sthe object has no %s", line, want.path)
		}
	}
}

// podManifest checks what a kubelet reads from its manifest directory: one Pod that refers to no API object.
func (k *checker) podManifest(at, text string) {
	before := len(k.d.problems)
	k.manifest(at, text)
	if len(k.d.problems) > before || k.d.full() {
		return
	}
	dec := yaml.NewDecoder(strings.NewReader(text))
	var pod map[string]any
	if dec.Decode(&pod) != nil || pod["kind"] != "Pod" || pod["apiVersion"] != "v1" {
		k.say(at, "write apiVersion: v1 and kind: Pod", "is not a Pod")
		return
	}
	if dec.Decode(&map[string]any{}) == nil {
		k.say(at, "write one element of staticPods for each", "contains more than one object")
	}
	for _, key := range apiReferences(pod["spec"]) {
		k.say(at, "use a hostPath volume and fileAssets", "a static pod cannot use %s: it runs without the API", key)
	}
}

// apiReferences lists the fields of a pod that need the API, sorted.
func apiReferences(tree any) []string {
	kinds := []string{"secret", "secretRef", "secretKeyRef", "configMap", "configMapRef", "configMapKeyRef", "persistentVolumeClaim", "projected"}
	found := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for key, value := range v {
				if _, object := value.(map[string]any); object && slices.Contains(kinds, key) || key == "serviceAccountName" {
					found[key] = true
				}
				walk(value)
			}
		}
	}
	walk(tree)
	return slices.Sorted(maps.Keys(found))
}
