// SPDX-License-Identifier: Apache-2.0

// Command kubectl is upstream's kubectl, with upstream's main.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // credential plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	// The verbosity is wanted before cobra parses flags, because building the
	// command already loads plugins and .kuberc.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	command := cmd.NewDefaultKubectlCommand()
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
}
