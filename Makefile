# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON_VENV := $(VENV)/bin/python
# Kernel tests, benchmarks and the demo load BPF programs: root, here or by sudo.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E)
# Hundreds of interpreters import otelgpu and the tests: compiled once, wherever that is not forbidden.
unexport PYTHONDONTWRITEBYTECODE
# As root: leave no files that the user cannot delete.
AS_ROOT := $(and $(ROOT),$(ROOT) env PYTHONDONTWRITEBYTECODE=1) $(CURDIR)/$(PYTHON_VENV)

C_SOURCES = $(shell git ls-files --cached --others --exclude-standard "*.c" "*.h" "*.cpp")
NO_ROOT_TESTS = $(wildcard tests/unit tests/golden tests/contract tests/deploy)
ROOT_TESTS = $(wildcard tests/kernel tests/hostile tests/servers tests/backends tests/browser tests/gpu)
# They wait more than they compute: more workers than processors. Each has a network and the fakes for itself
# (tests/rig/isolation.py), and a module stays whole, for what its tests observe together.
SIDE_BY_SIDE = -n $(or $(TEST_WORKERS),4) --dist loadfile --no-loadscope-reorder
# Where tests are that must be alone (tests/unit/test_alone.py): the other modules are not imported once more for them.
ALONE = $(sort $(shell grep -rl --include='test_*.py' 'pytest\.mark\.alone' $(ROOT_TESTS)))

# $(call step,what): progress, one line a step.
step = @printf '\n== %s\n' '$(1)'
# $(call pytest,command,folders,options): what tools/test.sh makes of it.
pytest = $(if $(2),tools/test.sh $(1) -m pytest $(2) $(3) $(PYTEST_ARGS),echo 'none yet')

.PHONY: help
help: ## List the targets
	@printf 'usage: make TARGET\n\n'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

.PHONY: setup
setup: ## Install what is missing (system packages, .venv) and build; quick the second time
	$(call step,setup)
	@tools/setup.sh

$(PYTHON_VENV):
	@tools/setup.sh

.PHONY: bpf
bpf: $(PYTHON_VENV) ## Compile the BPF programs that changed
	@$(PYTHON_VENV) hatch_build.py

.PHONY: fakes
fakes: ## Compile the fake vendor libraries (tests/fakes)
	$(call step,fake libraries)
	@$(MAKE) $(if $(V),,--silent) -C tests/fakes && echo 'all here (V=1 shows how they are compiled)'

.PHONY: lint
lint: $(PYTHON_VENV) ## ruff, mypy --strict, clang-format, hashes of what is installed
	$(call step,ruff)
	@$(PYTHON_VENV) -m ruff check .
	@$(PYTHON_VENV) -m ruff format --check .
	$(call step,mypy --strict)
	@$(PYTHON_VENV) -m mypy otelgpu kubectl_otelgpu hatch_build.py bridge/hatch_build.py tools tests/rig tests/backends $(wildcard tests/servers/*.py) examples/demo.py examples/demo_jaeger.py examples/demo_profile.py
	$(call step,clang-format)
	@$(VENV)/bin/clang-format --dry-run -Werror $(C_SOURCES)
	@echo '$(words $(C_SOURCES)) files are formatted'
	$(call step,hashes)
	@$(PYTHON_VENV) tools/pin_versions.py --check

.PHONY: format
format: $(PYTHON_VENV) ## Rewrite Python and C in the project's format
	@$(PYTHON_VENV) -m ruff check --fix-only --quiet .
	@$(PYTHON_VENV) -m ruff format .
	@$(VENV)/bin/clang-format -i $(C_SOURCES)

# The objects are rebuilt where there is a compiler; tests without root need none.
COMPILED = $(if $(shell command -v clang),bpf)

.PHONY: check
check: lint $(COMPILED) ## Lint and the tests that need no root, a fifth of the examples (two minutes)
	$(call step,unit + golden + contract tests, in short)
	@$(call pytest,$(PYTHON_VENV),$(NO_ROOT_TESTS),-n auto -m "not slow" --hypothesis-profile=quick)

.PHONY: test
test: $(PYTHON_VENV) ## All tests (root, or sudo, for the kernel's part)
	$(call step,lint with the fuzz targets beside it; each takes one processor)
	@$(MAKE) --jobs=2 --output-sync=target lint test-fuzz
	@$(MAKE) test-unit
	@$(MAKE) test-kernel

.PHONY: test-unit
test-unit: $(PYTHON_VENV) $(COMPILED) ## The tests that need no root, all of them
	$(call step,unit + golden + contract tests)
	@$(call pytest,$(PYTHON_VENV),$(NO_ROOT_TESTS),-n auto)

.PHONY: test-fuzz
test-fuzz: $(PYTHON_VENV) ## Each fuzz target for two seconds
	$(call step,fuzz targets, briefly)
	@$(call pytest,$(PYTHON_VENV),tests/fuzz)

.PHONY: test-kernel
test-kernel: bpf fakes ## The tests on the running kernel, with backends, a browser and a GPU where they are (root, or sudo)
	$(call step,kernel and GPU tests on $(shell uname -r))
	@status=0; $(call pytest,$(AS_ROOT),$(ROOT_TESTS),$(SIDE_BY_SIDE) -m "not alone") || status=$$?; \
	printf '\n== those that must be alone\n'; \
	$(call pytest,$(AS_ROOT),$(ALONE),-m alone) || status=$$?; exit $$status

.PHONY: vm
vm: $(PYTHON_VENV) ## Packages and kernels for the guests of test-kernels and test-rdma (Debian; needs root; once)
	$(call step,guests: packages and kernels)
	@tools/vm.sh $(VM_LINES)

.PHONY: test-kernels
test-kernels: bpf fakes vm ## What works on other kernels, measured in guests: docs/reference/measured/kernels.md (VM_LINES="6.1 7"; long)
	$(call step,guests with Linux $(or $(VM_LINES),5.10 6.1 6.12 7))
	@$(PYTHON_VENV) -m tests.vm.measure $(or $(VM_LINES),5.10 6.1 6.12 7)
	@$(PYTHON_VENV) -m tests.vm.table

.PHONY: test-rdma
test-rdma: VM_LINES := 7
test-rdma: bpf vm ## Real RDMA programs over soft RoCE in a guest, observed (five to ten minutes)
	$(call step,RDMA in a guest)
	@$(call pytest,$(PYTHON_VENV),tests/vm/test_rdma.py)

.PHONY: test-writeback
test-writeback: vm ## Whom kernels charge for what they write back, in guests (VM_LINES="6.1 7"; a minute or two each)
	$(call step,writeback in guests)
	@$(call pytest,$(PYTHON_VENV),tests/vm/test_writeback.py)

.PHONY: gallery
gallery: bpf fakes ## All programs whose fault is known, under diagnose stall, utilization and memory: the tables (a quarter of an hour; root, or sudo)
	$(call step,gallery)
	@status=0; for each in run utilization memory; do $(AS_ROOT) -m tests.gallery.$$each || status=$$?; done; exit $$status

.PHONY: test-injection
test-injection: bpf fakes ## A library into busy programs, again and again: none is harmed (INJECTIONS=340, INJECTION_MODES="malloc forks"; root, or sudo)
	$(call step,injection)
	@$(AS_ROOT) -m tests.rig.injection $(or $(INJECTIONS),340) $(INJECTION_MODES)

.PHONY: test-servers
test-servers: bpf ## Real servers under one load, observed: docs/reference/measured/real-servers.md (SERVERS="axum tornado"; root, or sudo; half an hour)
	$(call step,real servers)
	@tools/servers.sh
	@status=0; $(AS_ROOT) -m tests.servers.measure $(SERVERS) || status=$$?; \
	$(PYTHON_VENV) -m tests.servers.table && exit $$status

.PHONY: endurance
endurance: bpf fakes ## The agent under churn, watched for growth (ENDURANCE_MINUTES=120, ENDURANCE_PROFILES=cpu; root, or sudo)
	$(call step,endurance)
	@$(AS_ROOT) -m tests.endurance --minutes $(or $(ENDURANCE_MINUTES),120) \
		--profiles "$(ENDURANCE_PROFILES)"

.PHONY: fuzz
fuzz: $(PYTHON_VENV) ## Fuzz what parses foreign bytes (FUZZ_SECONDS=60 for each target, FUZZ_TARGETS=all)
	$(call step,fuzzing)
	@$(PYTHON_VENV) -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),60) $(filter-out all,$(FUZZ_TARGETS))

.PHONY: cluster
cluster: ## Build the one-node Kubernetes of tests/cluster (Go, Debian; 35 minutes the first time)
	$(call step,cluster)
	@tools/cluster.sh

.PHONY: test-cluster
test-cluster: bpf fakes ## deploy/ and kubectl otelgpu on a real node (root; after make cluster, make image)
	$(call step,tests on a node of Kubernetes)
	@$(call pytest,$(AS_ROOT),tests/cluster,-n 2)

.PHONY: backends
backends: ## Build what tests/backends and tests/deploy try: Collector, Jaeger, … (Go; fifteen minutes, then quick)
	$(call step,backends)
	@tools/backends.sh

.PHONY: image
image: $(PYTHON_VENV) ## Build the images of deploy/ on a Debian of debootstrap's, for tests/kernel/test_image.py (root, podman)
	$(call step,image)
	@$(ROOT) tools/image.sh

.PHONY: bench
bench: setup fakes ## Benchmarks: a table and JSON of ratios against baselines (OTELGPU_BENCH_QUICK=1: short)
	$(call step,benchmarks)
	@if [ -e tests/bench/__main__.py ]; then $(AS_ROOT) -m tests.bench; else echo 'none yet'; fi

.PHONY: demo
demo: setup fakes ## An LLM server, 20 streamed requests, their traces, as a tree and as a page
	$(call step,demo)
	@$(AS_ROOT) -m examples.demo $(DEMO_ARGS)

.PHONY: demo-jaeger
demo-jaeger: setup fakes ## The same through a Collector into Jaeger and back (DEMO_ARGS="--keep", "--training")
	$(call step,demo-jaeger)
	@tools/backends.sh otelcol jaeger
	@$(AS_ROOT) -m examples.demo_jaeger $(DEMO_ARGS)

.PHONY: demo-profile
demo-profile: setup ## A training loop that stalls, diagnosed by otelgpu profile -t all (under a minute)
	$(call step,demo-profile)
	@$(AS_ROOT) -m examples.demo_profile $(DEMO_ARGS)

.PHONY: docs
docs: $(PYTHON_VENV) ## Rewrite what is made from the code in docs/, and build the manual as a site into build/site
	@$(PYTHON_VENV) -m tools.document
	$(call step,site)
	@NO_MKDOCS_2_WARNING=1 $(PYTHON_VENV) -m mkdocs build --quiet --strict
	@echo 'build/site/index.html'

.PHONY: pictures
pictures: setup fakes ## Record the terminals and profiles of the manual anew: docs/images (root, Chromium; three minutes)
	$(call step,pictures)
	@$(AS_ROOT) -m examples.terminal_pictures
	@$(AS_ROOT) -m examples.profile_pictures
	@$(AS_ROOT) -m examples.diagnosis_pictures

.PHONY: package
package: $(PYTHON_VENV) ## Build sdist, wheel, SBOM and provenance into dist/, and try the wheel in a fresh environment
	$(call step,package)
	@$(PYTHON_VENV) -m tools.check_package

.PHONY: kubectl-plugin
kubectl-plugin: $(PYTHON_VENV) ## Build kubectl otelgpu as one file, and krew's manifest and archive of it, into dist/
	@$(PYTHON_VENV) -m tools.kubectl_plugin

.PHONY: try-wheel
try-wheel: ## Install the wheel of dist/ on bare systems, by pipx and uv, and observe there (root, debootstrap; two minutes)
	$(call step,try the wheel)
	@$(ROOT) tools/try_wheel.sh $(TRY_WHEEL_SYSTEMS)

.PHONY: constraints
constraints: $(PYTHON_VENV) ## Write the versions now in .venv, and their hashes, to requirements/
	@$(PYTHON_VENV) tools/pin_versions.py

.PHONY: clean
clean: ## Delete what was built (not .venv)
	@rm -rf build dist otelgpu/_bpf .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	@find otelgpu tests tools examples -name __pycache__ -prune -exec rm -rf {} +
	@if [ -e tests/fakes/Makefile ]; then $(MAKE) -s -C tests/fakes clean; fi
