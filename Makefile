# What a newcomer needs: `make demo` and `make test`. Both install what is missing, build, and end by themselves.
# NO_INSTALL=1 leaves the system alone.

JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)

# Golden data of the real model, where it lies beside the project; without it the tests that need it are skipped.
ifneq ($(wildcard ../shared/goldens),)
export CALLA_GOLDENS ?= $(abspath ../shared/goldens)
export CALLA_QWEN ?= $(abspath ../shared/models)
endif

.PHONY: demo test soak build clients install format lint clean
.DEFAULT_GOAL := demo

demo: build/release/build.ninja
	@echo "== Building calla"
	@cmake --build build/release --target calla -j $(JOBS)
	@echo '== calla run --greedy "What is the capital of Thailand?"'
	@build/release/calla run --greedy "What is the capital of Thailand?"

test: build clients
	@echo "== Running the tests"
	@ctest --test-dir build/release --output-on-failure -j $(JOBS)

build: build/release/build.ninja
	@echo "== Building everything"
	@cmake --build build/release -j $(JOBS)

# A minute of load on the server: 64 clients of every kind.
soak: build/release/build.ninja
	@cmake --build build/release --target calla -j $(JOBS)
	@CALLA_PROGRAM=$(CURDIR)/build/release/calla node tests/soak/soak.mjs

# Node, which may be there from elsewhere, and the packages of the client tests as their lock file has them. Where they
# cannot be had these tests are skipped, and say so.
CLIENTS = tests/clients
clients: | install
	@tools/install_dependencies.sh $$(command -v node >/dev/null || echo nodejs) $$(command -v npm >/dev/null || echo npm)
	@if [ -z "$(NO_INSTALL)" ] && ! cmp -s $(CLIENTS)/package-lock.json $(CLIENTS)/node_modules/.installed; then \
	  echo "== Installing the packages of the client tests"; \
	  if npm ci --prefix $(CLIENTS) --no-audit --no-fund --loglevel=error; then \
	    cp $(CLIENTS)/package-lock.json $(CLIENTS)/node_modules/.installed; \
	  else \
	    rm -rf $(CLIENTS)/node_modules; \
	  fi; \
	fi

build/release/build.ninja: CMakeLists.txt CMakePresets.json cmake/*.cmake | install
	@echo "== Configuring"
	@cmake --preset release

install:
	@tools/install_dependencies.sh

SOURCES = $(shell git ls-files 'src/*.cpp' 'src/*.h' 'src/*.inl' 'tests/*.cpp' 'tests/*.h' 'bench/*.cpp' 'fuzz/*.cpp')

format:
	@clang-format -i $(SOURCES)

lint: build/release/build.ninja
	@tools/lint.sh

clean:
	@rm -rf build
