// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

const workload = `
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: default, labels: {app: web}}
spec:
  containers:
  - {name: web, image: "slipway.dev/testpod:1", imagePullPolicy: Never, args: [serve], ports: [{containerPort: 8080}],
     readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
` + kit.WebService + kit.Reader

// podsAndNames: an image that is on the disk, a pod made right after the boot, and the Service's name from the machine and from
// within the pod.
func podsAndNames(c *kit.Cluster) {
	c.ImportTestImage()
	c.Apply(workload)
	c.Wait("pod/server", "condition=Ready")
	address := c.Kubectl("get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
	kit.Until(c.T, soon, "in a pod the name web is "+address, func() error { // CoreDNS and kube-proxy hear of it in their own time
		if r := c.TryKubectl("", "exec", "server", "--", "/testpod", "lookup", "web"); r.Code != 0 || !strings.HasPrefix(r.Out, address+" ") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	dns := c.Kubectl("get", "service", "kube-dns", "--namespace", "kube-system", "--output", "jsonpath={.spec.clusterIP}")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return c.Dial(ctx, network, net.JoinHostPort(dns, "53"))
	}}
	kit.Until(c.T, soon, "on the machine the Service's name is "+address, func() error {
		got, err := resolver.LookupHost(c.T.Context(), "web.default.svc.cluster.local.")
		if err == nil && !slices.Equal(got, []string{address}) {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
	kit.Until(c.T, soon, "the Service answers", func() error {
		said, err := get(c, "http://"+address)
		if err == nil && strings.TrimSpace(said) != "server" {
			err = fmt.Errorf("it says %q", said)
		}
		return err
	})
}

// get asks from within the machine's network.
func get(c *kit.Cluster, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	r, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	reply, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	said, err := io.ReadAll(reply.Body)
	return string(said), err
}

// rights: the reader's token lists pods, and neither makes nor deletes any.
func rights(c *kit.Cluster) {
	token := strings.TrimSpace(c.Kubectl("create", "token", "reader"))
	const pods = kit.API + "/api/v1/namespaces/default/pods"
	for request, want := range map[string]int{"GET " + pods: 200, "POST " + pods: 403, "DELETE " + pods + "/server": 403} {
		method, url, _ := strings.Cut(request, " ")
		if code, body := c.HTTPS(c.T, method, url, kit.BearerToken(token)); code != want {
			c.T.Errorf("%s as reader: %d, want %d: %s", request, code, want, body)
		}
	}
}
