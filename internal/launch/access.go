// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/proxy"
)

// Access is how a program on this host reaches a cluster's API: a proxy at 127.0.0.1 into the machine's network, which
// leaves the host's own network as it is.
type Access struct {
	Kubeconfig string `json:"kubeconfig"` // path, 0600
	Server     string `json:"server"`     // https://127.0.0.1:port
}

// Access makes the API of a cluster reachable, starting its proxy if it does not run, and writes the host's kubeconfig.
func (l *Launcher) Access(ctx context.Context, name string) (Access, error) {
	machines, err := l.provider(ctx, name)
	if err != nil {
		return Access{}, err
	}
	node, err := controlPlane(ctx, machines, name)
	if err != nil {
		return Access{}, err
	}
	return l.access(ctx, machines, name, node)
}

func (l *Launcher) access(ctx context.Context, machines provider, name, node string) (Access, error) {
	server, err := machines.Server(ctx, node)
	if err != nil {
		return Access{}, err
	}
	a := Access{Kubeconfig: l.kubeconfigFile(name), Server: server}
	text, err := machines.At(node).Read(ctx, config.AdminConf)
	if errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("cluster %s: %w: see slipway status --name %s", name, errNoCredential, name)
	}
	if err != nil {
		return a, fmt.Errorf("read the admin kubeconfig: %w", err)
	}
	outside, err := withServer(string(text), a.Server)
	if err != nil {
		return a, err
	}
	if old, err := os.ReadFile(a.Kubeconfig); err == nil && string(old) == outside {
		return a, nil
	}
	return a, durable.WriteFile(a.Kubeconfig, 0o600, []byte(outside))
}

// errNoCredential: the agent has not come to it yet.
var errNoCredential = errors.New("no admin credential yet")

// withServer is the kubeconfig with another server. The agent wrote the file, one "server:" per cluster, so a line is all
// that has to change.
func withServer(kubeconfig, server string) (string, error) {
	lines := strings.Split(kubeconfig, "\n")
	for i, line := range lines {
		if key, _, ok := strings.Cut(line, "server:"); ok && strings.TrimLeft(key, " -") == "" {
			lines[i] = key + "server: " + server
			return strings.Join(lines, "\n"), nil
		}
	}
	return "", errors.New("the admin kubeconfig names no server")
}

// controlPlane is the first machine of a cluster that runs and has the administrator's credential; while none has it, the first
// that runs.
func controlPlane(ctx context.Context, machines provider, name string) (string, error) {
	all, err := machines.List(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", fmt.Errorf("no cluster %q on this host: slipway up --name %s makes it, slipway list shows what there is", name, name)
	}
	first := ""
	for _, m := range all {
		switch {
		case m.Running && hasCredential(ctx, machines, m.Name):
			return m.Name, nil
		case m.Running && first == "":
			first = m.Name
		}
	}
	if first != "" {
		return first, nil
	}
	if all[0].Unreachable != "" {
		return "", notRunning(name, all[0])
	}
	return "", fmt.Errorf("cluster %s: machine %s does not run: slipway up --name %s starts it", name, all[0].Name, name)
}

func (l *Launcher) proxyConfig(name string) proxy.Config {
	return proxy.Config{Dir: filepath.Join(l.clusterDir(name), "proxy")}
}

// hasCredential tells whether a machine has the administrator's credential, as control planes do.
func hasCredential(ctx context.Context, machines provider, name string) bool {
	_, err := machines.At(name).Read(ctx, config.AdminConf)
	return err == nil
}

func (l *Launcher) kubeconfigFile(name string) string {
	return filepath.Join(l.clusterDir(name), "kubeconfig")
}

func (l *Launcher) stopProxy(ctx context.Context, name string) error {
	if err := proxy.Stop(ctx, l.proxyConfig(name)); err != nil {
		return fmt.Errorf("stop the API proxy: %w", err)
	}
	return nil
}

// runcPath is the runc of the newest release that the store has; with none, whatever the host has, so that a cluster can be
// taken down when its components are gone.
func (l *Launcher) runcPath(ctx context.Context) string {
	store, err := l.Store()
	if err == nil {
		for _, r := range catalog.Releases() {
			if bundle, ok, err := artifact.Lookup(ctx, store, r); ok && err == nil {
				return store.Path(bundle.Binaries["runc"].Digest)
			}
		}
	}
	path, _ := exec.LookPath("runc")
	return path
}

// reachable opens the way for the user's kubectl; while the credential is not there yet it only starts the proxy.
func (u *up) reachable(ctx context.Context, machines provider, node string) error {
	a, err := u.access(ctx, machines, u.cluster.Name, node)
	if err != nil && (u.o.Wait > 0 || !errors.Is(err, errNoCredential)) {
		return err
	}
	u.result.Kubeconfig, u.result.Server = a.Kubeconfig, a.Server
	return nil
}
