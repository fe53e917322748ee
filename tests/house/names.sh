#!/bin/sh
# names.sh ROOT: no two headers of the library define a class, structure or enumeration of one name
# in namespace longspan. Files that include one of them each would disagree about its layout, which
# no compiler or linker reports.
# names.sh --self-test: proves that it finds such a pair.
set -eu

check() {
  cd "$1"
  find core autograd ops nn models data train hub app/program.h -name '*.h' 2>/dev/null | LC_ALL=C sort | xargs -r awk '
    FNR == 1 { depth = 0 }
    /^namespace longspan \{/ { next }
    /^(inline )?namespace .*\{$/ { ++depth; next }
    /^}  \/\/ namespace/ { if (depth > 0) --depth; next }
    depth > 0 { next }
    /^(struct|class|enum class|enum) [A-Za-z_0-9]+/ && !/;$/ {
      name = $0
      sub(/^(struct|class|enum class|enum) /, "", name)
      rest = name
      sub(/^[A-Za-z_0-9]+/, "", rest)
      sub(/[^A-Za-z_0-9].*/, "", name)
      if (rest ~ /^</) next
      if (name in first && first[name] != FILENAME) {
        printf "%s and %s both define %s\n", first[name], FILENAME, name
        bad = 1
      }
      first[name] = FILENAME
    }
    END { exit bad }'
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "public types have names of their own"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/ops" "$folder/train"
printf 'namespace longspan {\nstruct A;\nstruct B {\n};\nnamespace other {\nstruct C {\n};\n}  // namespace other\n}  // namespace longspan\n' > "$folder/ops/a.h"
printf 'namespace longspan {\nstruct A {\n};\nclass C {\n};\n}  // namespace longspan\n' > "$folder/train/b.h"
(check "$folder") || { echo "complains of different names"; exit 1; }
printf 'namespace longspan {\nclass B final : A {\n};\n}  // namespace longspan\n' > "$folder/train/c.h"
if (check "$folder" > /dev/null); then echo "does not find a name that is there twice"; exit 1; fi
echo "finds what it should"
