// SPDX-License-Identifier: Apache-2.0

// Command genflags writes the table of flags and feature gates that the programs of a release know, by asking the programs:
// what --help says, and what they say when they are given a flag or a gate. None of them gets far enough to touch the
// machine. It never guesses: a name that the sources mention and no program knows is left out.
//
// Without the directory SLIPWAY_TEST_BINARIES with kube, etcd and containerd it does not change the file.
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

const folderVariable = "SLIPWAY_TEST_BINARIES"

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
	bins := os.Getenv(folderVariable)
	if _, err := os.Stat(bins); bins == "" || errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "genflags: %s is not a directory with kube, etcd and containerd: %s is unchanged\n", folderVariable, args[1])
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

// programs are those of a release. The arguments make each one end before it does anything, whatever the gates are.
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
