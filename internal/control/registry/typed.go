// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/json"
	"fmt"
)

// Load reads a record of a kind of one's own into a value, strictly. The errors are those of [Store.Get].
func (r *Registry) Load(ctx context.Context, kind, name string, into any) (version string, err error) {
	if err := foreign(kind); err != nil {
		return "", err
	}
	return r.load(ctx, kind, name, into)
}

// Save writes a record of a kind of one's own as JSON: creates it without a version, replaces exactly that version otherwise. The
// errors are those of [Store.Put].
func (r *Registry) Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error) {
	if err := foreign(kind); err != nil {
		return "", err
	}
	return r.save(ctx, kind, name, version, value)
}

// Drop deletes a record of a kind of one's own. The errors are those of [Store.Delete].
func (r *Registry) Drop(ctx context.Context, kind, name, version string) error {
	if err := foreign(kind); err != nil {
		return err
	}
	return r.store.Delete(ctx, kind, name, version)
}

// WatchKind is [Store.Watch] for a kind of one's own.
func (r *Registry) WatchKind(ctx context.Context, kind string, changed func()) error {
	return r.store.Watch(ctx, kind, changed)
}

// foreign keeps others from what has rules of its own.
func foreign(kind string) error {
	if kind == kindNodes || kind == kindToken {
		return fmt.Errorf("record of kind %s: use the registry's own methods, which keep its rules", kind)
	}
	return nil
}

func (r *Registry) load(ctx context.Context, kind, name string, into any) (version string, err error) {
	item, err := r.store.Get(ctx, kind, name)
	if err != nil {
		return "", err
	}
	if err := strict(item.Data, into); err != nil {
		return "", fmt.Errorf("read record %s %s: %w", kind, name, err)
	}
	return item.Version, nil
}

func (r *Registry) save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error) {
	data, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("write record %s %s: %w", kind, name, err)
	}
	item, err := r.store.Put(ctx, Item{Kind: kind, Name: name, Version: version, Data: data})
	if err != nil {
		return "", err
	}
	return item.Version, nil
}
