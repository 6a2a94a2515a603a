# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-transformers test-deploy test-flower test-flower-oldest lint types tests claims bench bench-quick bench-peers bench-service bench-secure bench-flower bench-watch soak docs pictures install release-check clean

demo: $(VENV)/.installed  ## install, compare four algorithms on real data, make a report to open in a browser
	$(BIN)/tardigrad demo

test: lint types tests  ## the whole fast suite

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks examples tools deploy
	$(BIN)/ruff format --check src tests benchmarks examples tools deploy

types: $(VENV)/.installed-dev
	$(BIN)/mypy

tests: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder  # what a file's tests share is made once

test-transformers: $(VENV)/.installed-dev  ## modules of transformers and peft, which are installed for it
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[transformers]'
	$(BIN)/pytest tests/learning/test_ordinary_modules.py tests/experiments/test_lora_example.py -k "BERT or LoRA or adapters"

test-deploy: $(VENV)/.installed-dev  ## the files of deploy/ with hadolint and schemas, which are installed for it
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[deploy]'
	$(BIN)/pytest tests/deploy

test-flower: .flower-venvs/newest/.installed  ## on the newest Flower, in a virtual environment of its own
	.flower-venvs/newest/bin/python -m pytest tests/flower tests/flower_grid

test-flower-oldest: .flower-venvs/oldest/.installed  ## the same on the oldest Flower that is supported
	.flower-venvs/oldest/bin/python -m pytest tests/flower tests/flower_grid

claims: $(VENV)/.installed-dev  ## the papers' claims that hold at small scale, run again: an hour or two
	$(BIN)/pytest -m claims tests/claims

bench: $(VENV)/.installed-dev  ## speed, memory and cost as ratios: some ten minutes
	$(BIN)/python benchmarks/all.py

bench-quick: $(VENV)/.installed-dev  ## the same, less exact: two minutes on a quiet machine
	$(BIN)/python benchmarks/all.py --quick

bench-peers: $(VENV)/.installed-dev  ## the same job in other simulators, each in its own virtual environment
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/yardstick.py

bench-service: $(VENV)/.installed-dev  ## what an upload and a trip cost the server, beside bare ones: some ten minutes on a quiet machine
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/service_parts.py
	$(BIN)/python benchmarks/service_trips.py

bench-secure: $(VENV)/.installed-dev  ## what secure aggregation costs clients, server and helper: some minutes
	$(BIN)/python benchmarks/secure.py

bench-flower: .flower-venvs/newest/.installed  ## FedAvg and FedBuff on Flower's SuperNodes, one of them slow: some minutes
	.flower-venvs/newest/bin/python benchmarks/flower.py

bench-watch: $(VENV)/.installed-dev  ## what the live page costs, with a million events: some twenty minutes
	$(BIN)/python benchmarks/live_page.py

soak: $(VENV)/.installed-dev  ## 260 kills, 100,000 bad messages, 1,000 clients: some twenty minutes
	TARDIGRAD_SOAK=1 $(BIN)/pytest tests/service/combined/test_kills.py tests/service/combined/test_secure_kills.py tests/service/combined/test_fuzz.py tests/service/combined/test_crowd.py

docs: $(VENV)/.installed-docs  ## the documentation as a site that works offline: build/site/index.html, half a minute
	$(BIN)/python tools/site/build_site.py

pictures: $(VENV)/.installed-dev  ## docs/pictures: drawn from runs, and the live page in a browser (chromium)
	$(BIN)/python tools/site/pictures.py
	TARDIGRAD_PICTURES=1 $(BIN)/pytest tests/cli/test_watch_command.py -k simulation_is_watched

release-check: $(VENV)/bin/python  ## wheel and sdist: built, checked, installed in clean environments, with each extra
	$(PYTHON) tools/release_check.py --extras all

install: $(VENV)/.installed  ## the command, in .venv

clean:
	rm -rf $(VENV) .release-venv .flower-venvs runs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch is asked for by itself first: with it there, nothing pulls the GPU builds
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# Flower needs older packages than constraints.txt names; only torch is taken from there
.flower-venvs/%/.installed: pyproject.toml
	$(PYTHON) -m venv .flower-venvs/$*
	.flower-venvs/$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.flower-venvs/$*/bin/pip install --quiet --disable-pip-version-check -e . pytest hypothesis \
		'flwr[simulation]$(if $(filter oldest,$*),==1.28.0,>=1.28)'
	touch $@
