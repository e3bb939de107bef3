// SPDX-License-Identifier: Apache-2.0

package rosters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// maxClaim is how far a roster that nobody has signed can push the generation: it must not use them up.
const maxClaim = 1 << 32

// tries bounds the rounds against other Keepers; each loss means that another one has written.
const tries = 8

// look hands out what is published, and publishes what is wanted when that differs.
func (k *Keeper) look(ctx context.Context) error {
	for range tries {
		err := k.round(ctx)
		if !errors.Is(err, registry.ErrConflict) && !errors.Is(err, registry.ErrExists) {
			return err
		}
	}
	return errors.New("write roster: other control planes write all the time")
}

func (k *Keeper) round(ctx context.Context) error {
	have, version, trusted, err := k.published(ctx)
	if err != nil {
		return err
	}
	floor := max(k.c.Floor(), k.known())
	if trusted != nil && have.Generation >= k.known() { // also when what is wanted cannot be told now
		k.hand(trusted, have.Generation)
	}
	want, err := k.wanted(ctx)
	if err != nil {
		return err
	}
	if trusted != nil && want.Same(have) && have.Generation >= floor {
		return nil
	}
	highest := max(have.Generation, floor)
	if highest == math.MaxUint64 {
		return errors.New("write roster: there is no generation left")
	}
	want.Generation = highest + 1
	signed, err := k.sign(want)
	if err != nil {
		return fmt.Errorf("sign roster: %w", err)
	}
	if _, err := k.c.Records.Save(ctx, Kind, Name, version, signed); err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	text, err := json.Marshal(signed)
	if err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	k.c.Log.Info("roster published", "generation", want.Generation, "api", len(want.API), "nodes", len(want.Nodes))
	k.hand(text, want.Generation)
	return nil
}

// published is the record as it is: text is nil when there is none yet, or none that nodes would believe. Of the latter only
// the generation counts, so that what replaces it is newer than all that anybody may have taken.
func (k *Keeper) published(ctx context.Context) (have roster.Roster, version string, text []byte, err error) {
	var signed roster.Signed
	version, err = k.c.Records.Load(ctx, Kind, Name, &signed)
	if errors.Is(err, registry.ErrNotFound) {
		return roster.Roster{}, "", nil, nil
	}
	if err != nil {
		return roster.Roster{}, "", nil, fmt.Errorf("read roster: %w", err)
	}
	have, err = signed.Open(k.c.CA)
	if err == nil && have.Usable() {
		text, err = json.Marshal(signed)
		return have, version, text, err
	}
	k.c.Log.Error("the published roster is not this cluster's, replacing it", "error", err)
	var claim struct {
		Generation uint64 `json:"generation"`
	}
	if err := json.Unmarshal(signed.Body, &claim); err != nil || claim.Generation > k.known()+maxClaim {
		claim.Generation = 0 // Floor knows better
	}
	return roster.Roster{Generation: claim.Generation}, version, nil, nil
}

func (k *Keeper) sign(r roster.Roster) (roster.Signed, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return roster.Signed{}, err
	}
	digest := roster.Digest(body)
	signature, err := k.c.Sign(digest[:])
	if err != nil {
		return roster.Signed{}, err
	}
	s := roster.Signed{Body: body, Signature: signature}
	_, err = s.Open(k.c.CA) // a key that is not the CA's would lock every node out of changes
	return s, err
}

func (k *Keeper) known() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.generation
}

// hand gives a roster to those who ask for the current one.
func (k *Keeper) hand(signed []byte, generation uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signed != nil && generation <= k.generation {
		return
	}
	k.signed, k.generation = signed, generation
	close(k.changed)
	k.changed = make(chan struct{})
}
