// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"regexp"
	"strings"
)

// TokenRandom is how many random bytes a token is made of: 5 for its id, 20 (160 bit) for its secret.
const TokenRandom = 25

const idBytes = 5

var tokenForm = regexp.MustCompile(`^slipway\.[a-z2-7]{8}\.[a-z2-7]{32}$`)

// TokenText makes a token's id and its text, "slipway.ID.SECRET", from TokenRandom random bytes. There is no other way to the
// text than to be shown it then.
func TokenText(random [TokenRandom]byte) (id, text string) {
	code := base32.StdEncoding.WithPadding(base32.NoPadding)
	id = strings.ToLower(code.EncodeToString(random[:idBytes]))
	return id, "slipway." + id + "." + strings.ToLower(code.EncodeToString(random[idBytes:]))
}

// ReadToken takes a token's text apart. The hash is what the record has if the text is right.
func ReadToken(text string) (id, hash string, err error) {
	if !tokenForm.MatchString(text) {
		return "", "", errors.New("read token: it has not the form slipway.ID.SECRET")
	}
	sum := sha256.Sum256([]byte(text))
	return text[len("slipway.") : len("slipway.")+8], hex.EncodeToString(sum[:]), nil
}
