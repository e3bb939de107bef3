// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/control/storeserver"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/node/fetch"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

const storeDir = stateDir + "/store"

// newFetcher asks the control planes of the roster on the disk for what this machine's store lacks. A machine of no cluster has none to
// ask, and one that is the only control plane neither.
func newFetcher(log *slog.Logger) *fetch.Fetcher {
	return fetch.New(fetch.Config{
		Store: storeDir, Log: log,
		Places: func() ([]netip.AddrPort, error) {
			joinCA, err := readCertificate(config.JoinCA + ".crt")
			if err != nil {
				return nil, err
			}
			r, err := rosterfile.Load(config.RosterFile, joinCA)
			if err != nil {
				return nil, err
			}
			return storesOf(r, ownAddresses()), nil
		},
		TLS: func(to netip.Addr) (*tls.Config, error) {
			joinCA, err := readCertificate(config.JoinCA + ".crt")
			if err != nil {
				return nil, err
			}
			return rpc.ClientTLS(rpc.ClientOptions{CA: joinCA, ServerName: to.String()}), nil
		},
	})
}

// storesOf are the store servers of a roster's control planes, but for one's own.
func storesOf(r roster.Roster, own map[netip.Addr]bool) (places []netip.AddrPort) {
	for _, j := range r.Join {
		if !own[j.Addr()] {
			places = append(places, netip.AddrPortFrom(j.Addr(), config.StorePort))
		}
	}
	return places
}

func ownAddresses() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	all, _ := net.InterfaceAddrs() // unknown: one asks oneself in vain, and then the next one
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}

// serveStore hands out this control plane's components until ctx ends. Whatever is wrong with that, as a port that somebody else has,
// must not keep machines from joining.
func serveStore(ctx context.Context, log *slog.Logger) {
	server := storeserver.New(storeserver.Config{
		Blobs: filepath.Join(storeDir, "blobs", "sha256"), Program: config.SlipwayBinary, Certificate: joinCertificate,
	})
	for last := ""; ctx.Err() == nil; _ = sleep.For(ctx, storeAgain) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", config.StorePort))
		if err == nil {
			err = server.Serve(ctx, l)
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			log.Warn("components are not handed out to other machines", "why", err, "again in", storeAgain)
		}
	}
}

const storeAgain = 5 * time.Second
