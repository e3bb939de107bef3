// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"github.com/slipway-project/slipway/internal/durable"
)

// spendEtcdPermit takes back the leave to begin an etcd cluster, which only an init has. From here on, an etcd that finds no data looks
// for the cluster that it is in, and never begins another one; one that has data does not ask for its permit.
func (e *Enrolment) spendEtcdPermit() {
	have, err := os.ReadFile(e.cfg.Paths.Permit)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	spent := bytes.Replace(have, []byte("_CLUSTER_STATE=new"), []byte("_CLUSTER_STATE=existing"), 1)
	if err == nil && !bytes.Equal(have, spent) {
		e.cfg.Pass("spend the etcd permit")
		err = durable.WriteFile(e.cfg.Paths.Permit, 0o600, spent)
	}
	if err != nil { // the node runs all the same, and its mark keeps etcd from beginning anew; the next start tries again
		e.cfg.Log.Error("the permit to begin an etcd cluster is not taken back", "error", err)
	}
}
