#!/usr/bin/env bash
# Renews constraints.txt: installs everything unconstrained into a passing environment and writes down what came.
#
#     tools/constraints.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$1" -m venv "$scratch/venv"
pip=("$scratch/venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet --upgrade pip
"${pip[@]}" install --quiet hatchling editables
"${pip[@]}" install --quiet --no-build-isolation --editable '.[all]' --group dev --group bench
{
    echo "# Exact versions of everything that work on Penstock installs, benchmarks and build backend included."
    echo "# Renew with \`make constraints\` (on Python 3.11, the oldest that is supported), then \`make test\`."
    "${pip[@]}" freeze --all --exclude-editable --exclude setuptools
} >"$scratch/constraints.txt"
if grep -v -E '^(#|[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+$)' "$scratch/constraints.txt"; then
    echo "constraints: the lines above are not plain versions" >&2
    exit 1
fi
cp "$scratch/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
