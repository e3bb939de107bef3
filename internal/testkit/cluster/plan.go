// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// member is a node that the operator's document names.
type member struct {
	name, pool, machine string
}

// document is the document of the control role: the operator's nodes.
type document struct {
	Self          string
	Nodes         []admission.Node
	ControlPlanes int
	Flags         map[string]string `json:",omitempty"` // of units
}

const (
	poolMain   = "main"
	poolWorker = "worker"
)

func policy() admission.Policy {
	return admission.Policy{
		Cluster: "dev", APIServer: "1.36.4", PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), NodePodPrefix: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Pools: map[string]admission.Pool{poolMain: {ControlPlane: true}, poolWorker: {}},
	}
}

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
)

func caWant(name string) pki.Want {
	return pki.Want{Name: name, Kind: pki.CA, CommonName: "dev " + name, Lifetime: caLife, CertPath: pkiDir + "/" + name + ".crt", KeyPath: pkiDir + "/" + name + ".key", Permit: createFile}
}

func leafWant(name, signer, cn string, local bool) pki.Want {
	w := pki.Want{
		Name: name, Kind: pki.Leaf, Signer: signer, CommonName: cn, Usages: []pki.Usage{pki.ClientAuth}, Lifetime: leafLife,
		CertPath: pkiDir + "/" + name + ".crt", KeyPath: pkiDir + "/" + name + ".key", SignerCert: pkiDir + "/" + signer + ".crt",
	}
	if local {
		w.SignerKey = pkiDir + "/" + signer + ".key"
	}
	return w
}

// planOf returns the plan of a node. It has all preconditions, permits, keys and marks of a real one, and few other items.
func planOf(name, pool string, flags map[string]string) plan.Plan {
	var b plan.Builder
	dir := b.Add(plan.Dir{Path: pkiDir, Mode: 0o755})
	controls := pool == poolMain
	kubelet := []plan.Ref{dir}
	if controls {
		ca, join := b.Add(plan.Cert{Want: caWant("ca")}, dir), b.Add(plan.Cert{Want: caWant("join-ca")}, dir)
		kubelet = append(kubelet, ca, apiServer(&b, ca, join, name, flags))
	}
	cert := b.Add(plan.Cert{Want: leafWant("kubelet", "ca", "system:node:"+name, controls)}, kubelet...)
	b.Add(plan.Unit{Name: "kubelet", Args: []string{"/kubelet", name}}, cert)
	return b.Plan("dev", name, "1.36.4")
}

func apiServer(b *plan.Builder, ca, join plan.Ref, name string, flags map[string]string) plan.Ref {
	server := b.Add(plan.Cert{Want: leafWant("join-server", "join-ca", name, true)}, join)
	permit := b.Add(plan.Precondition{Name: "etcd-permit", Provider: "a control plane", Ready: plan.Probe{Kind: plan.ProbeFile, Path: permitFile}})
	unit := b.Rolling(b.Add(plan.Unit{Name: "etcd", Args: argsOf("etcd", name, flags), EnvFile: permitFile, DataGuard: plan.DataGuard{Mark: etcdMark, Data: etcdData}}, permit, join))
	voter := b.Add(plan.Precondition{Name: "etcd-voter", Provider: "a control plane", Ready: plan.Probe{Kind: plan.ProbeFile, Path: voterFile}})
	mark := b.Add(plan.File{Path: etcdMark, Mode: 0o600, Content: "created\n"}, unit, voter)
	b.Add(plan.Kubeconfig{Path: adminFile, Cluster: "dev", User: "admin", Server: "https://127.0.0.1:6443"}, ca)
	return b.Rolling(b.Add(plan.Unit{Name: "kube-apiserver", Args: argsOf("kube-apiserver", name, flags)}, mark, ca, server))
}

func argsOf(unit, name string, flags map[string]string) []string {
	args := []string{"/" + unit, name}
	if flag := flags[unit]; flag != "" {
		args = append(args, flag)
	}
	return args
}

// initTicket returns the operator's ticket for the bootstrap node.
func (w *World) initTicket(name string, m *machine) (plan.Ticket, error) {
	doc, err := w.document(name, nil)
	if err != nil {
		return plan.Ticket{}, err
	}
	control, err := json.Marshal(doc)
	if err != nil {
		return plan.Ticket{}, err
	}
	permit := fmt.Sprintf("ETCD_INITIAL_CLUSTER=%s=https://%s:2380\nETCD_INITIAL_CLUSTER_STATE=new\n", name, m.address)
	return plan.Ticket{Version: plan.Version, Plan: planOf(name, poolMain, nil), Control: control, Files: []plan.TicketFile{
		{Path: createFile, Mode: 0o600, Content: []byte("made by init\n")},
		{Path: permitFile, Mode: 0o600, Content: []byte(permit)},
		{Path: voterFile, Mode: 0o600, Content: []byte("made by init\n")},
	}}, nil
}

// tickets implements joinserver.Tickets.
type tickets struct {
	a      *agent
	id     string
	doc    document
	roster func() []byte
}

func (t tickets) For(ctx context.Context, n admission.Node) (plan.Ticket, []plan.TicketFile, error) {
	if err := errors.Join(ctx.Err(), t.a.alive()); err != nil {
		return plan.Ticket{}, nil, err
	}
	out := plan.Ticket{Version: plan.Version, Cluster: t.id, Plan: planOf(n.Name, n.Pool, t.doc.Flags)}
	roster := t.roster()
	if roster == nil {
		return plan.Ticket{}, nil, errors.New("the roster does not exist yet")
	}
	public, err := t.read(0o644, "ca.crt", "join-ca.crt")
	if err != nil {
		return plan.Ticket{}, nil, err
	}
	out.Files = append(public, plan.TicketFile{Path: rosterFile, Mode: 0o600, Content: roster})
	if n.Pool != poolMain {
		return out, nil, nil
	}
	doc := t.doc
	doc.Self = n.Name
	if out.Control, err = json.Marshal(doc); err != nil {
		return plan.Ticket{}, nil, err
	}
	secrets, err := t.read(0o600, "ca.key", "join-ca.key")
	return out, secrets, err
}

func (t tickets) read(mode uint32, names ...string) (files []plan.TicketFile, err error) {
	for _, name := range names {
		text, err := os.ReadFile(t.a.root + pkiDir + "/" + name)
		if err != nil {
			return nil, err
		}
		files = append(files, plan.TicketFile{Path: pkiDir + "/" + name, Mode: mode, Content: text})
	}
	return files, nil
}

// pin is the machine's identity; a machine that has none yet makes it, as at its first boot.
func (m *machine) pin() (pin.Pin, error) {
	_, pin, err := machineKey(m.disk() + keyFile)
	return pin, err
}
