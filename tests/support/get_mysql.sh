#!/usr/bin/env bash
# get_mysql.sh DEST: put Oracle MySQL's server, taken from Debian sid, under DEST, beside its own loader and
# libraries. Touches nothing outside DEST and a temporary folder: no apt source, list, pin or package of the system.
set -euo pipefail
dest=$(realpath -m "${1:?usage: get_mysql.sh DEST}")
[ -x "$dest/mysqld" ] && exec "$dest/mysqld" --version
arch=$(dpkg --print-architecture)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,archives/partial,empty,root}
# the Debian mirror that apt is configured with, read from apt's own configuration
code=$(. /etc/os-release; echo "${VERSION_CODENAME:-}")
uri=$(apt-get update --print-uris | sed -nE "s#^'([^']*/)dists/($code|stable|oldstable|testing|sid|unstable)/InRelease' .*#\\1#p" | head -n 1)
[ -n "$uri" ] || { echo "no Debian main archive in apt's sources" >&2; exit 3; }
echo "deb [arch=$arch signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri sid main" > "$work/sources.list"
# resolve against an imaginary system that has only perl (just helper scripts of the package want it)
printf '%s\n' 'Package: perl' 'Status: install ok installed' "Architecture: $arch" 'Multi-Arch: allowed' \
  'Maintainer: none' 'Version: 99' 'Description: stand-in' '' > "$work/status"
apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts="$work/empty"
  -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts="$work/empty"
  -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status"
  -o Dir::State::extended_states="$work/extended" -o Dir::Log="$work/empty"
  -o Dir::Cache="$work" -o Dir::Cache::archives="$work/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
  -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Architecture="$arch" -o APT::Architectures="$arch"
  -o APT::Sandbox::User="$(id -un)")
"${apt[@]}" update
"${apt[@]}" -y --no-install-recommends --download-only install mysql-server-core
for deb in "$work"/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" |
  tar -x -C "$work/root" --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' \
    --exclude='./usr/share/perl*' --exclude='./usr/lib/*/perl*' --exclude='./usr/bin' --exclude='./usr/lib/*/gconv'; done
cat > "$work/root/mysqld" <<'RUN'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")"); lib=$(dirname "$here"/usr/lib/*/ld-linux-*.so.*)
exec "$lib"/ld-linux-*.so.* --library-path "$lib" "$here/usr/sbin/mysqld" --no-defaults --basedir="$here/usr" \
  --lc-messages-dir="$here/usr/share/mysql" --character-sets-dir="$here/usr/share/mysql/charsets" \
  --plugin-dir="$here/usr/lib/mysql/plugin" --secure-file-priv=NULL "$@"
RUN
chmod 755 "$work/root" "$work/root/mysqld"
mkdir -p "$(dirname "$dest")"; rm -rf "$dest"; mv "$work/root" "$dest"
"$dest/mysqld" --version
