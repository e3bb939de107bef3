// SPDX-License-Identifier: Apache-2.0

// Package ignition renders a machine's user data as an Ignition config, in the oldest format version that all
// current distributions read. It is pure.
//
// Read [Render]; package userdata defines the content.
package ignition

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/slipway-project/slipway/internal/core/userdata"
)

// version is the version of the config format.
const version = "3.3.0"

// config is the part of the Ignition format that Render uses.
type config struct {
	Ignition struct {
		Version string `json:"version"`
	} `json:"ignition"`
	Storage struct {
		Files []file `json:"files"`
	} `json:"storage"`
	Systemd struct {
		Units []unit `json:"units"`
	} `json:"systemd"`
}

type file struct {
	Path     string `json:"path"`
	Mode     int    `json:"mode"`
	Contents struct {
		Source string `json:"source"`
	} `json:"contents"`
}

type unit struct {
	Name     string `json:"name"`
	Enabled  *bool  `json:"enabled,omitempty"`
	Contents string `json:"contents"`
}

// Render returns a config of at most userdata.Limit bytes.
func Render(d userdata.Data) ([]byte, error) {
	files, err := d.Files()
	if err != nil {
		return nil, fmt.Errorf("write Ignition config: %w", err)
	}
	var c config
	c.Ignition.Version = version
	for _, f := range files {
		name := path.Base(f.Path)
		if strings.HasSuffix(name, ".service") {
			u := unit{Name: name, Contents: f.Text}
			if name == userdata.JoinUnit {
				u.Enabled = new(true)
			}
			c.Systemd.Units = append(c.Systemd.Units, u)
			continue
		}
		var one file
		one.Path, one.Mode = f.Path, int(f.Mode)
		one.Contents.Source = "data:," + url.PathEscape(f.Text)
		c.Storage.Files = append(c.Storage.Files, one)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write Ignition config: %w", err)
	}
	return userdata.Fit(append(text, '\n'))
}
