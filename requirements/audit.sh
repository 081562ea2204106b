#!/usr/bin/env bash
# Asks the package index's advisories about every locked version; exit code 1 if one has a known fault, or if
# nothing is known of it (--strict).
# Needs a network, which is why CI does not run it: a step of docs/releasing.md. Arguments go to pip-audit.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pip-audit
for lock in runtime ci; do
    "$work/venv/bin/pip-audit" --strict --require-hashes --disable-pip --requirement "requirements/$lock.lock" "$@"
done
