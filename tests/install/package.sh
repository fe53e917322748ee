#!/bin/sh
# package.sh CPACK BUILD ROOT: makes the Debian package of a build, and runs and links what it holds.
set -eu
cpack=$1 build=$2 root=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$cpack" --config "$build/CPackConfig.cmake" -B "$folder" >log 2>&1 || { cat log; exit 1; }
package=$(ls "$folder"/longspan_*.deb)
dpkg-deb --info "$package" | grep -E '^ (Package|Version|Depends|Maintainer):' >control
for field in Package Version Depends Maintainer; do
  grep -q "^ $field: ." control || { cat control; echo "the package names no $field"; exit 1; }
done
dpkg-deb -x "$package" x
for path in bin/longspan include/longspan/longspan.h share/man/man1/longspan.1 share/bash-completion/completions/longspan \
            share/zsh/vendor-completions/_longspan; do
  [ -e "x/usr/$path" ] || { echo "the package has no /usr/$path"; exit 1; }
done
x/usr/bin/longspan --version
version=$(x/usr/bin/longspan --version | sed -n '1s/^longspan //p')
grep -qxF " Version: $version" control || { cat control; echo "expected the package of version $version"; exit 1; }
grep -qxF "version: $version" "$root/CITATION.cff" || { echo "CITATION.cff: expected version: $version"; exit 1; }
# Every command is in the manual, and completion knows commands, options and models.
for command in $(x/usr/bin/longspan --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p'); do
  grep -qwF "$command" x/usr/share/man/man1/longspan.1 || { echo "longspan.1 does not name $command"; exit 1; }
done
bash -c '
  source x/usr/share/bash-completion/completions/longspan
  complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _longspan; echo "${COMPREPLY[*]}"; }
  [ "$(complete_words x/usr/bin/longspan pro)" = profile ] || exit 1
  [[ " $(complete_words x/usr/bin/longspan train --eval)" = *" --eval-every"* ]] || exit 2
  [[ " $(complete_words x/usr/bin/longspan train --model refo)" = *" reformer"* ]] || exit 3
' || { echo "completion fails: $?"; exit 1; }
# A program that is compiled by pkg-config alone.
pc=$(find x -name longspan.pc)
if [ -n "$pc" ]; then
  sh "$root/tests/install/pytorch.sh" "$root/docs/from-pytorch.md" >program.cc
  ${CXX:-g++} program.cc $(PKG_CONFIG_PATH=$(dirname "$folder/$pc") pkg-config --cflags --libs longspan) -o program
  ./program >out 2>&1 && grep -qF '[[1, 0, 2],' out || { cat out; exit 1; }
fi
ls -l "$package" | awk '{ print $5 " bytes" }'
