# SPDX-License-Identifier: Apache-2.0
# Every target is described by the comment behind it; `make help` prints them.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)"
LINT    := bin/golangci-lint
# Tests that need real components find them here, by name.
COMPONENTS := .cache/components
export SLIPWAY_TEST_BINARIES ?= $(CURDIR)/$(COMPONENTS)
UPFLAGS ?=
BENCHFLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help build components up down test unit e2e check fmt lint race gen gen-check bench long clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## bin/slipway, one static binary
	@mkdir -p bin
	$(BUILD) -o bin/slipway ./cmd/slipway

components: build ## the real components, from the store (built if need be), for the tests
	bin/slipway preflight --install
	bin/slipway bundle build
	bin/slipway bundle unpack $(COMPONENTS)

up: build ## build everything, boot a cluster, say what to do next
	bin/slipway up $(UPFLAGS)

down: build ## remove the cluster that `make up` made
	bin/slipway down

test: unit e2e ## all tests: unit, golden, conformance, real cluster

unit: components ## unit, golden and conformance tests, and a sample of the mutants
	SIM_MUTANTS=3 $(GO) test ./api/... ./cmd/... ./internal/... ./test/bare ./test/bench

e2e: components ## the real cluster, as a user would see it
	$(GO) test -count=1 -p 1 -timeout 45m ./test/e2e/...

# The test that reads a variable says what it does. The limit is for each package; it ends what hangs, and says nothing of how long one takes.
LONG := $(GO) test -count=1 -p 1 -timeout 4h
long: components ## the long forms of the tests, hours: every crash, ten boots, five machines, static pods (needs root)
	SIM_ALL=1 $(LONG) ./internal/sim
	SIM_MUTANTS=all $(LONG) -run Mutants ./internal/sim
	SLIPWAY_E2E_LONG=1 $(LONG) ./test/e2e/ha
	SLIPWAY_BOOTS=10 $(LONG) -run '^TestBoots$$' ./test/e2e/systemd
	SLIPWAY_E2E_APPLY=five $(LONG) ./test/e2e/apply
	SLIPWAY_E2E_FORM=StaticPods $(LONG) ./test/e2e/cluster ./test/e2e/kill
	SLIPWAY_SWEEP=alone $(LONG) ./test/e2e/sweep

check: fmt lint gen-check race ## exactly what CI runs before the tests

fmt: $(LINT) ## fail if a file is not formatted
	$(LINT) fmt --diff

lint: $(LINT) ## the linters of .golangci.yml, import rules included
	$(LINT) run ./...
	$(GO) test ./internal/

race: components ## unit tests under the race detector
	$(GO) test -race ./api/... ./cmd/... ./internal/... ./test/bench

gen: bin/protoc-gen-go bin/protoc-gen-go-grpc ## write all generated code anew
	@command -v protoc >/dev/null || { echo "protoc is missing: install protobuf-compiler (Debian: apt-get install protobuf-compiler)"; exit 1; }
	PATH="$(CURDIR)/bin:$$PATH" protoc --go_out=. --go_opt=module=github.com/slipway-project/slipway \
	  --go-grpc_out=. --go-grpc_opt=module=github.com/slipway-project/slipway api/*/v1/*.proto internal/etcd/etcdpb/*.proto
	$(GO) generate ./...

gen-check: gen ## fail if generated code is not up to date
	git diff --exit-code -- api internal
	@test -z "$$(git ls-files --others --exclude-standard -- api internal)" || { git status --short -- api internal; exit 1; }

bench: components ## boot and destroy clusters, print every figure that the README claims (BENCHFLAGS="-only forms" for less)
	$(GO) build -o bin/bench ./test/bench
	bin/bench -slipway bin/slipway $(BENCHFLAGS)

clean: ## remove what was built here (not the component store)
	rm -rf bin .cache

bin/golangci-lint: tools/go.mod
	cd tools && $(GO) build -o ../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/protoc-gen-go bin/protoc-gen-go-grpc: tools/go.mod
	cd tools && $(GO) build -o ../bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
