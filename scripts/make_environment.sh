#!/bin/sh
# Make the virtual environment $1 with the first Python >= 3.11 that can, $2 (may be empty) before all others.
# An environment that already works is kept. Anything wrong ends in one sentence and exit code 69.
set -eu
venv=$1
wanted=$2

is_new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$venv/bin/python" -c "$is_new_enough" && exit 0
    echo "The environment $venv has a Python older than 3.11: remove it and run make again." >&2
    exit 69
fi

if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    echo "$venv exists and is no virtual environment: name another place with make VENV=..." >&2
    exit 69
fi

lacks_venv=
for candidate in ${wanted:-python3.13 python3.12 python3.11 python3}; do
    # A name on the path may be a shim that only complains, so each candidate has to run.
    "$candidate" -c "$is_new_enough" >/dev/null 2>&1 || continue
    if ! "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        lacks_venv=${lacks_venv:-$candidate}
        continue
    fi
    echo "Making $venv with $("$candidate" --version)"
    "$candidate" -m venv --clear "$venv"
    exit 0
done

if [ -n "$lacks_venv" ]; then
    version=$("$lacks_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$lacks_venv has no venv module: install the package python$version-venv (Debian, Ubuntu) and run make again." >&2
else
    echo "No Python 3.11 or newer was found as ${wanted:-python3.13, python3.12, python3.11 or python3}:" \
        "install one, or name it with make PYTHON=/path/to/python3." >&2
fi
exit 69
