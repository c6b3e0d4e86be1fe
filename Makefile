# `make` prints the list of targets.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
.NOTPARALLEL: # cargo uses all cores, one step after the other

# Build output goes to cargo's target directory. Guests have a separate folder in it, because they are built for WebAssembly.
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
SYNCLINE := $(TARGET_DIR)/debug/syncline
GUEST_TARGET_DIR := $(TARGET_DIR)/guests

# The tests use every project with a syncline.toml. Those in tests/guests misbehave on purpose.
GUESTS := $(patsubst %/syncline.toml,%,$(wildcard examples/*/syncline.toml tests/guests/*/syncline.toml))
RUST_EXAMPLES := $(wildcard examples/*/Cargo.toml)

# Most tests wait for their processes most of the time, so twice as many tests as processors run at once.
RUN_TESTS = $(if $(shell command -v cargo-nextest),cargo nextest run --profile $(or $(PROFILE),default) --test-threads $$(($$(getconf _NPROCESSORS_ONLN) * 2)),cargo test --all-targets)

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## build everything and show syncs, records and an action with a local provider
	@scripts/demo

.PHONY: build
build: setup ## build target/release/syncline, with its debug information in syncline.debug
	cargo build --release --package syncline --bin syncline
	@scripts/split-debug-info "$(TARGET_DIR)/release/syncline"
	@echo "$(TARGET_DIR)/release/syncline"

.PHONY: test
test: setup lint test-examples test-typescript test-python test-workspace ## run all checks, and the tests of about ten minutes

.PHONY: test-full
test-full: PROFILE := full
test-full: test ## like `make test`, with the tests that take minutes

.PHONY: test-examples
test-examples: ## run the unit tests of the examples
	@for manifest in $(RUST_EXAMPLES); do \
		echo "testing $$manifest"; \
		CARGO_TARGET_DIR=$(TARGET_DIR)/examples cargo test --quiet --manifest-path "$$manifest" || exit; \
	done
	node --test examples/backends/node/
	cd examples/backends/python && python3 -B -m unittest --quiet

.PHONY: test-typescript
test-typescript: setup ## check the types of the TypeScript SDK and of examples in TypeScript, and run their tests
	@scripts/test-typescript

.PHONY: test-python
test-python: setup ## check the types of the Python SDK and of examples in Python, and run their tests
	@scripts/test-python

.PHONY: test-workspace
test-workspace: guests ## run the tests of the host and the SDK
	cargo test --quiet --package syncline-sdk --doc
	env -u SYNCLINE_TEST_CITUS_URL scripts/test-postgres $(RUN_TESTS) --workspace

.PHONY: test-citus
test-citus: guests ## run the tests of records on the Citus cluster at SYNCLINE_TEST_CITUS_URL
	@scripts/test-citus

.PHONY: soak
soak: guests ## cause random faults of hosts, network, disk and clocks, for MINUTES=5 or ROUNDS=…; SEED=… repeats a sequence
	SYNCLINE_SOAK_OTHER_BINARY=$(SYNCLINE_SOAK_OTHER_BINARY) SEED=$(SEED) ROUNDS=$(ROUNDS) MINUTES=$(if $(ROUNDS),$(MINUTES),$(or $(MINUTES),5)) scripts/test-postgres \
		cargo nextest run --workspace --test it --profile soak -E 'test(/^chaos::/)'

.PHONY: conformance
conformance: guests ## check the REST API statement by statement, and print a table of statements with their results
	scripts/test-postgres cargo nextest run --workspace --test it --profile conformance -E 'test(/^conformance::/)'

.PHONY: fuzz
fuzz: guests ## send about 20,000 generated requests to a host; EXAMPLES=… sets the number for each operation
	SYNCLINE_FUZZ_EXAMPLES=$(or $(EXAMPLES),130) scripts/test-postgres \
		cargo nextest run --workspace --test it --profile soak -E 'test(/^fuzz::/)'

.PHONY: fuzz-parsers
fuzz-parsers: ## give generated inputs to every parser, for MINUTES=5 each; SEED=… repeats a sequence
	SYNCLINE_FUZZ_SECONDS=$$(($(or $(MINUTES),5) * 60)) SYNCLINE_FUZZ_SEED=$(SEED) \
		cargo nextest run --workspace --lib --profile soak --test-threads $$(getconf _NPROCESSORS_ONLN) -E 'test(/(^|::)fuzz::/)'

.PHONY: docs
docs: ## generate the error reference and the OpenAPI document in docs/
	SYNCLINE_WRITE_DOCS=1 cargo test --quiet --workspace --lib reference

.PHONY: baseline
baseline: ## record the public interfaces of a release, with which later changes are compared
	SYNCLINE_WRITE_BASELINE=1 cargo test --quiet --workspace --test it compatibility::

.PHONY: lint
lint: ## check formatting and lints
	cargo fmt --all --check
	@for manifest in $(RUST_EXAMPLES); do cargo fmt --manifest-path "$$manifest" --check || exit; done
	cargo clippy --workspace --all-targets -- --deny warnings

.PHONY: guests
guests: setup ## build the components of the examples and tests
	cargo build --package syncline --bin syncline
	@for project in $(GUESTS); do \
		echo "building $$project"; \
		CARGO_TARGET_DIR=$(GUEST_TARGET_DIR) $(SYNCLINE) build "$$project" || exit; \
	done

.PHONY: sqlx
sqlx: ## update host/crates/store/.sqlx after a change to SQL
	scripts/sqlx-prepare

.PHONY: sqlx-check
sqlx-check: ## fail if host/crates/store/.sqlx is outdated
	scripts/sqlx-prepare --check

.PHONY: audit
audit: ## check the licenses, bans, sources and advisories of all dependencies
	@scripts/audit

.PHONY: bench
bench: build ## run the benchmarks
	@bench/run

.PHONY: setup
setup: ## install missing build and test tools, or print what to install
	@scripts/setup
