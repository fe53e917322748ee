#!/bin/sh
# page.sh PAGE ROOT: prints a shell script that does what a page of the documentation tells the reader to do, in
# its order: it writes the files and runs the commands, in the current folder. A comment before each block of
# code says what the block is; a block without one is an error.
#   <!-- file: NAME -->      the whole file NAME of the reader's folder
#   <!-- append: NAME -->    lines at the end of that file
#   <!-- run -->             commands
#   <!-- excerpt: FILE -->   lines of ROOT/FILE, which are compared here; the script does nothing with them
#   <!-- skip: REASON -->    nothing
# page.sh --self-test: proves that it finds what is wrong.
set -eu

script() {
  awk -v root="$2" '
    function fail(text) { print FILENAME ":" FNR ": " text > "/dev/stderr"; failed = 1; exit 1 }
    function trimmed(line) { sub(/^[ \t]+/, "", line); return line }
    function whole(path, line, text) {
      text = "\n"
      while ((got = (getline line < path)) > 0) text = text trimmed(line) "\n"
      close(path)
      if (got < 0) fail("cannot read " path)
      return text
    }
    BEGIN { print "set -eux" }
    /^<!-- (file|append|excerpt|skip): .* -->$/ {
      kind = $2; sub(/:$/, "", kind)
      name = $0; sub(/^<!-- [a-z]+: /, "", name); sub(/ -->$/, "", name)
      next
    }
    /^<!-- run -->$/ { kind = "run"; next }
    /^```/ && !inside {
      if (kind == "") fail("the block of code has no comment that says what it is")
      inside = 1
      block = "\n"
      if (kind == "file" || kind == "append") print "cat " (kind == "file" ? ">" : ">>") name " <<'"'end of block'"'"
      next
    }
    /^```$/ && inside {
      if (kind == "file" || kind == "append") print "end of block"
      if (kind == "excerpt" && index(whole(root "/" name), block) == 0) fail("the block above is not in " name)
      inside = 0
      kind = ""
      next
    }
    inside {
      if (kind != "excerpt" && kind != "skip") print
      block = block trimmed($0) "\n"
      ++lines
      next
    }
    !/^$/ && kind != "" { fail("there is no block of code after the comment") }
    END {
      if (failed) exit 1
      if (inside || kind != "") fail("the last block does not end")
      if (lines == 0) fail("no block of code")
    }' "$1"
}

if [ "${1:-}" != --self-test ]; then
  script "$1" "$2"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf 'int a;\n  int b;\nint c;\n' >"$folder/source.cc"
good() {
  printf "$1" >"$folder/page.md"
  script "$folder/page.md" "$folder" >"$folder/script" || { echo "refused: $1"; exit 1; }
}
bad() {
  printf "$1" >"$folder/page.md"
  if script "$folder/page.md" "$folder" >/dev/null 2>&1; then echo "let through: $1"; exit 1; fi
}
good 'Text\n<!-- excerpt: source.cc -->\n```cpp\nint b;\nint c;\n```\n'
good '<!-- file: x -->\n```\none\n```\n<!-- append: x -->\n```\ntwo\n```\n\n<!-- run -->\n```sh\ncat x\n```\n'
[ "$(cd "$folder" && sh script 2>/dev/null)" = "$(printf 'one\ntwo')" ] || { echo "wrong script"; exit 1; }
good '<!-- run -->\n```sh\nfalse\n```\n<!-- skip: why -->\n```sh\nexit 0\n```\n'
if (cd "$folder" && sh script 2>/dev/null); then echo "a command that fails goes unnoticed"; exit 1; fi
bad 'Text alone\n'
bad '```cpp\nint a;\n```\n'
bad '<!-- excerpt: source.cc -->\n```cpp\nint a;\nint c;\n```\n'
bad '<!-- excerpt: source.cc -->\n```cpp\nint\n```\n'
bad '<!-- excerpt: none.cc -->\n```cpp\nint a;\n```\n'
bad '<!-- file: x -->\nText\n```cpp\nint a;\n```\n'
bad '<!-- run -->\n```sh\ntrue\n'
echo "finds what it should"
