# Two commands matter: `make demo` and `make test`.  Each sets up what it needs on a fresh machine.

.DEFAULT_GOAL := help
.PHONY: test-vllm wheel help demo test check tiny soak bench bench-gateway bench-sim accuracy size picture lock clean
SHELL := /bin/bash

PY := .venv/bin/python
LOCKS := uv.lock pyproject.toml requirements.lock requirements-dev.lock tools/bootstrap
CODE := src tests tools $(wildcard benchmarks)

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

demo: .venv/.ready-run ## reproduce the 2300-ms incident and prove the fix; prints where the report lies
	.venv/bin/sitsctl reproduce

test: .venv/.ready-dev ## all tests
	$(PY) -m pytest -n auto --dist loadfile

check: .venv/.ready-dev ## lint, format, types, import floors, tidiness
	.venv/bin/ruff check $(CODE)
	.venv/bin/ruff format --check $(CODE)
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m pytest tests/tidy

tiny: .venv/.ready-dev ## the quick tests only
	$(PY) -m pytest -x -m "not slow and not browser"

soak: .venv/.ready-soak ## the long versions: 10^6 cases, games, fuzzing, hostile clients; see CONTRIBUTING.md
	tests/soak/all $(SOAK)

bench: .venv/.ready-dev ## measurements; ratios within one run, for machines are noisy
	@shopt -s nullglob; for file in benchmarks/bench_*.py; do echo "== $$file"; $(PY) "$$file" || exit 1; done

bench-gateway: .venv/.ready-dev ## the gateway beside nginx, Envoy and four LLM gateways; installs them; writes docs/benchmarks.md
	@mkdir -p out
	$(PY) benchmarks/bench_gateway.py --all --full --hostile-first 1000000 --json out/bench-gateway.json --page docs/benchmarks.md

bench-sim: .venv/.ready-dev ## the simulator beside Vidur and DynoSim; installs them; writes docs/benchmark-sim.md
	@mkdir -p out
	$(PY) benchmarks/bench_sim.py --beside --json out/bench-sim.json --page docs/benchmark-sim.md

accuracy: .venv/.ready-dev ## docs/accuracy.md and its picture: every predictor against recordings it was not fitted to; minutes
	$(PY) tools/accuracy.py

wheel: .venv/.ready-run ## out/wheels/*.whl with the data plane compiled (needs a C compiler)
	tools/wheel out/wheels

test-wheel: .venv/.ready-dev ## the data plane's tests against the compiled wheel (needs a C compiler); minutes
	tools/test-wheel

test-vllm: .venv/.ready-dev ## the tests that want a real vLLM, on the CPU; installs it the first time (2.5 GB); ten minutes
	tools/test-vllm

size: .venv/.ready-dev ## lines of code and of tests for each room
	@$(PY) tools/size.py

picture: .venv/.ready-run ## docs/report.png, the first screen of out/report.html (needs Chromium)
	@$(PY) tools/picture.py out/report.html docs/report.png

lock: ## renew uv.lock and its hashed exports (needs uv)
	uv lock
	uv export --quiet --frozen --no-emit-project --no-dev --format requirements-txt --output-file requirements.lock
	uv export --quiet --frozen --no-emit-project --format requirements-txt --output-file requirements-dev.lock
	uv export --quiet --frozen --no-emit-project --only-group soak --format requirements-txt --output-file requirements-soak.lock

clean: ## back to a fresh checkout
	rm -rf .venv out dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready-run: $(LOCKS)
	tools/bootstrap run

.venv/.ready-dev: $(LOCKS)
	tools/bootstrap dev

.venv/.ready-soak: $(LOCKS) requirements-soak.lock
	tools/bootstrap soak
