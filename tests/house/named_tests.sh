#!/bin/sh
# named_tests.sh ROOT: every test that a document names in backticks as `Suite.Name` exists, a * standing
# for any ending, and no test is named by a number (Test7..., Kernel3...): names say what tests show.
# named_tests.sh --self-test: proves that it finds what is wrong.
set -eu

check() {
  cd "$1"
  bad=0
  tests=$(grep -rhoE --include='*.cc' '^TEST(_P|_F)?\([A-Za-z0-9_]+, [A-Za-z0-9_]+' tests |
    sed 's/^[^(]*(//; s/, /./')
  suites=$(printf '%s\n' "$tests" | sed 's/\..*//' | sort -u)
  for name in $(grep -rhoE '`[A-Z][A-Za-z0-9]*\.[A-Z][A-Za-z0-9_]*\*?`' README.md docs | tr -d '`' | sort -u); do
    # Names with a dot whose first part is no suite are something else, such as names of files.
    printf '%s\n' "$suites" | grep -qx "${name%%.*}" || continue
    case $name in
      *\*) pattern="^${name%\*}" ;;
      *) pattern="^$name\$" ;;
    esac
    printf '%s\n' "$tests" | grep -q "$pattern" ||
      { echo "a document names the test $name, which does not exist: $(grep -rlF "\`$name\`" README.md docs | tr '\n' ' ')"
        bad=1; }
  done
  numbered=$(printf '%s\n' "$tests" | grep -E '\.(Test|Case|Kernel|Claim)[0-9]' || true)
  [ -z "$numbered" ] || { echo "these tests are named by numbers; expected what they show: $numbered"; bad=1; }
  return $bad
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "every test that documents name exists, and none is named by a number"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/tests" "$folder/docs"
echo 'TEST(Tree, HasLeaves) {' > "$folder/tests/tree.cc"
echo 'see `Tree.HasLeaves`, `Tree.Has*` and `ID.PART`' > "$folder/docs/tree.md"
touch "$folder/README.md"
(check "$folder") || { echo "misses what is there"; exit 1; }
echo 'see `Tree.HasRoots`' >> "$folder/docs/tree.md"
if (check "$folder" > /dev/null); then echo "does not miss a test"; exit 1; fi
sed -i 's/HasRoots/HasRoot*/' "$folder/docs/tree.md"
if (check "$folder" > /dev/null); then echo "does not miss a pattern of tests"; exit 1; fi
echo 'see `Tree.HasLeaves`' > "$folder/docs/tree.md"
echo 'TEST(Tree, Test2_HasRoots) {' >> "$folder/tests/tree.cc"
if (check "$folder" > /dev/null); then echo "accepts a number as a name"; exit 1; fi
echo "finds what it should"
