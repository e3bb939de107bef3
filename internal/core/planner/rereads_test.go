// SPDX-License-Identifier: Apache-2.0

package planner_test

import "slices"

// rereads tells whether a running component reads the file that a flag names again by itself, within a minute or at the next
// handshake; known is false for a flag of which nobody has found out. What is not read again restarts the component when it changes,
// what is must not. Seen with the programs of Kubernetes 1.36 and etcd 3.6 (docs/adr/0027).
func rereads(component, flag string) (again, known bool) {
	switch component {
	case "etcd":
		return reread(flag,
			[]string{"cert-file", "key-file", "peer-cert-file", "peer-key-file"}, // for each handshake
			[]string{"trusted-ca-file", "peer-trusted-ca-file"})
	case "kube-apiserver":
		return reread(flag,
			[]string{
				"tls-cert-file", "tls-private-key-file", "client-ca-file", "requestheader-client-ca-file", "authentication-config",
				"proxy-client-cert-file", "proxy-client-key-file", "kubelet-client-certificate", "kubelet-client-key", "etcd-certfile", "etcd-keyfile",
			},
			[]string{
				"etcd-cafile", "kubelet-certificate-authority", "service-account-key-file", "service-account-signing-key-file", "audit-policy-file",
				"encryption-provider-config", // unless encryption-provider-config-automatic-reload is set
			})
	case "kube-controller-manager", "kube-scheduler":
		return reread(flag,
			[]string{
				"tls-cert-file", "tls-private-key-file", "client-ca-file", "requestheader-client-ca-file",
				"cluster-signing-kubelet-client-cert-file", "cluster-signing-kubelet-client-key-file",
				"cluster-signing-kubelet-serving-cert-file", "cluster-signing-kubelet-serving-key-file",
				"cluster-signing-kube-apiserver-client-cert-file", "cluster-signing-kube-apiserver-client-key-file",
			},
			[]string{
				"config", "root-ca-file", "service-account-private-key-file",
				// The credentials that a kubeconfig names by path are read again; the file itself and the CA that it names are not.
				"kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig",
			})
	case "kubelet", "kube-proxy", "containerd":
		return reread(flag, nil, []string{"config", "kubeconfig"})
	}
	return false, false
}

func reread(flag string, again, never []string) (isAgain, known bool) {
	isAgain = slices.Contains(again, flag)
	return isAgain, isAgain || slices.Contains(never, flag)
}
