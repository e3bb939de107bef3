// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// prober records when a boot reaches its milestones.
type prober struct {
	*bench
	begun time.Time
	dnsAt time.Time
	seen  Run // each field is written by one goroutine
}

func (p *prober) since() float64 { return time.Since(p.begun).Seconds() }

// run returns when all milestones have been reached.
func (p *prober) run(ctx context.Context) error {
	imported := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(imported)
		return p.importImage(ctx)
	})
	group.Go(func() error {
		a, err := p.connect(ctx)
		if err != nil {
			return err
		}
		group.Go(func() error { return p.apiReady(ctx, a) })
		group.Go(func() error { return p.nodeReady(ctx, a) })
		group.Go(func() error { return p.podRunning(ctx, a) })
		group.Go(func() error { return p.pods(ctx, a, imported) })
		return nil
	})
	return group.Wait()
}

// connect waits until the API server gives its first answer.
func (p *prober) connect(ctx context.Context) (a api, err error) {
	if err := poll(ctx, step, func() bool {
		a, err = connect(p.place.apiSocket(), p.place.credential())
		return err == nil
	}); err != nil {
		return a, err
	}
	return a, poll(ctx, step, func() bool {
		status, _ := a.ask(ctx, http.MethodGet, "/readyz", "")
		return status != 0
	})
}

func (p *prober) apiReady(ctx context.Context, a api) error {
	err := poll(ctx, step, func() bool {
		status, _ := a.ask(ctx, http.MethodGet, "/readyz", "")
		return status == http.StatusOK
	})
	p.seen.APIReady = p.since()
	return err
}

func (p *prober) nodeReady(ctx context.Context, a api) error {
	err := a.follow(ctx, "/api/v1/nodes", object.ready)
	p.seen.NodeReady = p.since()
	return err
}

func (p *prober) podRunning(ctx context.Context, a api) error {
	err := a.follow(ctx, podsPath, func(o object) bool { return o.Metadata.Name == firstPod && o.Status.Phase == "Running" })
	p.seen.PodRunning = p.since()
	return err
}

// pods creates both pods and waits until the second one has resolved a name.
func (p *prober) pods(ctx context.Context, a api, imported <-chan struct{}) error {
	select {
	case <-imported:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := a.create(ctx, pod(firstPod, "sleep")); err != nil {
		return err
	}
	p.seen.Admitted = p.since()
	if err := a.create(ctx, pod(askingPod, "lookup", "kubernetes.default.svc.cluster.local.", "--retry-for", "30s")); err != nil {
		return err
	}
	at, err := a.answered(ctx)
	p.dnsAt, p.seen.DNS = at, at.Sub(p.begun).Seconds()
	return err
}

// importImage imports the test image into the machine after the cluster's own images, so that it does not delay them.
func (p *prober) importImage(ctx context.Context) error {
	agent, err := agentclient.Dial(agentclient.Socket(p.place.agentSocket()))
	if err != nil {
		return err
	}
	defer agent.Close()
	images := map[string]bool{}
	err = agent.Watch(ctx, func(s reconcile.Status, _ bool, _ int) bool {
		if strings.HasPrefix(s.Ref, "unit/image-") {
			images[s.Ref] = s.Phase == reconcile.Ready
		}
		return len(images) > 0 && !slices.Contains(slices.Collect(maps.Values(images)), false)
	})
	if err != nil {
		return err
	}
	before := childrenCPU()
	archive := "/var/lib/slipway/store/blobs/sha256/" + p.image
	code, err := operate.Exec(ctx, p.inventory, p.cluster, p.place.node, machine.Command{
		Args: []string{"/opt/slipway/bin/ctr", "--namespace", "k8s.io", "images", "import", "--local", archive},
	})
	p.seen.Imported = childrenCPU() - before
	if err == nil && code != 0 {
		err = fmt.Errorf("import test image: ctr ended with %d", code)
	}
	return err
}

const (
	testImage = "slipway.dev/testpod:1"
	podsPath  = "/api/v1/namespaces/default/pods"
	firstPod  = "bench-first"
	askingPod = "bench-lookup"
)

// pod returns an ordinary pod: it mounts its ServiceAccount's token and waits, as any pod does, for the cluster's root certificate.
func pod(name string, args ...string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {
  "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
  "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
  "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": ["%s"]}]}}`,
		name, testImage, strings.Join(args, `", "`))
}

// create repeats the request until the pod is accepted: the answer is 403 until the namespace has its default ServiceAccount.
func (a api) create(ctx context.Context, manifest string) error {
	var refused error
	err := poll(ctx, step, func() bool {
		switch status, text := a.ask(ctx, http.MethodPost, podsPath, manifest); status {
		case http.StatusCreated, http.StatusConflict:
			return true
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			refused = fmt.Errorf("create pod: %s", text)
			return true
		}
		return false
	})
	if refused != nil {
		return refused
	}
	return err
}

// answered returns when the pod had its answer, according to its log: "10.96.0.1 2026-11-20T07:00:00.5Z".
func (a api) answered(ctx context.Context) (at time.Time, err error) {
	err = poll(ctx, 2*step, func() bool {
		status, text := a.ask(ctx, http.MethodGet, podsPath+"/"+askingPod+"/log", "")
		fields := strings.Fields(text)
		if status != http.StatusOK || len(fields) < 2 {
			return false
		}
		at, err = time.Parse(time.RFC3339Nano, fields[len(fields)-1])
		return err == nil
	})
	return at, err
}

// clear deletes the pods of the benchmark.
func (a api) clear(ctx context.Context) error {
	for _, name := range []string{firstPod, askingPod} {
		if status, text := a.ask(ctx, http.MethodDelete, podsPath+"/"+name+"?gracePeriodSeconds=0", ""); status != http.StatusOK {
			return fmt.Errorf("delete pod %s: %s", name, text)
		}
	}
	return nil
}
