// SPDX-License-Identifier: Apache-2.0

// Package units is what every supervisor of a plan's units does alike, whoever runs the processes: what makes a running process
// another than the wanted one, how long it rests between two deaths, whether it is still
// well, and where its words go. It runs nothing and knows no supervisor.
//
// Read [Begun] and [Seen] first, then [Health].
//
//	inputs, err := seen.Fingerprints(spec, files.Fingerprint)
//	why := units.Begun{Unit: was, Inputs: wasInputs}.Differs(spec, inputs) // "its arguments changed"
package units
