#!/usr/bin/env bash
# Writes the lock files anew: names, versions and hashes of every file of them, for all systems and no index.
# Needs uv and a package index. Versions stay as they are unless --upgrade is given.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
        --custom-compile-command "requirements/lock.sh" "$@"
}
compile pyproject.toml requirements/build.in --extra dev --extra docs --output-file requirements/ci.lock "$@"
compile pyproject.toml --constraints requirements/ci.lock --output-file requirements/runtime.lock
