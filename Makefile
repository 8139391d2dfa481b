# Mizar's commands. Each target does all of its own set-up; `make` alone lists them.
.DEFAULT_GOAL := help
PY := .venv/bin/python
# The shim was built before.
PYTEST := MIZAR_SHIM_IS_BUILT=1 .venv/bin/pytest -q
# A shell of `su` lacks the folders of ip, nft and modprobe.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin
# Tests are compiled when they have changed, not each time.
unexport PYTHONDONTWRITEBYTECODE
AREA ?= all
NODES ?= 1
DRA_NODES ?= 0
NAME ?= mizar
# Parts of the fast tests, run side by side: those of `make check`, the longest in `make test` first, and those of
# `make check-more`.
# Each takes more than a second to start: those that do not wait are as few as keep two cores busy.
FAST := fast-properties fast-operator fast-others fast-whole-agents fast-nodeagent fast-shim fast-spot fast-waiting
MORE := more-shim more-sanitizers more-programs

.PHONY: help demo test beside-e2e check check-more lint types fast $(FAST) $(MORE) harsh integration e2e e2e-first e2e-second e2e-dra upgrade-from kueue crio karpenter cert-manager kuberay containerd nvidia-plugin nvidia-toolkit drivers chaos gen bench soak mutants mutants-shim up down programs images shim shim-plain shim-tests clean setup root-setup

help: ## list the targets, then the folders and what may be changed there
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@sed -n '/^## Folders/,/^## Tests/ s/^| `\([^`]*\)` | \(.*\) | \(.*\) |$$/  \1: \2\n      \3/p' ARCHITECTURE.md | sed 's/`//g; s/\[[^]]*\](\([^)]*\))/\1/'

setup:
	@hack/setup.sh tools
	@hack/venv.sh

root-setup:
	@hack/setup.sh root
	@hack/venv.sh

demo: root-setup ## a real local Kubernetes with simulated cards, Mizar on it: two pods on one card, and a card that is lent (root)
	@$(PY) -m demo

test: export MIZAR_EFFORT ?= 3
test: export MIZAR_NO_SKIPS ?= 1
# What failed is in the last lines of a log that may be cut.
test: export PYTEST_ADDOPTS ?= --tb=short
test: export MIZAR_FAILURES := $(CURDIR)/build/failures.txt
test: programs ## every test, none skipped, trying three times as hard as `make check` (root)
	@mkdir -p build; rm -f "$$MIZAR_FAILURES"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=none beside-e2e e2e-first \
		|| { echo "all failures, once more:"; cat "$$MIZAR_FAILURES" 2>/dev/null; exit 1; }

# A cluster waits more than it works, so these run beside one, and in the end a part of e2e in
# another. Few at once: with fifteen on two cores, programs of the cluster did not start in time.
beside-e2e: setup shim-tests
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target $(FAST) $(MORE) lint types
	@$(MAKE) --no-print-directory harsh
	@$(MAKE) --no-print-directory integration
	@$(MAKE) --no-print-directory e2e-second
	@$(MAKE) --no-print-directory e2e-dra
	@$(MAKE) --no-print-directory chaos

check: setup shim-plain ## lint, types and fast tests of Mizar itself, before each commit; less than two minutes on two idle cores, no root
	@$(MAKE) --no-print-directory --jobs --output-sync=target $(FAST) lint types

check-more: setup shim-tests ## the other fast tests: of the programs beside Mizar, and the shim's long ones; no root
	@$(MAKE) --no-print-directory --jobs --output-sync=target $(MORE)

lint: setup
	@.venv/bin/ruff check --no-cache .
	@.venv/bin/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }
	@.venv/bin/lint-imports
	@hack/gen.sh --check
	@.venv/bin/python shim/tools/hook_table.py --headers --newest

types: setup
	@.venv/bin/mypy

fast: $(FAST) $(MORE)

# Each file of tests is in one part alone (tests/unit/support/test_make.py); a new folder of tests/unit is in fast-others.
SHIM := tests/unit/shim
# Tests of the simulations themselves.
SEEDS := tests/simulation/test_seeds.py
# These wait for time to pass more than they work.
WAITING := $(patsubst %,$(SHIM)/test_%.py,nvml shares simulated_card grants)
# Of the shim, what tries long at random or under load, and what needs a build of its own.
LONG_SHIM := $(patsubst %,$(SHIM)/test_%.py,soak lazy_code deployed handles coverage cudart)
SANITIZED := $(SHIM)/test_sanitizers.py
# These are whole agents, which wait as well.
SPOT := $(patsubst %,tests/unit/nodeagent/test_%.py,spot spot_reclaim spot_restarts spot_shim)
WHOLE_AGENTS := $(patsubst %,tests/unit/nodeagent/test_%.py,assembly card_loss many_pods limits_update plugin shutdown_cleanup metrics)
PROGRAMS := $(patsubst %,tests/unit/%,bench cluster cluster_binaries demo mutants simgpu support)

fast-waiting: setup shim-plain
	@$(PYTEST) $(WAITING)

fast-spot: setup shim-plain
	@$(PYTEST) $(SPOT)

fast-whole-agents: setup shim-plain
	@$(PYTEST) $(WHOLE_AGENTS)

fast-nodeagent: setup shim-plain
	@$(PYTEST) tests/unit/nodeagent $(addprefix --ignore=,$(SPOT) $(WHOLE_AGENTS))

fast-operator: setup
	@$(PYTEST) tests/unit/operator

fast-shim: setup shim-plain
	@$(PYTEST) $(SHIM) $(addprefix --ignore=,$(WAITING) $(LONG_SHIM) $(SANITIZED))

fast-others: setup shim-plain
	@$(PYTEST) tests/unit $(addprefix --ignore=,$(SHIM) $(PROGRAMS) $(addprefix tests/unit/,nodeagent operator))

fast-properties: setup
	@$(PYTEST) tests/property tests/stateful tests/simulation --ignore=$(SEEDS)

more-shim: setup shim-tests
	@$(PYTEST) $(LONG_SHIM)

more-sanitizers: setup shim-tests
	@$(PYTEST) $(SANITIZED)

more-programs: setup shim-tests
	@$(PYTEST) $(PROGRAMS) $(SEEDS)

# What holds for limits and shares on any card.
HARSH := $(patsubst %,tests/unit/shim/test_%.py,harsh contexts lazy_code scribbled_time shares soak deployed cudart)

harsh: export SIMGPU_PROFILE = harsh
harsh: setup shim-tests ## the shim's tests on simulated cards that are as unkind as real ones may be
	@.venv/bin/pytest -q $(HARSH)

integration: root-setup shim ## tests against a real API server, kubelet and registry of cards (root)
	@.venv/bin/pytest -v --no-header tests/integration

ACCESS := tests/e2e/test_card_access.py
# Tests of a second cluster, so that both halves of `make test` take about the same time.
SECOND := $(patsubst %,tests/e2e/test_%.py,spot spot_restarts spot_wake_ups) $(ACCESS) $(patsubst %,tests/e2e/test_%.py,node_settings many_pods)
DRA := tests/e2e/test_dra.py
CHAOS := tests/e2e/test_chaos.py
EARLIER := tests/e2e/test_upgrade_from.py
KUEUE := tests/e2e/test_kueue.py
CONTAINERD := tests/e2e/test_containerd.py
KARPENTER := tests/e2e/test_karpenter.py
CRIO := tests/e2e/test_crio.py
CERT_MANAGER := tests/e2e/test_cert_manager.py
KUBERAY := tests/e2e/test_kuberay.py
TOOLKIT := tests/drivers/test_container_toolkit.py

e2e: e2e-first e2e-second e2e-dra ## the whole of Mizar on a real local Kubernetes (root)

e2e-first: root-setup
	@.venv/bin/pytest -v --no-header --durations=30 tests/e2e $(addprefix --ignore=,$(SECOND) $(DRA) $(CHAOS) $(EARLIER) $(KUEUE) $(CONTAINERD) $(KARPENTER) $(CRIO) $(CERT_MANAGER) $(KUBERAY))

e2e-second: root-setup
	@.venv/bin/pytest -v --no-header --durations=30 $(SECOND)

e2e-dra: root-setup
	@.venv/bin/pytest -v --no-header --durations=30 $(DRA)

upgrade-from: root-setup ## an upgrade from the commit FROM, and a rollback, beside running pods (root)
	@MIZAR_UPGRADE_FROM=$(or $(FROM),$(error say FROM=COMMIT)) .venv/bin/pytest -v --no-header $(EARLIER)

kueue: export MIZAR_KUEUE ?= v0.17.0
kueue: root-setup ## docs/kueue.md with a Kueue that is built first, in some ten minutes; MIZAR_KUEUE=v0.17.0 (root)
	@.venv/bin/pytest -v --no-header $(KUEUE)

containerd: export MIZAR_CONTAINERD ?= 1.7.35
containerd: root-setup ## each way to give cards on a containerd that is built first; MIZAR_CONTAINERD=1.7.35 (root)
	@.venv/bin/pytest -v --no-header $(CONTAINERD)

karpenter: export MIZAR_KARPENTER ?= v1.15.0
karpenter: root-setup ## docs/karpenter.md with a Karpenter that is built first, in some five minutes; MIZAR_KARPENTER=v1.15.0 (root)
	@.venv/bin/pytest -v --no-header $(KARPENTER)

cert-manager: export MIZAR_CERT_MANAGER ?= v1.21.2
cert-manager: root-setup ## the webhook's certificate from a cert-manager that is built first, in some five minutes; MIZAR_CERT_MANAGER=v1.21.2 (root)
	@.venv/bin/pytest -v --no-header $(CERT_MANAGER)

kuberay: export MIZAR_KUBERAY ?= v1.5.0
kuberay: root-setup ## RayClusters of a KubeRay that is built first, in some five minutes; MIZAR_KUBERAY=v1.5.0 (root)
	@.venv/bin/pytest -v --no-header $(KUBERAY)

crio: export MIZAR_CRIO ?= v1.36.3
crio: root-setup ## nodes with a CRI-O, which is built first, in some five minutes; MIZAR_CRIO=v1.36.3 (root)
	@.venv/bin/pytest -v --no-header $(CRIO) tests/e2e/test_runtime.py $(ACCESS)

# Without the shim, whole-card pods of these tests find their card by what the stand-in for the plugin adds to the
# container; NVIDIA's plugin leaves this to NVIDIA's runtime.
nvidia-plugin: export MIZAR_NVIDIA_PLUGIN ?= v0.18.2
nvidia-plugin: root-setup ## sharing and lending with NVIDIA's own device plugin, which is built first, in some four minutes; MIZAR_NVIDIA_PLUGIN=v0.18.2 (root)
	@.venv/bin/pytest -v --no-header tests/e2e/test_sharing.py tests/e2e/test_spot.py -k "not without_the_shim"

drivers: root-setup shim-tests ## the shim, the agent and nvidia-smi with NVIDIA's libraries 450 to 555, which need no card; from Debian's non-free packages
	@.venv/bin/pytest -v --no-header tests/drivers --ignore=$(TOOLKIT)

nvidia-toolkit: export MIZAR_NVIDIA_TOOLKIT ?= v1.20.2
nvidia-toolkit: root-setup ## NVIDIA's container toolkit, which is built first, in some five minutes, and what its runtime makes of the agent's answers; MIZAR_NVIDIA_TOOLKIT=v1.20.2 (root)
	@.venv/bin/pytest -v --no-header $(TOOLKIT)

chaos: root-setup ## programs die, cards fail and users move at random; MIZAR_CHAOS_MINUTES=5 MIZAR_SEED= (root)
	@.venv/bin/pytest -v -s --no-header $(CHAOS)

gen: setup ## write the generated files: CRDs, hook table, gRPC stubs
	@hack/gen.sh

# Only what starts a cluster needs root.
bench: $(if $(filter shim compute nodeagent,$(AREA)),setup,root-setup) ## benchmarks; AREA=shim for one, STRICT=1 fails for a missed goal; results in build/bench/
	@$(PY) -m bench $(AREA)

mutants-shim: setup ## planted faults in the shim, all of which its tests must notice; ONLY=text chooses
	@$(PY) -m mutants.shim

soak: setup ## random work and sudden deaths under the shim; MIZAR_SOAK_MINUTES=5
	@$(PY) -m soak

mutants: setup ## faults that tests should notice; OF=core/planning (package, folder or file) SAMPLE=200 SEED= AGAIN=1 (those left)
	@$(PY) -m mutants $(OF) $(and $(SAMPLE),--sample $(SAMPLE)) $(and $(SEED),--seed $(SEED)) $(and $(AGAIN),--again) $(and $(TESTS),--tests "$(TESTS)")

up: root-setup ## a local cluster to play with, Mizar installed; NODES=2 NAME=mizar; DRA_NODES=1, with a DRA driver (root)
	@$(PY) -m cluster up --name $(NAME) --nodes $(NODES) --dra-nodes $(DRA_NODES)

down: root-setup ## take the local cluster down, also after a crash (root)
	@$(PY) -m cluster down --name $(NAME)

programs: root-setup ## get the programs that a local Kubernetes consists of, and helm (root)
	@$(PY) -m cluster programs

images: root-setup ## build the container images as archives and print where they are (root)
	@$(PY) -m cluster images

shim: setup
	@$(MAKE) --no-print-directory --silent -C shim

shim-plain: setup
	@$(MAKE) --no-print-directory --silent --jobs=2 -C shim plain bench

shim-tests: setup
	@$(MAKE) --no-print-directory --silent --jobs=2 -C shim tests bench

clean: ## remove what was built in this folder (the cache outside it stays)
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
