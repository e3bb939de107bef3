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
// Every object must say what it is and have a name that the API server takes; an object that stands there twice is refused,
// because the later one would win silently, and so is a Secret: add-ons travel and lie about in plain text.
func Parse(name, manifest string) (AddOn, error) {
	found, problems := read(manifest)
	for i, err := range problems {
		problems[i] = fmt.Errorf("parse add-on %s: %w", name, err)
	}
	return AddOn{Name: name, Objects: found}, errors.Join(problems...)
}

// Problems is everything for which Parse would refuse a manifest.
func Problems(manifest string) []error {
	_, problems := read(manifest)
	return problems
}

func read(manifest string) (all []Object, problems []error) {
	seen := map[string]bool{}
	for n, text := range documents(manifest) {
		found, err := decode(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("document %d: %w", n+1, err))
			continue
		}
		for _, o := range found {
			id := o.APIVersion() + " " + o.String()
			if seen[id] {
				problems = append(problems, fmt.Errorf("document %d: %s stands there twice", n+1, o))
			}
			seen[id] = true
			all = append(all, o)
		}
	}
	return all, problems
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
	case o.Kind() == "Secret" && o.group() == "":
		return fmt.Errorf("%s: a spec holds no secrets: make it with kubectl, or from a file on the node", o)
	case o["status"] != nil:
		return fmt.Errorf("%s: status is not for users to set: remove it", o)
	}
	if err := o.checkName(); err != nil {
		return err
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
