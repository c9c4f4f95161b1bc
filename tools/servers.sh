#!/usr/bin/env bash
# Installs Debian's redis-server where it is missing and can be had, so that tests run on Redis as well as on the Valkey
# that comes as a wheel. Where it cannot be had the tests on it are skipped, and say so.
set -euo pipefail

if command -v redis-server >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "redis-server is not installed, and cannot be installed from here: tests run on Valkey alone" >&2
    exit 0
fi
echo "installing redis-server"
{
    apt-get update -qq
    # The tests start servers of their own: the package must not start one.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server
} >/dev/null 2>&1 || echo "redis-server could not be installed: tests run on Valkey alone" >&2
