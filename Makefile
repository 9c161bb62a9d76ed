# Shortcuts for developers; `make help` lists them.
PYTHON ?= python
SOURCES = csrc tests/cpp tests/fuzz web
CPP_FILES = $(shell find $(SOURCES) -name '*.h' -o -name '*.cc' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help dev build test test-all test-cpp asan tsan ubsan fuzz asan-python lint format bench docs ci bare wheels clean

help:  ## List the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

dev:  ## Install in place with the test and developer tools, and the git hooks
	$(PYTHON) -m pip install -e '.[test,dev]'
	$(PYTHON) -m pre_commit install

build:  ## Compile the native modules again, in place
	$(PYTHON) -m pip install --no-deps -e .

test:  ## Run the Python tests without the slow ones
	$(PYTHON) -m pytest

test-all:  ## Every Python test, one process per core
	$(PYTHON) -m pytest -n auto --dist loadfile -m ""

test-cpp:  ## Run the C++ tests
	cmake --preset release -DPython_EXECUTABLE="$$(command -v $(PYTHON))"
	cmake --build --preset release
	ctest --preset release

asan tsan ubsan:  ## Run the C++ tests under a sanitizer
	cmake --preset $@
	cmake --build --preset $@
	ctest --preset $@

TARGET = pool
RUNS = 1000000
fuzz:  ## Fuzz a TARGET of tests/fuzz with RUNS inputs by libFuzzer (needs clang)
	cmake --preset fuzz
	cmake --build --preset fuzz --target fuzz_$(TARGET)
	mkdir -p build/fuzz/corpus/$(TARGET)
	cd build/fuzz && ./fuzz_$(TARGET) -runs=$(RUNS) -max_len=256 -len_control=0 \
	  -timeout=60 -print_final_stats=1 corpus/$(TARGET)

CALLS = 1000000
SITE = build/asan-python/site
asan-python:  ## Make CALLS random calls to the Python module, under ASan and UBSan (g++)
	cmake -S . -B build/asan-python -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DMARIO_SANITIZE=address,undefined \
	  -DMARIO_BUILD_TESTING_MODULE=ON -DPython_EXECUTABLE="$$(command -v $(PYTHON))"
	cmake --build build/asan-python
	mkdir -p $(SITE) && cp -r mario_envpool $(SITE)
	cmake --install build/asan-python --prefix $(SITE)
	PYTHONPATH=$(SITE) ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  $(PYTHON) tests/hardening/native_calls.py --calls $(CALLS)

lint:  ## Run all of CI's checks that do not run code
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m codespell_lib
	$(PYTHON) .ci/language.py
	$(PYTHON) -m mypy
	clang-format --dry-run --Werror $(CPP_FILES)

format:  ## Format Python and C++
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	clang-format -i $(CPP_FILES)

bench:  ## Measure the speed of the environments on this machine
	$(PYTHON) bench/sps.py

docs:  ## Build the documentation site in site/ (pip install -e '.[docs]')
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

ci:  ## Run everything that CI runs, in a new virtual environment
	.ci/run

bare:  ## Run README's two commands on a bare Debian 13 (root, debootstrap)
	tests/bare_machine.sh

wheels:  ## Build wheels for x86-64 and arm64, play with both under qemu (root)
	tests/wheels.sh

clean:  ## Remove build folders and the compiled module
	rm -rf build dist site *.egg-info mario_envpool/_*.so trainer/_*.so
