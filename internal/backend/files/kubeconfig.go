// SPDX-License-Identifier: Apache-2.0

package files

import (
	"encoding/base64"
	"fmt"
	"os"
	"strconv"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const kubeconfigText = `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[3]s
    %[4]s
contexts:
- name: %[7]s
  context:
    cluster: %[1]s
    user: %[2]s
current-context: %[7]s
users:
- name: %[2]s
  user:
    %[5]s
    %[6]s
`

func kubeconfig(k plan.Kubeconfig) content {
	return content{path: k.Path, mode: 0o600, secret: k.Embed, render: func() ([]byte, error) {
		var lines [3]string
		for i, c := range []struct{ field, path string }{
			{"certificate-authority", k.CAFile}, {"client-certificate", k.CertFile}, {"client-key", k.KeyFile},
		} {
			if !k.Embed {
				lines[i] = c.field + ": " + strconv.Quote(c.path)
				continue
			}
			data, err := os.ReadFile(c.path)
			if err != nil {
				return nil, fmt.Errorf("embed credentials: %w", err)
			}
			lines[i] = c.field + "-data: " + base64.StdEncoding.EncodeToString(data)
		}
		q := strconv.Quote // a quoted string of Go with these characters is one of YAML too
		return fmt.Appendf(nil, kubeconfigText, q(k.Cluster), q(k.User), q(k.Server), lines[0], lines[1], lines[2],
			q(k.User+"@"+k.Cluster)), nil
	}}
}
