#!/bin/sh
# links.sh ROOT: every page that README.md, docs/*.md and CONTRIBUTING name in backquotes, or link to, exists; every
# page of docs/ is named by another one.
set -eu
cd "$1"
bad=0
for page in README.md docs/*.md; do
  for name in $(grep -oE '`(docs/)?[a-z0-9-]+\.md`|\]\([a-z0-9/.-]+\.md[^)]*\)' "$page" |
                sed 's/^`//; s/`$//; s/^](//; s/[)#].*$//' | sort -u); do
    [ -e "$name" ] || [ -e "docs/$name" ] || { echo "$page names $name, which does not exist"; bad=1; }
  done
done
for page in docs/*.md; do
  name=$(basename "$page")
  others=$(ls README.md docs/*.md | grep -vx "$page")
  grep -qF "$name" $others || { echo "$page is named nowhere"; bad=1; }
done
[ $bad -eq 0 ] || exit 1
echo "every page that is named exists"
