// SPDX-License-Identifier: Apache-2.0

package internal_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// secretName matches fields that would hold a secret. What is plain text there would end up in files, logs and on the wire.
var secretName = regexp.MustCompile(`(?i)(key|token|secret|password|credential)`)

// innocent are fields with such a name that hold no secret: paths, identifiers, and what Kubernetes calls a key.
var innocent = map[string]string{
	"plan.Kubeconfig.KeyFile":   "a path",
	"plan.Probe.Key":            "a path",
	"pki.Want.KeyPath":          "a path",
	"pki.Want.SignerKey":        "a path",
	"v1alpha1.Taint.Key":        "the name of a taint",
	"v1alpha1.SSH.HostKey":      "a public key",
	"admission.Node.Key":        "the pin of a public key",
	"admission.Node.PendingKey": "the pin of a public key",
}

func TestNoSecretFields(t *testing.T) {
	t.Parallel()
	w := walk{t: t, seen: map[reflect.Type]bool{}, met: map[string]bool{}}
	for _, it := range []plan.Item{
		plan.Dir{}, plan.File{}, plan.Artifact{}, plan.Mount{}, plan.Cert{}, plan.Kubeconfig{}, plan.Unit{}, plan.StaticPod{}, plan.Precondition{},
	} {
		w.fields(reflect.TypeOf(it))
	}
	for _, root := range []any{plan.Plan{}, plan.Step{}, plan.State{}, config.Cluster{}, config.Node{}, spec.Cluster{}, control.Document{}} {
		w.fields(reflect.TypeOf(root))
	}
	if len(w.seen) < 20 {
		t.Errorf("only %d types were looked at", len(w.seen))
	}
	for name := range innocent {
		if !w.met[name] {
			t.Errorf("stale exception: there is no field %s", name)
		}
	}
}

type walk struct {
	t    *testing.T
	seen map[reflect.Type]bool
	met  map[string]bool
}

func (w walk) fields(typ reflect.Type) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		w.fields(typ.Elem())
		return
	case reflect.Map:
		w.fields(typ.Key())
		w.fields(typ.Elem())
		return
	case reflect.Struct:
	default:
		return
	}
	if w.seen[typ] || !strings.Contains(typ.PkgPath(), "slipway") {
		return
	}
	w.seen[typ] = true
	for f := range fields(typ) {
		name := typ.String() + "." + f.Name
		if secretName.MatchString(f.Name) && holdsText(f.Type) {
			w.met[name] = true
			if _, ok := innocent[name]; !ok {
				w.t.Errorf("%s (%s) is named like a secret: a plan, a spec and a document hold none", name, f.Type)
			}
		}
		w.fields(f.Type)
	}
}

func fields(typ reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range typ.NumField() {
			if !yield(typ.Field(i)) {
				return
			}
		}
	}
}

func holdsText(typ reflect.Type) bool {
	switch typ.Kind() {
	case reflect.String:
		return true
	case reflect.Slice, reflect.Array:
		return typ.Elem().Kind() == reflect.Uint8 || holdsText(typ.Elem())
	case reflect.Map:
		return holdsText(typ.Elem())
	default:
		return false
	}
}
