#!/bin/sh
# pytorch.sh PAGE: prints a program of the pieces of code in docs/from-pytorch.md, in their order: what
# defines something goes before main, all else into it.
set -eu
cat <<'HEAD'
#include <longspan/longspan.h>

#include <cstdio>
#include <iostream>

using namespace longspan;

HEAD
awk '
  /^```cpp/ { inside = 1; piece = ""; next }
  /^```/ { if (inside) { if (piece ~ /^struct/) before = before piece; else body = body piece; inside = 0 }; next }
  inside { piece = piece $0 "\n" }
  END { printf "%s\nint main() try {\n%s} catch (const Error& e) {\n  std::puts(e.what());\n  return 1;\n}\n", before, body }
' "$1"
