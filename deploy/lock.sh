#!/bin/sh
# Writes deploy/constraints.txt again: the version of every package that an image may get. Needs uv (pip install uv).
set -eu
cd "$(dirname "$0")/.."
extras=$(printf -- ' --extra %s' worker engine cli metrics view numpy parquet images mcp tau2-2025)
# shellcheck disable=SC2086
uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-annotate --no-emit-index-url \
  --custom-compile-command deploy/lock.sh $extras \
  pyproject.toml deploy/build-requirements.in deploy/flower/requirements.in --output-file deploy/constraints.txt
