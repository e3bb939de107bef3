// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed base.yaml
var baseYAML string

// Parse reads the manifest of an add-on: YAML or JSON, one document or several, lists taken apart, read as kubectl reads it.
// Every object must say what it is and have a name; an object that stands there twice is refused, because the later one would
// win silently.
func Parse(name, manifest string) (AddOn, error) {
	addon, seen := AddOn{Name: name}, map[string]bool{}
	for n, text := range documents(manifest) {
		found, err := decode(text)
		if err != nil {
			return AddOn{}, fmt.Errorf("parse add-on %s: document %d: %w", name, n+1, err)
		}
		for _, o := range found {
			id := o.APIVersion() + " " + o.String()
			if seen[id] {
				return AddOn{}, fmt.Errorf("parse add-on %s: document %d: %s stands there twice", name, n+1, o)
			}
			seen[id] = true
			addon.Objects = append(addon.Objects, o)
		}
	}
	return addon, nil
}

// documents cuts at lines that begin with three dashes, as kubectl does.
func documents(manifest string) []string {
	var docs []string
	var doc strings.Builder
	for line := range strings.Lines(manifest) {
		if rest, ok := strings.CutPrefix(line, "---"); ok && (strings.TrimSpace(rest) == "" || rest[0] == ' ') {
			docs = append(docs, doc.String())
			doc.Reset()
			if rest = strings.TrimSpace(rest); !strings.HasPrefix(rest, "#") {
				doc.WriteString(rest + "\n")
			}
			continue
		}
		doc.WriteString(line)
	}
	return append(docs, doc.String())
}

// decode keeps numbers as they are written.
func decode(text string) ([]Object, error) {
	js, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(js))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, nil // only comments
	}
	return flatten(doc)
}

// flatten gives the object of a document, or the items of a list (kind "…List" with items).
func flatten(doc any) ([]Object, error) {
	fields, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("it is no object")
	}
	o := Object(fields)
	items, isList := o["items"].([]any)
	if !isList || !strings.HasSuffix(o.Kind(), "List") {
		return []Object{o}, o.check()
	}
	var all []Object
	for i, item := range items {
		found, err := flatten(item)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (o Object) check() error {
	switch {
	case o.APIVersion() == "":
		return errors.New("apiVersion is missing")
	case o.Kind() == "":
		return errors.New("kind is missing")
	case o.Name() == "" && text(o.meta(), "generateName") != "":
		return fmt.Errorf("%s: generateName would make another object at each apply: give it a name", o.Kind())
	case o.Name() == "":
		return fmt.Errorf("%s: metadata.name is missing", o.Kind())
	case o["status"] != nil:
		return fmt.Errorf("%s: status is not for users to set: remove it", o)
	}
	return o.checkLabels()
}

func (o Object) checkLabels() error {
	labels, _ := o.meta()["labels"].(map[string]any)
	if _, ok := labels[Label]; ok {
		return fmt.Errorf("%s: the label %s is Slipway's own: remove it", o, Label)
	}
	return nil
}
