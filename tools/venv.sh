#!/usr/bin/env bash
# Makes or renews a virtual environment with exact versions.
#
#     tools/venv.sh PYTHON FOLDER MADE_FOR CONSTRAINTS [arguments of pip install ...]
#
# MADE_FOR goes into FOLDER/.made once all is installed; a folder made for anything else is emptied first.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1 venv=$2 made_for=$3 constraints=$4
shift 4

if ! command -v "$python" >/dev/null; then
    echo "Penstock needs Python 3.11 or newer, but there is no '$python'. Name one: make PYTHON=python3.12 ..." >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Penstock needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1)." \
        "Name another: make PYTHON=python3.12 ..." >&2
    exit 1
fi

start=$SECONDS
echo "making $venv ..."
if [[ "$(cat "$venv/.made" 2>/dev/null)" != "$made_for" ]]; then
    rm -rf "$venv"
fi
[[ -x "$venv/bin/python" ]] || "$python" -m venv "$venv"

pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --constraint "$constraints")
"${pip[@]}" pip
if [[ " $* " == *" --editable "* ]]; then
    # The build backend is installed beside the rest, so that the constraints hold for it too.
    "${pip[@]}" hatchling editables
fi
"${pip[@]}" --no-build-isolation "$@"
echo "$made_for" >"$venv/.made"
echo "made $venv in $((SECONDS - start)) s"
