// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLogScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	units, pods := filepath.Join(dir, "units"), filepath.Join(dir, "pods")
	for path, text := range map[string]string{
		filepath.Join(units, "kubelet.log"):                                "one\ntwo\nthree\n",
		filepath.Join(units, "etcd.log"):                                   "of an earlier cluster\n",
		filepath.Join(pods, "kube-system_etcd-m1_u1", "etcd", "0.log"):     "of a pod\n",
		filepath.Join(pods, "kube-system_etcd-m10_u1", "etcd", "0.log"):    "of another machine\n",
		filepath.Join(pods, "kube-system_sched-m1_u3", "sched", "1.log"):   "of a pod only\n",
		filepath.Join(dir, "journalctl"):                                   "#!/bin/sh\necho \"$@\"\n",
		filepath.Join(pods, "kube-system_coredns-x1_u2", "coredns", "log"): "no component's\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil { //nolint:gosec // one is a program
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		component string
		tail      int
		follow    bool
		want      string
		names     []string // listed instead
	}{
		"a unit":               {component: "kubelet", tail: -1, want: "one\ntwo\nthree\n"},
		"its last lines":       {component: "kubelet", tail: 1, want: "three\n"},
		"none of them":         {component: "kubelet", tail: 0},
		"a component as a pod": {component: "sched", tail: -1, want: "of a pod only\n"},
		"a pod, once a unit":   {component: "etcd", tail: -1, want: "of a pod\n"},
		"the agent":            {component: "agent", tail: -1, want: "--quiet --no-pager --output=cat --unit=slipway-agent.service\n"},
		"the agent, followed":  {component: "agent", tail: -1, follow: true, want: "--quiet --no-pager --output=cat --unit=slipway-agent.service --no-tail --follow\n"},
		"the machine":          {component: "machine", tail: 5, want: "--quiet --no-pager --output=cat --boot --lines=5\n"},
		"an unknown one":       {component: "kubelt", tail: -1, names: []string{"etcd", "kubelet", "sched"}},
		"a path":               {component: "../units/kubelet", tail: -1, names: []string{"etcd", "kubelet", "sched"}},
		"all of them":          {component: "*", tail: -1, names: []string{"etcd", "kubelet", "sched"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := logArgs(tc.component, tc.tail, tc.follow, "m1")
			args[4], args[5] = units, pods
			cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", logScript, "slipway"}, args...)...)
			cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			var exit *exec.ExitError
			if tc.names != nil {
				got := strings.Fields(errs.String())
				slices.Sort(got)
				if !errors.As(err, &exit) || exit.ExitCode() != exitNoLog || !slices.Equal(got, tc.names) {
					t.Errorf("got %q, %v", got, err)
				}
				return
			}
			if err != nil || out.String() != tc.want {
				t.Errorf("%q, %v: %s", out.String(), err, &errs)
			}
		})
	}
}
