#!/usr/bin/env bash
# Chromium for the tests of the web pages, from the system's package manager. Where that is not to be had, one line says
# why, and the tests skip themselves.
set -euo pipefail
skip() { echo "setup_browser.sh: $1: the tests of the web pages are skipped" >&2; exit 0; }
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
command -v apt-get >/dev/null || skip "no browser, and no apt-get to install one"
as_root=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || skip "no browser, and no right to install one (sudo apt-get install chromium)"
    as_root=(sudo -n)
fi
"${as_root[@]}" apt-get update -qq || skip "apt-get update failed"
"${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
    skip "apt-get offers no chromium"
