#!/usr/bin/env bash
# get_databases.sh: see to it that a MariaDB server program and an unpacked MySQL are there; starts nothing.
# MariaDB comes from the system's packages (as root; otherwise the command is printed). MySQL is unpacked into the cache folder
# ($ORBIT_CACHE, by default under the user's own); where it can't be had the tests go on without it, loudly, unless
# REQUIRE_MYSQL=1.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cache=${ORBIT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orbit}
packages=(mariadb-server-core mariadb-client-core)

if ! PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${packages[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  else
    echo "MariaDB's server is missing. Install it: sudo apt-get install ${packages[*]}" >&2; exit 1
  fi
fi

# Two runs on one machine may want the same cache: the second waits for the first.
mkdir -p "$cache"
exec 9>"$cache/mysql.lock"; flock 9
if ! bash "$here/get_mysql.sh" "$cache/mysql" >"$cache/get_mysql.log" 2>&1; then
  cat "$cache/get_mysql.log" >&2
  echo "################ MySQL can't be had: its tests will be SKIPPED ################" >&2
  [ "${REQUIRE_MYSQL:-0}" != 1 ] || exit 1
fi
