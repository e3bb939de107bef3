// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/render/fleet"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	const text = `# A unit as people wrote them.
[Unit]
Description=Proxy
After=network.target

[Service]
EnvironmentFile=/etc/leader
EnvironmentFile=-/run/slipway/facts.env
Environment="A=1 2" B=%p
ExecStartPre=/usr/bin/mkdir -p /opt/bin
ExecStartPre=-/usr/bin/rm "/opt/bin/it's"
ExecStart=/opt/bin/proxy \
# a comment in between
  --name=${DEFAULT_IPV4} \
  --cost=$$5 --set=%i $MORE
Restart=always
TimeoutStopSec=1min 30s
LimitNOFILE=1000

[X-Fleet]
MachineMetadata=disk=ssd "disk=nvme" 'zone=a'
MachineMetadata=zone=b
X-ConditionMachineMetadata=disk=ssd
MachineOf=db@%i.service kube-apiserver.service
X-ConditionMachineOf=other.service
Conflicts=proxy@*.service old*
X-Conflicts=x?.service
Global=true
Global=no
MachineID=abc
MachineID=def
; the end
Replaces=%p@old.service
`
	got, notes, err := fleet.Decode("units/proxy@main.service", text)
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Unit{
		Env: map[string]string{"A": "1 2", "B": "proxy"}, StopTimeout: 90 * time.Second,
		Exec: []string{"/bin/sh", "-ec", `set -a; . /etc/leader; set +a
/usr/bin/mkdir -p /opt/bin
/usr/bin/rm '/opt/bin/it'\''s' || true
exec /opt/bin/proxy "--name=${DEFAULT_IPV4}" "--cost=\$5" --set=main $MORE`},
	}
	want.Name, want.Pin = "proxy@main", "abc"
	want.On = map[string][]string{"disk": {"ssd", "nvme"}, "zone": {"a", "b"}}
	want.With, want.Conflicts, want.Replaces = []string{"db@main", "kube-apiserver", "other"}, []string{"proxy@*", "old*", "x?"}, []string{"proxy@old"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unit (-want +got):\n%s", diff)
	}
	wantNotes := []string{
		"units/proxy@main.service:4: After=network.target is dropped: Slipway orders only units on the same machine (MachineOf)",
		"units/proxy@main.service:18: LimitNOFILE=1000 is dropped: Slipway has no such option",
		"units/proxy@main.service:30: pin is fleet's id of the machine: write the machine's name there",
	}
	if diff := cmp.Diff(wantNotes, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	const start = "[Service]\nExecStart=/x\n"
	for name, tc := range map[string]struct{ file, text, want string }{
		"unknown rule":       {"", start + "[X-Fleet]\nMachineMeta=disk=ssd\n", "u.service:4: MachineMeta: unknown placement option: use Conflicts,"},
		"metadata":           {"", start + "[X-Fleet]\nMachineMetadata=disk\n", `u.service:4: MachineMetadata: "disk" is not KEY=VALUE`},
		"boot id":            {"", start + "[X-Fleet]\nMachineBootID=1\n", "u.service:4: MachineBootID: a boot id changes"},
		"not a boolean":      {"", start + "[X-Fleet]\nGlobal=maybe\n", `u.service:4: Global: "maybe" is not a boolean`},
		"unknown specifier":  {"", start + "[X-Fleet]\nMachineOf=a@%H.service\n", "u.service:4: MachineOf: unknown specifier %H"},
		"unclosed quote":     {"", start + "[X-Fleet]\nConflicts=\"a\n", "u.service:4: Conflicts: unclosed quote \""},
		"unknown section":    {"", start + "[Fleet]\nGlobal=true\n", "u.service:4: Global: unknown section [Fleet]"},
		"no section":         {"", "Global=true\n", "u.service:1: Global is before the first section"},
		"not an option":      {"", "[Service]\nExecStart\n", `u.service:2: "ExecStart" is not an option`},
		"no program":         {"", "[Service]\n", "u.service: ExecStart is missing"},
		"two programs":       {"", start + "ExecStart=/y\n", "u.service:3: ExecStart: given twice"},
		"unsupported type":   {"", start + "Type=forking\n", "u.service:3: Type: Slipway does not support type forking"},
		"unsupported option": {"", start + "User=x\n", "u.service:3: User: Slipway runs units as root"},
		"open line":          {"", start + "Environment=A=1 \\", "u.service:3: the file ends in a continued line"},
		"template":           {"t@.service", start, "t@.service: a template cannot run: name an instance, such as t@NAME.service"},
		"several problems":   {"", start + "[X-Fleet]\nA=1\nGlobal=x\n", "u.service:5: Global"},
		"unknown own option": {"", start + "[X-Slipway]\nReady=1\n", "u.service:4: Ready: unknown option"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := tc.file
			if file == "" {
				file = "u.service"
			}
			if _, _, err := fleet.Decode(file, tc.text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error:\ngot  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("[Service]\nExecStart=/x \"a\" \\\n b\n[X-Fleet]\nMachineMetadata=a=b 'c=d'\n")
	f.Fuzz(func(t *testing.T, text string) {
		u, _, err := fleet.Decode("u@1.service", text)
		if err == nil && len(u.Exec) == 0 {
			t.Errorf("got a unit without a command: %+v", u)
		}
	})
}
