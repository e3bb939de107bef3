// SPDX-License-Identifier: Apache-2.0

// Package kube talks to the Kubernetes API: it applies objects, approves kubelets' serving certificates, waits for things to
// become ready, and tells their state. It is the only importer of client-go. It never polls what can be watched, never keeps a
// cache of the cluster, never reads the machine, and deletes only what it made and what nobody wants any more.
//
// Read [Client] and [Client.Apply] first. Everything waits without limit where the API server is away, says why through a
// callback, and ends with its context.
//
//	c, err := kube.Connect("/etc/kubernetes/super-admin.conf", log)
//	changed, err := c.Apply(ctx, addons, func(p kube.Progress) { … })
//	err = c.KeepNode(ctx, kube.Record{Name: "dev-main-0"}, func(reason string) { … }, func(what string) { … })
package kube

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// manager is the name under which Slipway owns fields of objects.
const manager = "slipway"

// Client is a connection to one API server. It is safe for concurrent use and opens no connection before it is asked.
type Client struct {
	dyn  dynamic.Interface
	rest rest.Interface // for what is no resource: /readyz, discovery
	log  *slog.Logger
	conf *rest.Config // with http what it was made of, for a client with a fence
	http *http.Client

	mu    sync.Mutex // guards the field below
	kinds map[schema.GroupVersionKind]resource
}

// Connect reads a kubeconfig. Client certificates that it names by path are read again when they are renewed.
func Connect(kubeconfig string, log *slog.Logger) (*Client, error) {
	quiet()
	conf, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	conf.QPS = -1 // the server has its own fairness; the default of 5 a second would be the slowest part of a start
	conf.UserAgent = manager
	conf.WarningHandler = rest.NoWarnings{}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	http, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", kubeconfig, err)
	}
	c, err := newClient(conf, http, log)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// At is the same identity at another API server of the cluster: "https://10.0.0.4:6443".
func (c *Client) At(server string) (*Client, error) {
	conf := rest.CopyConfig(c.conf)
	conf.Host = server
	http, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("use API server %s: %w", server, err)
	}
	other, err := newClient(conf, http, c.log)
	if err != nil {
		return nil, fmt.Errorf("use API server %s: %w", server, err)
	}
	return other, nil
}

func newClient(conf *rest.Config, http *http.Client, log *slog.Logger) (*Client, error) {
	dyn, err := dynamic.NewForConfigAndClient(conf, http)
	if err != nil {
		return nil, err
	}
	raw, err := rest.UnversionedRESTClientForConfigAndClient(dynamic.ConfigFor(conf), http)
	if err != nil {
		return nil, err
	}
	return &Client{dyn: dyn, rest: raw, log: log, conf: conf, http: http, kinds: map[schema.GroupVersionKind]resource{}}, nil
}

// quiet silences client-go's own logger: what it has to say arrives as errors too.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })
