// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// maxAsset keeps plans small: they travel, and lie in memory whole.
const maxAsset = 256 << 10

func (k *checker) fileAssets(in []v1alpha1.FileAsset) {
	seen := map[string]string{}
	for i, f := range in {
		at := Element("spec.fileAssets", i)
		out := FileAsset{Path: f.Path, Mode: DefaultAssetMode, Content: f.Content, Roles: f.Roles}
		k.ownPath(at, f.Path, takenFile, "choose a folder of your own, such as /etc/NAME", seen)
		if k.out.Said(at + ".mode") {
			out.Mode = k.mode(at+".mode", f.Mode, "0644", "a file")
		}
		if !k.out.Said(at + ".content") {
			k.missing(at, "content", "write the text: content: |")
		} else if len(f.Content) > maxAsset {
			k.say(at+".content", "bring it to the machines another way, such as a package", "is longer than %d KiB", maxAsset>>10)
		}
		k.roles(at, f.Roles)
		k.out.FileAssets = append(k.out.FileAssets, out)
	}
}

// takenFile tells why a file is nobody's to write by a spec. The last check is of what is a folder on every machine.
func takenFile(p string) string {
	if why := takenFolder(path.Dir(p)); strings.HasPrefix(why, "belongs to slipway") || strings.HasPrefix(why, "belongs to the kernel") {
		return why
	}
	return takenFolder(p)
}

// reserved are the names of the components' own manifests.
func reserved() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}
}

func (k *checker) staticPods(in []v1alpha1.StaticPod) {
	seen := map[string]string{}
	for i, p := range in {
		at := Element("spec.staticPods", i)
		k.uniqueLabel(at, p.Name, seen)
		if slices.Contains(reserved(), p.Name) {
			k.say(at+".name", "choose another name", "%s is the name of a component's own manifest", show(p.Name))
		}
		if !k.out.Said(at + ".manifest") {
			k.missing(at, "manifest", "write YAML text: manifest: |")
		} else {
			k.podManifest(at+".manifest", p.Manifest)
		}
		k.roles(at, p.Roles)
		k.out.StaticPods = append(k.out.StaticPods, StaticPod(p))
	}
}

// podManifest wants what a kubelet takes from its folder: one Pod, which refers to nothing of the API.
func (k *checker) podManifest(at, text string) {
	before := len(k.d.problems)
	k.manifest(at, text)
	if len(k.d.problems) > before || k.d.full() {
		return
	}
	dec := yaml.NewDecoder(strings.NewReader(text))
	var pod map[string]any
	if dec.Decode(&pod) != nil || pod["kind"] != "Pod" || pod["apiVersion"] != "v1" {
		k.say(at, "apiVersion: v1 and kind: Pod", "is not one Pod")
		return
	}
	if dec.Decode(&map[string]any{}) == nil {
		k.say(at, "write one element of staticPods for each", "holds more than one object")
	}
	for _, key := range references(pod["spec"]) {
		k.say(at, "use a hostPath, and a file of fileAssets", "a static pod cannot have %s: there need be no API where it runs", key)
	}
}

// references are the fields that need the API, sorted.
func references(tree any) []string {
	needy := []string{"secret", "secretRef", "secretKeyRef", "configMap", "configMapRef", "configMapKeyRef", "persistentVolumeClaim", "projected"}
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
				if _, object := value.(map[string]any); object && slices.Contains(needy, key) || key == "serviceAccountName" {
					found[key] = true
				}
				walk(value)
			}
		}
	}
	walk(tree)
	return slices.Sorted(maps.Keys(found))
}
