// SPDX-License-Identifier: Apache-2.0

package ignition_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_3"
	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/userdata"
	"github.com/slipway-project/slipway/internal/render/ignition"
	"github.com/slipway-project/slipway/internal/render/rendertest"
)

// Ignition's own library parses the config without any report.
func TestRender(t *testing.T) {
	t.Parallel()
	text, err := ignition.Render(rendertest.UserData())
	if err != nil {
		t.Fatal(err)
	}
	c, report, err := v3_3.Parse(text)
	if err != nil || len(report.Entries) > 0 {
		t.Fatalf("%v: %s", err, report.String())
	}
	files, err := rendertest.UserData().Files()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range c.Storage.Files {
		source, ok := strings.CutPrefix(*f.Contents.Source, "data:,")
		body, err := url.PathUnescape(source)
		if !ok || err != nil {
			t.Fatalf("%s: %v", f.Path, err)
		}
		got[f.Path] = body
	}
	for _, u := range c.Systemd.Units {
		got["/etc/systemd/system/"+u.Name] = *u.Contents
		if enabled := u.Enabled != nil && *u.Enabled; enabled != (u.Name == userdata.JoinUnit) {
			t.Errorf("%s: got enabled=%t", u.Name, enabled)
		}
	}
	want := map[string]string{}
	for _, f := range files {
		want[f.Path] = f.Text
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
	t.Logf("%d bytes", len(text))
}
