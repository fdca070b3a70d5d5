# Everything a contributor runs. `make test` and `make demo` need only Python and pip: they make the environment themselves.

VENV ?= .venv
# The first supported Python that really starts (a pyenv shim may exist for a version that is not selected).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
JOBS ?= 2
PYTHONS ?= 3.11 3.12 3.13
TORCHES ?= 2.11.0 2.13.0 newest

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CPU_TORCH := https://download.pytorch.org/whl/cpu
# What the machine with the GPU runs: nothing of the environment above exists there.
# Paths are whole ones: tests start children in other folders.
GPU_PYTHON ?= PYTHONPATH=$(CURDIR)/src:$(CURDIR)/offline python3
GPU_JOBS ?= 16
SHARD ?= 0/1
# For how many minutes `make fuzz` looks for programs that fail. SEED is where it begins, and what tests draw inputs from.
MINUTES ?= 10
SEED ?= 0
SANITIZED ?= $(addprefix tests/gpu/test_,$(addsuffix _on_gpu.py,products few_rows codes groups attention attention_backward))

.DEFAULT_GOAL := help
.PHONY: help venv demo fuzz fuzz-gpu fuzz-ptx test coverage test-slow test-matrix test-gpu test-x86 faults sanitize-gpu conform-gpu lint format offline clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

venv: $(STAMP) ## create .venv with the pinned versions and this package

# --no-deps: the lock is complete, and nothing outside it (CUDA wheels, say) may come in.
$(STAMP): requirements/lock.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and the other pinned packages in $(VENV): some minutes, depending on the network"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps -r requirements/lock.txt
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --no-deps --force-reinstall \
	  --index-url $(CPU_TORCH) "$$(grep '^torch==' requirements/lock.txt)"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## compile all-MiniLM-L6-v2 and compare it with eager and Inductor
	$(BIN)/python examples/demo_minilm.py

test: lint ## lint, then all tests but the slow ones
	$(BIN)/python -m pytest -n $(JOBS) --seed $(SEED)

coverage: $(STAMP) ## the same tests, and which lines none of them reaches: half as long again
	$(BIN)/python -m pytest -n $(JOBS) --seed $(SEED) --cov --cov-report=term

test-slow: $(STAMP) ## the slow tests only
	$(BIN)/python -m pytest -n $(JOBS) --seed $(SEED) -m slow

faults: $(STAMP) ## kills, damaged files, full disks, threads, forks, interrupts; FAULTS="kills --count 100" is a part
	$(BIN)/python -m weft.testing.faults $(FAULTS)

fuzz: $(STAMP) ## random programs of each kind for MINUTES=10 from SEED=0 on; failures become scripts in reports/fuzz
	$(BIN)/python -m weft fuzz --kind torch --kind module --kind graph --kind triton --minutes $(MINUTES) --seed $(SEED) --jobs $(JOBS) --resume

fuzz-ptx: $(STAMP) ## the same on the PTX machine, which needs no GPU
	$(BIN)/python -m weft fuzz --kind torch --kind graph --kind triton --minutes $(MINUTES) --seed $(SEED) --jobs $(JOBS) \
	  --backend tests.backends.nvidia.emulated_graphs --reports reports/ptx --resume

fuzz-gpu: ## on a machine with a GPU: random programs and kernels for MINUTES=10 from SEED=0 on
	$(GPU_PYTHON) -m weft fuzz --device cuda --kind torch --kind triton --minutes $(MINUTES) --seed $(SEED) --jobs $(GPU_JOBS) --resume

# Environments are made in .matrix; a run that is ended goes on where it stopped. The first Python gets every torch, the
# others the last one.
test-matrix: ## the front end's, integration and runtime tests on other versions: PYTHONS="3.11 3.12 3.13" TORCHES="2.11.0 2.13.0 newest"
	$(PYTHON) requirements/matrix.py --pythons $(PYTHONS) --torches $(TORCHES) --jobs $(JOBS)

# The next four run on a machine with a GPU, or an x86-64 one, with what `make offline` collected: SHARD=i/n takes a part,
# and a part that is run again goes on where it stopped. They need no environment of their own.
test-gpu: ## on a machine with a GPU: the tests that need one; SHARD=0/2 is the first half
	$(GPU_PYTHON) -m pytest -p no:cacheprovider -m gpu -n $(GPU_JOBS) --seed $(SEED) --shard $(SHARD) --resume reports/test-gpu.jsonl tests

# A machine with AVX-512 and AMX runs what others skip. Threads are few, since tests run side by side.
test-x86: ## on an x86-64 machine: all tests but the slow ones and those for GPUs; SHARD=0/2 is the first half
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=2 $(GPU_PYTHON) -m pytest -p no:cacheprovider -m "not slow and not gpu" \
	  -n $(GPU_JOBS) --seed $(SEED) --shard $(SHARD) --resume reports/test-x86.jsonl tests

sanitize-gpu: ## on a machine with a GPU: compute-sanitizer over the ops' kernels, products and attention
	for watched in "memcheck" "racecheck" "memcheck $(SANITIZED)"; do \
	  $(GPU_PYTHON) -m weft.testing.gpu.sanitize --shard $(SHARD) --jobs $(GPU_JOBS) --tool $$watched || exit 1; \
	done

conform-gpu: ## on a machine with a GPU: OpInfo in f32 and bf16, the model families, training
	mkdir -p reports
	$(GPU_PYTHON) -m weft conform opinfo --device cuda --dtype float32 --dtype bfloat16 --jobs $(GPU_JOBS) \
	  --shard $(SHARD) --log reports/conform-opinfo-$(subst /,-of-,$(SHARD)).jsonl --resume --budget 400
	$(GPU_PYTHON) -m weft conform models --device cuda --jobs $(GPU_JOBS) --shard $(SHARD) --resume
	$(GPU_PYTHON) -m weft conform training --device cuda --resume

lint: $(STAMP) ## ruff, pyright and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff format the code and fix what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

offline: $(STAMP) ## collect pure-Python dependencies in offline/, for `PYTHONPATH=src:offline python3 -m weft`
	rm -rf offline
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-compile --target offline \
	  --platform any --implementation py --abi none --python-version 3.12 --only-binary=:all: \
	  -r requirements/offline.txt
	cd offline && rm -rf tests docs scripts benchmarks typings bin # xdsl's wheel carries these; they would shadow ours
	$(BIN)/python requirements/describe_weft.py offline
	@test -z "$$(find offline -name '*.so')" || { echo "offline/ has machine code:"; find offline -name '*.so'; exit 1; }
	@du -sm offline | awk '{ print "offline/: " $$1 " MB"; exit $$1 > 25 }'

clean: ## remove caches and reports, keep .venv
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .coverage .coverage.* offline reports build dist
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
