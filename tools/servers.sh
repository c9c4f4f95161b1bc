#!/usr/bin/env bash
# Installs what tests drive the service with and run it against, from Debian's packages, where it is missing and can be
# had. Where redis-server cannot be had, tests run on the Valkey that comes as a wheel; tests of what else is missing
# fail and say what to install.
set -euo pipefail

missing=()
want() { # COMMAND PACKAGE
    command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$2")
}
want redis-server redis-server
want nginx nginx-light
want wrk wrk
want h2load nghttp2-client
want promtool prometheus
want curl curl

if [ ${#missing[@]} = 0 ]; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed, and cannot be installed from here: ${missing[*]}" >&2
    exit 0
fi
echo "installing ${missing[*]}"
{
    apt-get update -qq
    # The tests start servers of their own: the packages must not start any.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
} >/dev/null 2>&1 || echo "could not be installed: ${missing[*]}" >&2
