#!/usr/bin/env bash
# environment.sh VENV: make a virtual environment and install Orbit with its test tools into it.
# Debian ships Python without its venv module: as root that package is installed, otherwise its name is printed.
set -euo pipefail
venv=${1:?usage: environment.sh VENV}
python=${PYTHON:-python3}

command -v "$python" >/dev/null || { echo "$python is missing: install Python 3.11 or newer, or say PYTHON=..." >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "$python is $("$python" --version): Orbit needs Python 3.11 or newer, say PYTHON=..." >&2; exit 1; }

if [ ! -x "$venv/bin/python" ]; then
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "installing $package"
      apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    else
      echo "Python's venv module is missing: install it (on Debian: apt-get install $package)" >&2; exit 1
    fi
  fi
  echo "making $venv"
  "$python" -m venv "$venv"
fi
echo "installing Orbit and its test tools into $venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --editable '.[test]'
