// SPDX-License-Identifier: Apache-2.0

// Command genflags writes the table of flags and feature gates of the programs of a release. It runs the programs with --help,
// and with each flag and gate, and reads their output. No program gets far enough to change the machine. Names that occur in
// the sources but that no program accepts are not in the table.
//
// Without kube, etcd and containerd in the directory SLIPWAY_TEST_BINARIES it does not change the file.
//
//	genflags components/kubernetes-1.36 flags-1.36.txt
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

const directoryVariable = "SLIPWAY_TEST_BINARIES"

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "genflags:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want the directory of Kubernetes' go.mod and the output file")
	}
	bins := os.Getenv(directoryVariable)
	if _, err := os.Stat(bins); bins == "" || errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "genflags: %s is not a directory with kube, etcd and containerd: %s is unchanged\n", directoryVariable, args[1])
		return nil
	}
	names, err := scan(ctx, args[0])
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "genflags-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	table, err := ask(ctx, programs(bins, tmp), names)
	if err != nil {
		return err
	}
	if _, err := catalog.Find(table.Kubernetes); err != nil {
		return fmt.Errorf("the programs in %s: %w", bins, err)
	}
	return os.WriteFile(args[1], []byte(table.String()), 0o644)
}

// programs returns the programs of a release. With its harmless arguments each one exits before it does anything, whatever the
// gates are.
func programs(bins, tmp string) []program {
	kube := filepath.Join(bins, "kube")
	return []program{
		{name: "containerd", command: []string{filepath.Join(bins, "containerd")}, style: urfave},
		{name: "etcd", command: []string{filepath.Join(bins, "etcd")}, style: goFlags},
		{name: "kube-apiserver", command: []string{kube, "kube-apiserver"}, style: pflags, harmless: []string{"--cert-dir=" + tmp}}, // no etcd
		{name: "kube-controller-manager", command: []string{kube, "kube-controller-manager"}, style: pflags, harmless: []string{"--kubeconfig=" + tmp + "/none", "--cert-dir=" + tmp}},
		{name: "kube-proxy", command: []string{kube, "kube-proxy"}, style: pflags, harmless: []string{"--write-config-to=" + tmp + "/proxy"}},
		{name: "kube-scheduler", command: []string{kube, "kube-scheduler"}, style: pflags, harmless: []string{"--kubeconfig=" + tmp + "/none", "--cert-dir=" + tmp}},
		{name: "kubelet", command: []string{kube, "kubelet"}, style: pflags, harmless: []string{"--kubeconfig=" + tmp + "/none", "--root-dir=" + tmp, "--cert-dir=" + tmp}},
	}
}
