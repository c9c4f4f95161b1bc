#!/usr/bin/env bash
# Renews constraints*.txt: installs everything unconstrained into passing environments and writes down what came.
#
#     tools/constraints.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# renew FILE HEADING [arguments of pip install ...]
renew() {
    local file=$1 heading=$2 venv=$scratch/${1%.txt}
    shift 2
    "$python" -m venv "$venv"
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
    "${pip[@]}" install --quiet --upgrade pip
    if [[ " $* " == *" --editable "* ]]; then
        "${pip[@]}" install --quiet hatchling editables
    fi
    "${pip[@]}" install --quiet --no-build-isolation "$@"
    {
        echo "# $heading"
        echo "# Renew with \`make constraints\` (on Python 3.11, the oldest that is supported), then \`make test\`."
        "${pip[@]}" freeze --all --exclude-editable --exclude setuptools
    } >"$scratch/$file"
    if grep -v -E '^(#|[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+$)' "$scratch/$file"; then
        echo "constraints: the lines above are not plain versions" >&2
        exit 1
    fi
    cp "$scratch/$file" "$file"
    echo "$file: $(grep -c == "$file") packages"
}

renew constraints.txt "Exact versions of everything that work on Penstock installs, benchmarks and build backend included." \
    --editable '.[all]' --group dev --group bench
renew constraints-peers.txt "Exact versions of the peers that \`make bench\` measures on Redis, with the clients they pin." \
    --group peers
renew constraints-clients.txt "Exact versions of the Redis clients that \`make bench ARGS=redis_clients\` measures, Penstock's own requirements included." \
    --editable '.[redis]' --group clients
