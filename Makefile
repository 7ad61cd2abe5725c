# demoloco-node: `make run` trains on a swarm of this machine, `make test` checks everything. `make help` lists the rest.
# Nothing outside this folder is touched. The tests use CPUs only.

# The probe runs each candidate: a shim that is found on the path may still not start.
PY ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt

# Threads that wait sleep, instead of taking the cores from the other nodes of this machine.
export OMP_WAIT_POLICY ?= PASSIVE

# TORCH=cpu: PyTorch's CPU build, where plain PyPI would give the much larger CUDA build (Linux on x86-64).
TORCH ?=
TORCH_ARGS_cpu := --extra-index-url https://download.pytorch.org/whl/cpu

# Newer generators write code that refuses older protobuf releases, so these three stay as they are.
PROTO_TOOLS := grpcio-tools==1.71.2 mypy-protobuf==3.7.0 protobuf==5.29.6 'setuptools<81'
PROTOS := $(wildcard proto/demoloco_proto/v1/*.proto)
SERVICES := $(shell grep -l '^service' $(PROTOS))

.DELETE_ON_ERROR:
.PHONY: help setup run test lint pytest faults sim fuzz churn wan methods scale crowd proto check-proto lock clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(VENV)/.stamp  ## make .venv with everything in it (TORCH=cpu, CONSTRAINTS=, PY=, VENV=)

$(VENV)/.stamp: pyproject.toml $(CONSTRAINTS)
	@test -n "$(PY)" || { echo "demoloco-node needs Python 3.11, 3.12 or 3.13; none was found. Name one: make PY=/path/to/python3" >&2; exit 1; }
	@$(PY) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "$(PY) is not Python 3.11, 3.12 or 3.13" >&2; exit 1; }
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PY) cannot make virtual environments; on Debian: sudo apt install python3-venv" >&2; exit 1; }
	$(PY) -m venv $(VENV)
	@echo "installing into $(VENV): 1.4 GB, some minutes"
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH_ARGS_$(TORCH)) $(addprefix -c ,$(CONSTRAINTS)) -e '.[test,lint]'
	@touch $@

run: setup  ## train a real model on a local swarm of two nodes
	$(BIN)/demoloco demo

test: lint pytest  ## style, types, layers, then all tests

lint: setup  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real daemons, and models compared as they train, have the machine to themselves; what comes before them shares it, file by file.
ALONE := tests/e2e tests/faults tests/benchmarks tests/node/test_exporting.py
pytest: setup  ## all tests; ARGS='-k name' for some
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile $(ALONE:%=--ignore %)
	$(BIN)/python -m pytest $(ALONE)
endif

faults: setup  ## real daemons through partitions, stopped peers, lost seeds (minutes; root: namespaces)
	$(BIN)/python -m pytest -m slow $(ARGS)

SEEDS ?= 1000
sim: setup  ## play SEEDS=1000 seeded schedules of trouble in the simulator (FIRST=0)
	$(BIN)/python -m tests.sim_hunt --seeds $(SEEDS) --first $(or $(FIRST),0)

SECONDS ?= 300
fuzz: setup  ## hunt for SECONDS=300 for bytes that the packet decoder should refuse and does not (Linux)
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tests.fuzz build/fuzz -max_total_time=$(SECONDS)

MINUTES ?= 8
FAULTS ?= 80
churn: setup  ## measure what survives MINUTES=8 with FAULTS=80 an hour, on real daemons (root: cut cables)
	$(BIN)/python -m benchmarks.churn --minutes $(MINUTES) --faults-per-hour $(FAULTS) $(ARGS)

wan: setup  ## rounds on emulated thin links beside hivemind's averaging; ARGS=--quick for minutes (root)
	$(BIN)/python -m benchmarks.wan $(ARGS)

methods: setup  ## loss against bytes of all methods, resumed where it stopped; ARGS=--quick for a minute
	$(BIN)/python -m benchmarks.methods $(ARGS)

scale: setup  ## what a node costs in swarms of 4 to 256, in the simulator (minutes)
	$(BIN)/python -m benchmarks.scale $(ARGS)

crowd: setup  ## as many real nodes as this machine holds, ARGS='--nodes 12' (minutes)
	$(BIN)/python -m benchmarks.crowd $(ARGS)

# An environment of its own, so that its old protobuf never meets the project's.
.venv-proto/.stamp: Makefile
	$(PY) -m venv .venv-proto
	.venv-proto/bin/python -m pip install --quiet $(PROTO_TOOLS)
	@touch $@

define GENERATE  # $(call GENERATE,folder)
PATH="$(CURDIR)/.venv-proto/bin:$$PATH" python -m grpc_tools.protoc -Iproto --python_out=$(1) --mypy_out=quiet:$(1) $(PROTOS)
PATH="$(CURDIR)/.venv-proto/bin:$$PATH" python -m grpc_tools.protoc -Iproto --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $(SERVICES)
endef

proto: .venv-proto/.stamp  ## generate the protobuf code that is checked in
	$(call GENERATE,proto)

check-proto: .venv-proto/.stamp  ## is the protobuf code that is checked in what `make proto` makes?
	rm -rf build/proto && mkdir -p build/proto
	$(call GENERATE,build/proto)
	for made in build/proto/demoloco_proto/v1/*; do diff -u "proto/$${made#build/proto/}" "$$made" || exit 1; done
	@echo "the protobuf code is up to date"

lock:  ## pin what `make setup` installs to the newest releases; torch stays as it is
	rm -rf build/lock && $(PY) -m venv build/lock && build/lock/bin/python -m pip install --quiet --upgrade pip
	grep '^torch==' constraints.txt > build/lock/torch.txt
	build/lock/bin/python -m pip install --quiet --dry-run --ignore-installed --report build/lock/report.json \
	  -c build/lock/torch.txt -e '.[test,lint]'
	build/lock/bin/python -c 'import json; \
	  found = [one["metadata"] for one in json.load(open("build/lock/report.json"))["install"]]; \
	  pins = {one["name"].lower().replace("_", "-"): one["version"].partition("+")[0] for one in found}; \
	  print("# What `make setup` installs, written by `make lock`. pyproject.toml holds the ranges for users."); \
	  print(*(f"{name}=={pins[name]}" for name in sorted(pins) if name != "demoloco-node"), sep="\n")' > build/lock/constraints.txt
	mv build/lock/constraints.txt constraints.txt
	rm -rf build/lock

clean:  ## remove what make made: environments, caches, builds
	rm -rf $(VENV) .venv-proto build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find daemon client proto tests -name __pycache__ -type d -prune -exec rm -rf {} +
