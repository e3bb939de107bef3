// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	maxName  = 253
	maxLabel = 63
)

// The forms of names that the API server takes, see k8s.io/apimachinery/pkg/api/validation.
var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

// strictGroups are Kubernetes' own API groups whose names are DNS subdomains. Others decide for themselves, as RBAC does.
func strictGroups() []string {
	return []string{
		"", "apps", "batch", "policy", "autoscaling", "apiextensions.k8s.io", "admissionregistration.k8s.io", "coordination.k8s.io",
		"networking.k8s.io", "node.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
	}
}

// checkName refuses what the API server would refuse for certain, long after the spec was called valid.
func (o Object) checkName() error {
	name := o.Name()
	switch {
	case name == "." || name == ".." || strings.ContainsAny(name, "/%"):
		return fmt.Errorf("%s: %.60q cannot be a name: it would not fit into a URL", o.Kind(), name)
	case o.Kind() == "IPAddress" || !slices.Contains(strictGroups(), o.group()):
		return nil
	case o.group() == "" && o.Kind() == "Namespace" && (len(name) > maxLabel || !label.MatchString(name)):
		return fmt.Errorf("%s: %.60q cannot be a name: use at most 63 lower-case letters, digits and dashes", o.Kind(), name)
	case len(name) > maxName || !subdomain.MatchString(name):
		return fmt.Errorf("%s: %.60q cannot be a name: use lower-case letters, digits, dashes and dots", o.Kind(), name)
	}
	return nil
}

// group is the object's API group, "" for the oldest one.
func (o Object) group() string {
	group, _, ok := strings.Cut(o.APIVersion(), "/")
	if !ok {
		return ""
	}
	return group
}
