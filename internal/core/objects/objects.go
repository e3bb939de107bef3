// SPDX-License-Identifier: Apache-2.0

// Package objects defines the Kubernetes objects that every cluster needs, as plain data: the bindings for Slipway's own
// certificates, and the cluster DNS. It also parses the add-ons of the spec. It does no I/O: package kube applies the objects.
//
// Read [Object], [AddOn] and [Cluster] first.
//
//	addons, err := objects.Cluster(objects.Params{DNSAddress: …, Replicas: 1, …})
//	addons[1].Objects[0].String() // "ServiceAccount kube-system/coredns"
package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Object is one Kubernetes object in the form of decoded JSON: maps, lists, strings, numbers, booleans.
type Object map[string]any

// AddOn is a named set of objects, in the order of their dependencies. The name becomes a label of each object, by which
// Slipway finds them when the add-on is removed.
type AddOn struct {
	Name    string   `json:"name"`
	Objects []Object `json:"objects"`
}

// Label is the label whose value is the add-on's name.
const Label = "slipway.dev/addon"

// APIVersion returns "v1" or "GROUP/VERSION".
func (o Object) APIVersion() string { return text(o, "apiVersion") }

// Kind returns the object's kind, "ConfigMap".
func (o Object) Kind() string { return text(o, "kind") }

// Name returns the object's name.
func (o Object) Name() string { return text(o.meta(), "name") }

// Namespace returns the object's namespace, "" if it has none.
func (o Object) Namespace() string { return text(o.meta(), "namespace") }

// String returns the object's kind and name: "Service kube-system/kube-dns".
func (o Object) String() string {
	if ns := o.Namespace(); ns != "" {
		return o.Kind() + " " + ns + "/" + o.Name()
	}
	return o.Kind() + " " + o.Name()
}

// group returns the object's API group, "" for the core group.
func (o Object) group() string {
	group, _, ok := strings.Cut(o.APIVersion(), "/")
	if !ok {
		return ""
	}
	return group
}

func (o Object) meta() map[string]any {
	m, _ := o["metadata"].(map[string]any)
	return m
}

func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// Parse parses the manifest of an add-on as kubectl does: YAML or JSON, one or several documents, lists expanded. Every
// object must have a kind and a name that the API server accepts. Parse refuses duplicates, because the last one would
// silently win, and Secrets, because add-ons are stored and sent as plain text. The error contains every problem.
func Parse(name, manifest string) (AddOn, error) {
	found, problems := read(manifest)
	for i, err := range problems {
		problems[i] = fmt.Errorf("parse add-on %s: %w", name, err)
	}
	return AddOn{Name: name, Objects: found}, errors.Join(problems...)
}

// Problems returns every reason why Parse refuses a manifest.
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

// documents splits a manifest at lines that begin with three dashes, as kubectl does.
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

// decode returns the objects of a document. Numbers keep their spelling, so that large ones lose no digits.
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

// check returns the first reason why the object cannot be part of an add-on.
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
	labels, _ := o.meta()["labels"].(map[string]any)
	if _, reserved := labels[Label]; reserved {
		return fmt.Errorf("%s: the label %s is reserved for Slipway: remove it", o, Label)
	}
	return o.checkName()
}

const (
	maxName  = 253
	maxLabel = 63
)

// The names that the API server accepts, see k8s.io/apimachinery/pkg/api/validation.
var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

// strictGroups returns the API groups of Kubernetes in which names of objects are DNS subdomains. Other groups, such as RBAC,
// have other rules.
func strictGroups() []string {
	return []string{
		"", "apps", "batch", "policy", "autoscaling", "apiextensions.k8s.io", "admissionregistration.k8s.io", "coordination.k8s.io",
		"networking.k8s.io", "node.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
	}
}

// checkName refuses names that the API server would refuse, so that the spec is known to be invalid before anything is applied.
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
