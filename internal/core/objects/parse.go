// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed base.yaml
var baseYAML string

// Parse reads the manifest of an add-on as kubectl does: YAML or JSON, one or several documents, lists expanded. Every
// object must have a kind and a name that the API server accepts. Parse refuses duplicates, because the last one would win
// silently, and Secrets, because add-ons are stored and sent as plain text.
func Parse(name, manifest string) (AddOn, error) {
	found, problems := read(manifest)
	for i, err := range problems {
		problems[i] = fmt.Errorf("parse add-on %s: %w", name, err)
	}
	return AddOn{Name: name, Objects: found}, errors.Join(problems...)
}

// Problems returns every reason for which Parse refuses a manifest.
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
				problems = append(problems, fmt.Errorf("document %d: %s is given twice", n+1, o))
			}
			seen[id] = true
			all = append(all, o)
		}
	}
	return all, problems
}

// documents splits at lines that begin with three dashes, as kubectl does.
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

// decode keeps the spelling of numbers.
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

// flatten returns the object of a document, or the items of a list (kind "…List" with items).
func flatten(doc any) ([]Object, error) {
	fields, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
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
		return fmt.Errorf("%s: generateName would create another object at each apply: set metadata.name", o.Kind())
	case o.Name() == "":
		return fmt.Errorf("%s: metadata.name is missing", o.Kind())
	case o.Kind() == "Secret" && o.group() == "":
		return fmt.Errorf("%s: a spec must not contain secrets: create it with kubectl, or from a file on the node", o)
	case o["status"] != nil:
		return fmt.Errorf("%s: status cannot be set: remove it", o)
	}
	if err := o.checkName(); err != nil {
		return err
	}
	return o.checkLabels()
}

func (o Object) checkLabels() error {
	labels, _ := o.meta()["labels"].(map[string]any)
	if _, ok := labels[Label]; ok {
		return fmt.Errorf("%s: the label %s is reserved for Slipway: remove it", o, Label)
	}
	return nil
}

const (
	maxName  = 253
	maxLabel = 63
)

// The forms of names that the API server accepts, see k8s.io/apimachinery/pkg/api/validation.
var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

// strictGroups are Kubernetes' own API groups whose names are DNS subdomains. Other groups have rules of their own, as RBAC has.
func strictGroups() []string {
	return []string{
		"", "apps", "batch", "policy", "autoscaling", "apiextensions.k8s.io", "admissionregistration.k8s.io", "coordination.k8s.io",
		"networking.k8s.io", "node.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
	}
}

// checkName refuses names that the API server certainly refuses, so that the spec is found invalid before anything is applied.
func (o Object) checkName() error {
	name := o.Name()
	switch {
	case name == "." || name == ".." || strings.ContainsAny(name, "/%"):
		return fmt.Errorf("%s: %.60q is not a valid name: it cannot be part of a URL", o.Kind(), name)
	case o.Kind() == "IPAddress" || !slices.Contains(strictGroups(), o.group()):
		return nil
	case o.group() == "" && o.Kind() == "Namespace" && (len(name) > maxLabel || !label.MatchString(name)):
		return fmt.Errorf("%s: %.60q is not a valid name: use at most 63 lower-case letters, digits and dashes", o.Kind(), name)
	case len(name) > maxName || !subdomain.MatchString(name):
		return fmt.Errorf("%s: %.60q is not a valid name: use lower-case letters, digits, dashes and dots", o.Kind(), name)
	}
	return nil
}

// group returns the object's API group, "" for the core group.
func (o Object) group() string {
	group, _, ok := strings.Cut(o.APIVersion(), "/")
	if !ok {
		return ""
	}
	return group
}
