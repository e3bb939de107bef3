// SPDX-License-Identifier: Apache-2.0

package objects

// Seeds are what a pod waits for in its namespace, and what the controller-manager makes once it runs: the default service
// account and the CA that pods trust (PEM text). They are made in the namespaces that every cluster has.
func Seeds(rootCA string) []Object {
	var out []Object
	for _, ns := range []string{"default", "kube-system"} {
		out = append(out,
			Object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "default", "namespace": ns}},
			Object{
				"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{
					"name": "kube-root-ca.crt", "namespace": ns,
					// The publisher writes the object again where this annotation is missing.
					"annotations": map[string]any{"kubernetes.io/description": "Trust this CA to verify the API server; service accounts get it with their tokens."},
				},
				"data": map[string]any{"ca.crt": rootCA},
			})
	}
	return out
}
