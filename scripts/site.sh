#!/usr/bin/env bash
# Builds the site of the documentation in build/site: the pages of docs/ (MkDocs with its theme Material), and the
# reference of the public headers (Doxygen), with one search for pages and names.
#   scripts/site.sh                installs what is missing, as root where there is any
#   scripts/site.sh --installed    installs nothing; exits with 77 and a reason where something is missing
#   scripts/site.sh --serve        builds it and shows it at http://localhost:8000 until Ctrl-C
# Fails on a warning of Doxygen or MkDocs, on a link that leads nowhere, and on a page that would load from elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

install=yes
serve=no
while [ $# -gt 0 ]; do
  case "$1" in
    --installed) install=no; shift ;;
    --serve) serve=yes; shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option $1; see scripts/site.sh --help" >&2; exit 1 ;;
  esac
done
. scripts/common.sh
packages=("${site_packages[@]}")
if [ "$install" = yes ]; then install_missing; fi
awesome=/usr/share/doxygen-awesome-css
for needed in doxygen mkdocs python3 "$awesome/doxygen-awesome.css" /usr/share/mkdocs/themes/material/base.html; do
  command -v "$needed" >/dev/null || [ -e "$needed" ] ||
    { echo "skipped: the site needs $needed; scripts/site.sh installs ${packages[*]}"; exit 77; }
done

# Each step's output is shown if it fails.
step() {
  local log=$log_folder/$1.log
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "failed: $*"; }
}

input=build/site-input
rm -rf "$input"
mkdir -p "$input/pages"
cp docs/site/{Doxyfile,reference.css,mkdocs.yml} "$input"
step headers python3 docs/site/headers.py "$input/headers"
cp docs/site/reference.dox "$input/headers"
(
  cd "$input"
  doxygen -w html header.html footer.html unused.css
  sed -i "s|^</head>|$(tr -d '\n' <../../docs/site/head.html)&|" header.html
  doxygen -l layout.xml
  sed -i -f ../../docs/site/layout.sed layout.xml
)
step reference env -C "$input" doxygen Doxyfile
# Doxygen 1.9.4 names the section of nested classes also where all of them are private and it writes none.
grep -rlZ 'href="#nested-classes"' "$input/pages/reference" --include='*.html' |
  xargs -0 grep -LZ 'name="nested-classes"' | xargs -0 -r sed -i 's|^<a href="#nested-classes">[^<]*</a>[^<]*||'
step pages python3 docs/site/pages.py "$input/reference.tag" "$input/pages"
cp docs/site/pages.css "$input/pages"
step site env -C "$input" mkdocs build --quiet --strict --clean
rm build/site/404.html  # its links are those of a server's root
python3 docs/site/check_links.py build/site
say "The site is build/site/index.html; search needs a server: scripts/site.sh --serve"
if [ "$serve" = yes ]; then exec python3 -m http.server --directory build/site --bind localhost 8000; fi
