# make demo | learn | learn-gpu | test | test-packages | test-all | fuzz | test-redis | test-trainers | test-verifiers | test-trackers | test-routers | test-browser | test-containers | test-sglang | test-vllm | chaos | rollback | lint | docs | dist | resolve | bench | bench-check | bench-gpu | clean. Needs Python 3.11+ and a package index, nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := --groups 8 --size 4

.PHONY: demo learn learn-gpu learn-controls test test-packages test-all fuzz test-redis test-trainers test-verifiers test-trackers test-routers test-tau test-agents test-browser test-containers test-sglang test-vllm chaos rollback lint docs dist resolve bench bench-check bench-gpu clean

demo: $(VENV)/.demo  ## everything on one machine: Redis, replay engine, worker, producer, trainer loop
	@$(BIN)/rollq demo $(DEMO)
	@echo "rollq itself is in $(BIN): . $(BIN)/activate"

# A tiny policy learns; docs/learn.md has the times. ARGS="--staleness 0", "--sglang VENV".
learn: $(VENV)/.learn
	@$(BIN)/python -m examples.learn_shop.learn $(ARGS)

# A pretrained model learns the shop on a GPU, or its desk on a CPU: make learn-gpu MODEL=DIR; docs/learn.md.
learn-gpu: $(VENV)/.learn
	@$(BIN)/python -m examples.learn_shop.learn --model $(MODEL) --out build/learn-gpu $(ARGS)

# The same with one thing wrong at a time. ARGS="--only mask,logprobs"; ARGS="--model DIR --out build/learn-gpu".
learn-controls: $(VENV)/.learn
	@$(BIN)/python -m examples.learn_shop.negative_controls $(ARGS)

# What needs more than the test tools: torch and trainers, Chromium, a container engine, a real SGLang server.
OTHERS := sglang or vllm or routers or trainers or browser or containers or agents
PYTEST := $(BIN)/python -m pytest -q -n 6 --dist worksteal

test: $(VENV)/.test  ## what needs no process of its own, and one end-to-end test for each promise
	$(PYTEST) -m "not slow and not packages and not ($(OTHERS))" $(ARGS)

test-packages: $(VENV)/.packages  ## the same beside packages that rollq works with or is compared with
	$(PYTEST) -m "packages and not slow and not ($(OTHERS))" $(ARGS)

test-all: $(VENV)/.packages test-trainers test-verifiers test-trackers test-routers test-browser  ## all but those of containers, agents, tau-bench and a real SGLang server
	$(PYTEST) -m "not ($(OTHERS))" $(ARGS)

# Property tests with fresh seeds. ARGS="-k wire"; a failure names the seed that repeats it.
SEEDS ?= 30
fuzz: $(VENV)/.test
	@failed=; for seed in $$($(BIN)/python -c "import random; print(*random.sample(range(2**32), $(SEEDS)))"); do \
	  $(BIN)/python -m pytest -q -m "hypothesis and not trainers" --hypothesis-seed=$$seed $(ARGS) || failed="$$failed $$seed"; \
	done; test -z "$$failed" || { echo "failed with --hypothesis-seed:$$failed"; exit 1; }

# The tests of the ledger and what is near it, on each redis-server and valkey-server that is here.
test-redis: $(VENV)/.packages
	$(BIN)/python -m tests.redis_servers $(ARGS)

test-trainers: $(VENV)/.trainers  ## the tests with torch, real trainers and models that learn
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "trainers and not sglang and not vllm" $(ARGS)

# The tests with the real package verifiers, which wants other versions of much; those of MCP servers with its mcp 2.0, too.
VERIFIERS_TESTS := tests/rollq_integrations/verifiers tests/e2e/test_verifiers.py
test-verifiers: $(VENV)/verifiers/.done
	$(VENV)/verifiers/bin/python -m pytest -q $(VERIFIERS_TESTS) tests/rollq_integrations/test_mcp.py $(ARGS)

# The adapters of experiment trackers, with the real packages. MLflow wants older versions of much.
test-trackers: $(VENV)/trackers/.done
	$(VENV)/trackers/bin/python -m pytest -q tests/rollq_integrations/trackers $(ARGS)

# sglang-router and smg in front of replay engines. In front of a real server they are tried by test-sglang, once they are here.
test-routers: $(VENV)/.test $(VENV)/routers/.done
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not sglang" tests/contract/test_routers.py $(ARGS)

# The adapters of tau-bench and tau2-bench on the real packages, which are on no index.
test-tau: $(VENV)/tau/.done
	ROLLQ_TAU_BENCH=$(VENV)/tau/tau-bench ROLLQ_TAU2_BENCH=$(VENV)/tau/tau2-bench PYTHONPATH=$(VENV)/tau/packages \
	  $(BIN)/python -m pytest -q -n 2 tests/rollq_integrations/tau/test_real_tau_bench.py \
	  tests/rollq_integrations/tau/test_real_tau2.py $(ARGS)

# Claude Code and Codex CLI as they are, the pinned and the latest, in a network namespace with nothing but loopback.
test-agents: $(VENV)/agents/latest/.done
	for folder in agents agents/latest; do unshare --map-root-user --net sh -c "ip link set lo up && \
	  PATH=$(abspath $(VENV))/$$folder/node_modules/.bin:$$PATH $(BIN)/python -m pytest -q -m agents $(ARGS)" || exit 1; done

# The pages in a real Chromium without a window: the one on PATH, or that of ROLLQ_CHROMIUM.
test-browser: $(VENV)/.browser $(VENV)/.docs
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m browser $(ARGS)

# docker-compose.yml brought up, and sandboxes in containers. Needs Docker with compose, or podman with podman-compose (ROLLQ_COMPOSE names it).
test-containers: $(VENV)/.test
	$(BIN)/python -m pytest -q -m containers $(ARGS)

# The contract tests on the real server. Give one with ROLLQ_TEST_ENGINE_URL and ROLLQ_TEST_TOKENIZER; see docs/engine.md.
test-sglang: $(VENV)/.trainers
	$(BIN)/python -m pytest -q -m sglang $(ARGS)

# The same on the real vLLM. Give one with ROLLQ_TEST_VLLM_URL and ROLLQ_TEST_TOKENIZER; see docs/engine.md.
test-vllm: $(VENV)/.trainers
	$(BIN)/python -m pytest -q -m vllm $(ARGS)

# The fault suite. ARGS="--seeds 3", "--row NAME", "--storm 120"; see docs/chaos.md.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.chaos $(ARGS)

# Redis loses the tail of its file after every step of a history. ARGS="--seeds 10"; see docs/chaos.md.
rollback: $(VENV)/.test
	$(BIN)/python -m tests.rollback $(ARGS)

lint: $(VENV)/.packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Fails at a link that leads nowhere and at a name that the reference does not find. mkdocs' own warning is about its successors.
docs: $(VENV)/.docs  ## the documentation as a site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo "The pages are in build/site. With search: $(BIN)/python -m http.server -b 127.0.0.1 -d build/site 8000"

dist: $(VENV)/.pip  ## wheel and sdist in dist/; .ci/wheel tries them
	@rm -rf dist
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group dist
	@$(BIN)/python -m build -o dist . >/dev/null

# EXTRAS="demo trl" for some of them; PLATFORMS="aarch64-apple-darwin" for others than Linux on x86_64, too.
resolve: $(VENV)/.pip  ## whether each extra has wheels on Python 3.11 to 3.14 (ten minutes)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group dist
	@.ci/resolve

bench: $(VENV)/.packages  ## ratios in one run, written to benchmarks/results; ARGS="--tokenizer DIR"; see benchmarks/README.md
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-check: $(VENV)/.packages  ## whether a ratio is worse than the committed one; ARGS=--update writes those
	$(BIN)/python benchmarks/check.py $(ARGS)

# Tokens a second of real workers beside a bare client, on your SGLang server: make bench-gpu ENGINE=URL TOKENIZER=DIR; docs/gpu.md.
bench-gpu: $(VENV)/.demo
	cd benchmarks && $(abspath $(BIN))/python -m gpu.goodput --engine $(ENGINE) --tokenizer $(abspath $(TOKENIZER)) $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache dist build

$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "rollq needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.pip
	@echo "Installing rollq and what its demo needs ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo]'
	@touch $@

$(VENV)/.learn: pyproject.toml | $(VENV)/.pip
	@echo "Installing rollq, torch and what the example draws with (minutes) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo,torch]' --group learn
	@touch $@ $(VENV)/.demo

$(VENV)/.test: pyproject.toml | $(VENV)/.pip
	@echo "Installing rollq and the test tools (about 500 MB) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo,metrics]' --group test
	@touch $@ $(VENV)/.demo

$(VENV)/.packages: pyproject.toml | $(VENV)/.pip
	@echo "Installing tasks of tau2-bench, linters and what rollq works with (about 900 MB, minutes) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo,tau2-2025,metrics]' --group test --group packages --group lint
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/trackers/.done: pyproject.toml | $(VENV)/.pip
	@echo "Installing wandb, mlflow and trackio in an environment of their own (1 GB, minutes) ..."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	@$(@D)/bin/python -m pip install -q --disable-pip-version-check -e '.[demo,wandb,mlflow,trackio]' pytest pytest-timeout hypothesis
	@touch $@

# Both have a command named smg, so the tests start their modules.
$(VENV)/routers/.done: | $(VENV)/.pip
	@echo "Installing sglang-router and smg in an environment of their own (274 MB) ..."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -q --disable-pip-version-check 'sglang-router>=0.3.2,<0.4' 'smg>=1.13,<2'
	@touch $@

TAU_BENCH = https://github.com/sierra-research/tau-bench 59a200c6d575d595120f1cb70fea53cef0632f6b
TAU2_BENCH = https://github.com/sierra-research/tau2-bench a2c024725189473d2d7cea3a5cfdbcc67478e41f

CLIS := @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0
$(VENV)/agents/latest/.done: private CLIS := @anthropic-ai/claude-code@latest @openai/codex@latest
$(VENV)/agents/latest/.done: | $(VENV)/agents/.done
$(VENV)/agents/.done $(VENV)/agents/latest/.done: | $(VENV)/.test
	npm install --silent --no-audit --no-fund --prefix $(@D) $(CLIS)
	node $(@D)/node_modules/@anthropic-ai/claude-code/install.cjs
	touch $@

# The commits are those of the extras tau-bench and tau2. What tau2's domains import is little of what it depends on.
$(VENV)/tau/.done: | $(VENV)/.test
	@echo "Cloning tau-bench and tau2-bench, without the conversations that were recorded there ..."
	@rm -rf $(VENV)/tau && mkdir $(VENV)/tau
	@clone() { git clone -q --filter=blob:none --no-checkout $$1 $(VENV)/tau/$$3 && cd $(VENV)/tau/$$3 \
	    && git sparse-checkout set $$4 $$5 && git checkout -q $$2; }; \
	  (clone $(TAU_BENCH) tau-bench tau_bench) && (clone $(TAU2_BENCH) tau2-bench src data/tau2/domains)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --target $(VENV)/tau/packages \
	  addict deepdiff docstring-parser loguru python-dotenv toml
	@touch $@

$(VENV)/.browser: pyproject.toml | $(VENV)/.packages
	@echo "Installing what drives a browser (50 MB) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group browser
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.pip
	@echo "Installing what builds the documentation (60 MB) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group docs
	@touch $@

$(VENV)/.trainers: pyproject.toml | $(VENV)/.test
	@echo "Installing torch and the trainers that rollq has adapters for (gigabytes where torch comes with CUDA) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group trainers
	@touch $@

$(VENV)/verifiers/.done: pyproject.toml | $(VENV)/.pip
	@echo "Installing verifiers and what it needs in an environment of its own (600 MB, minutes) ..."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	@$(@D)/bin/python -m pip install -q --disable-pip-version-check -e '.[demo,verifiers]' pytest pytest-timeout hypothesis pyarrow pillow trustme
	@touch $@
