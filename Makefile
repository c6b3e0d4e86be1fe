# `make` prints what there is to make.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
.NOTPARALLEL: # cargo uses all cores, one step after the other

# What is compiled goes where cargo is told to put it, and guests beside it: they are for another machine.
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
SYNCLINE := $(TARGET_DIR)/debug/syncline
GUEST_TARGET_DIR := $(TARGET_DIR)/guests

# Every project with a syncline.toml is built for the tests; those in tests/guests misbehave on purpose.
GUESTS := $(patsubst %/syncline.toml,%,$(wildcard examples/*/syncline.toml tests/guests/*/syncline.toml))
RUST_EXAMPLES := $(wildcard examples/*/Cargo.toml)

# Most tests wait for processes of theirs most of the time, so twice as many run as there are processors.
RUN_TESTS := $(if $(shell command -v cargo-nextest),cargo nextest run --test-threads $$(($$(getconf _NPROCESSORS_ONLN) * 2)),cargo test --all-targets)

.PHONY: help
help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## show it all at work, from nothing
	@scripts/demo

.PHONY: build
build: setup ## the release binary, at target/release/syncline, and its line tables in syncline.debug
	cargo build --release --package syncline --bin syncline
	@scripts/split-debug-info "$(TARGET_DIR)/release/syncline"
	@echo "$(TARGET_DIR)/release/syncline"

.PHONY: test
test: setup lint test-examples test-workspace ## everything that must pass before a change lands

.PHONY: test-examples
test-examples: ## the examples' own unit tests
	@for manifest in $(RUST_EXAMPLES); do \
		echo "testing $$manifest"; \
		CARGO_TARGET_DIR=$(TARGET_DIR)/examples cargo test --quiet --manifest-path "$$manifest" || exit; \
	done
	node --test examples/backends/node/
	cd examples/backends/python && python3 -B -m unittest --quiet

.PHONY: test-workspace
test-workspace: guests ## the host's and the SDK's tests
	cargo test --quiet --package syncline-sdk --doc
	scripts/test-postgres $(RUN_TESTS) --workspace

.PHONY: soak
soak: guests ## kill hosts and Postgres at random; SEED=… draws it again, MINUTES=… (5) or ROUNDS=… say for how long
	SEED=$(SEED) ROUNDS=$(ROUNDS) MINUTES=$(if $(ROUNDS),$(MINUTES),$(or $(MINUTES),5)) scripts/test-postgres \
		cargo nextest run --workspace --test it --profile soak -E 'test(/^chaos::/)'

.PHONY: docs
docs: ## rewrite what is generated in docs/: the error reference and the OpenAPI document
	SYNCLINE_WRITE_DOCS=1 cargo test --quiet --workspace --lib reference

.PHONY: lint
lint: ## formatting and lints, as they must be
	cargo fmt --all --check
	@for manifest in $(RUST_EXAMPLES); do cargo fmt --manifest-path "$$manifest" --check || exit; done
	cargo clippy --workspace --all-targets -- --deny warnings

.PHONY: guests
guests: ## the components of the examples and of the tests
	cargo build --package syncline --bin syncline
	@for project in $(GUESTS); do \
		echo "building $$project"; \
		CARGO_TARGET_DIR=$(GUEST_TARGET_DIR) $(SYNCLINE) build "$$project" || exit; \
	done

.PHONY: sqlx
sqlx: ## refresh host/crates/store/.sqlx after a change of SQL
	scripts/sqlx-prepare

.PHONY: sqlx-check
sqlx-check: ## fail if host/crates/store/.sqlx is not what it should be
	scripts/sqlx-prepare --check

.PHONY: audit
audit: ## check the licences, bans, sources and advisories of all dependencies
	@scripts/audit

.PHONY: bench
bench: build ## measure, and compare with the numbers in bench/
	@bench/run

.PHONY: setup
setup: ## install what is missing to build and test, or say what to install
	@scripts/setup
