// SPDX-License-Identifier: Apache-2.0

// Command gen packs the directory of components into the archive that package source embeds: gen COMPONENTS
// ARCHIVE.
package main

import (
	"fmt"
	"os"

	"github.com/slipway-project/slipway/internal/artifact/source"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: gen COMPONENTS ARCHIVE")
	}
	packed, err := source.Pack(os.DirFS(args[0]))
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], packed, 0o644)
}
