#!/usr/bin/env bash
# For developers: fetches the front-end files that the web pages share into steprag/web/vendor, each with its licence,
# and writes SOURCES.md with version, licence and hashes. Needs npm. Nothing of it runs at install.
set -euo pipefail
cd "$(dirname "$0")/.."
vendor=$PWD/steprag/web/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# name@version | file in the package | name here
files='preact@11.2.0|dist/preact.mjs|preact/preact.js
preact@11.2.0|hooks/dist/hooks.mjs|preact/hooks.js
htm@3.1.1|dist/htm.module.js|htm/htm.js
d3-hierarchy@3.1.3|dist/d3-hierarchy.min.mjs|d3-hierarchy/d3-hierarchy.js
uplot@1.6.32|dist/uPlot.esm.js|uplot/uplot.js
uplot@1.6.32|dist/uPlot.min.css|uplot/uplot.css'

rm -rf "$vendor"
mkdir -p "$vendor"
{
    echo "# Front-end files of others"
    echo
    echo "Written by scripts/vendor_web.sh. The files are as their packages hold them, with two differences: the line that"
    echo 'names a source map is gone, and `from"preact"` is a relative path, so pages need no import map. Each folder holds'
    echo "its licence. A test compares the hashes."
    echo
    echo "| file | package | licence | sha256 |"
    echo "|---|---|---|---|"
} > "$vendor/SOURCES.md"
echo "$files" | while IFS='|' read -r package from to; do
    folder=$work/$package
    if [ ! -d "$folder" ]; then
        mkdir -p "$folder"
        (cd "$work" && npm pack --silent "$package" | xargs -I{} tar -xzf {} -C "$folder" --strip-components=1)
    fi
    if [ ! -f "$folder/$from" ]; then
        echo "vendor_web: $package has no $from" >&2
        exit 1
    fi
    mkdir -p "$vendor/$(dirname "$to")"
    sed -e '/^\/\/# sourceMappingURL=/d' -e 's#from"preact"#from"./preact.js"#' "$folder/$from" > "$vendor/$to"
    cp "$folder"/LICENSE* "$vendor/$(dirname "$to")/LICENSE"
    licence=$(node -p "require('$folder/package.json').license")
    echo "| $to | $package | $licence | $(sha256sum "$vendor/$to" | cut -d' ' -f1) |" >> "$vendor/SOURCES.md"
done
