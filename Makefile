# What a newcomer needs: `make demo` and `make test`. Both install what is missing, build, and end by themselves.
# NO_INSTALL=1 leaves the system alone.

JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)

# Golden data of the real model, where it lies beside the project; without it the tests that need it are skipped.
ifneq ($(wildcard ../shared/goldens),)
export CALLA_GOLDENS ?= $(abspath ../shared/goldens)
export CALLA_QWEN ?= $(abspath ../shared/models)
endif

.PHONY: demo test test-gpu soak build clients install format lint clean
.DEFAULT_GOAL := demo

demo: build/release/build.ninja
	@echo "== Building calla"
	@cmake --build build/release --target calla -j $(JOBS)
	@echo '== calla run --greedy "What is the capital of Thailand?"'
	@build/release/calla run --greedy "What is the capital of Thailand?"

test: build clients
	@echo "== Running the tests"
	@tools/run_tests.sh -j $(JOBS)

build: build/release/build.ninja
	@echo "== Building everything"
	@cmake --build build/release -j $(JOBS)

# What needs an NVIDIA GPU: the CUDA backend against the reference, and its speed. Under ten minutes.
test-gpu: | install
	@tools/test_gpu.sh

# A minute of load on the server: 64 clients of every kind.
soak: build/release/build.ninja
	@cmake --build build/release --target calla -j $(JOBS)
	@CALLA_PROGRAM=$(CURDIR)/build/release/calla node tests/soak/soak.mjs

# Node, which may be there from elsewhere, and the packages of the tests that run on it, as their lock files have them.
# Where they cannot be had these tests are skipped, and say so.
NODE_TESTS = tests/clients tests/page
clients: | install
	@tools/install_dependencies.sh $$(command -v node >/dev/null || echo nodejs) $$(command -v npm >/dev/null || echo npm)
	@[ -n "$(NO_INSTALL)" ] || for folder in $(NODE_TESTS); do \
	  cmp -s $$folder/package-lock.json $$folder/node_modules/.installed && continue; \
	  echo "== Installing the packages of $$folder"; \
	  if npm ci --prefix $$folder --no-audit --no-fund --loglevel=error; then \
	    cp $$folder/package-lock.json $$folder/node_modules/.installed; \
	  else \
	    rm -rf $$folder/node_modules; \
	  fi; \
	done

build/release/build.ninja: CMakeLists.txt CMakePresets.json cmake/*.cmake | install
	@echo "== Configuring"
	@cmake --preset release

install:
	@tools/install_dependencies.sh

SOURCES = $(shell git ls-files 'src/*.cpp' 'src/*.h' 'src/*.inl' 'src/*.cu' 'src/*.cuh' 'src/*.metal' 'src/*.mm' 'tests/*.cpp' 'tests/*.h' 'bench/*.cpp' 'fuzz/*.cpp')

format:
	@clang-format -i $(SOURCES)

lint: build/release/build.ninja
	@tools/lint.sh

clean:
	@rm -rf build
