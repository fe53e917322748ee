#!/bin/sh
# acceptance.sh ROOT: every numbered acceptance test of the models, of the attention kernels
# and of memory saving has a test that bears its number: TEST(SparseTransformer, Test3_...), TEST(Pattern,
# Kernel2...), TEST(Memory, Test1_...).
# acceptance.sh --self-test: proves that it finds a number that is missing.
set -eu

# name in the source, as a regular expression, and how many there are
wanted='SparseTransformer,.Test 11
BlockBert,.Test 11
(Longformer|LongformerGoldens),.Test 11
Etc,.Test 11
BigBird,.Test 10
Linformer,.Test 8
Reformer,.Test 12
Routing,.Test 12
Hibert,.Test 17
(TransformerXL|TransformerXLGoldens),.Test 12
AdaptiveSpan,.Test 12
(ExpireSpan|ExpireSpanGoldens),.Test 14
(Compressive|CompressiveGoldens),.Test 12
(LinearAttention|RandomFeatures|Performer),.Test 13
(BpTransformer|Tree|EdgeAttention),.Test 14
Memory(OfModels)?,.Test 12
[A-Za-z]+,.Kernel 10'

check() {
  echo "$wanted" | (
    bad=0
    while read -r name count; do
      n=1
      while [ "$n" -le "$count" ]; do
        if ! grep -rqE --include='*.cc' "^TEST(_P)?\(${name}${n}[^0-9]" "$1/tests"; then
          echo "no test is called TEST(${name}${n}...)"
          bad=1
        fi
        n=$((n + 1))
      done
    done
    exit $bad)
}

if [ "${1:-}" != --self-test ]; then
  check "$1"
  echo "every acceptance test has its number"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/tests"
for set in SparseTransformer BlockBert Longformer Etc BigBird Linformer Reformer TransformerXL AdaptiveSpan ExpireSpan Compressive Performer Routing BpTransformer Hibert Memory; do
  for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do echo "TEST($set, Test${n}_Holds) {"; done
done > "$folder/tests/models.cc"
for n in 1 2 3 4 5 6 7 8 9 10; do echo "TEST(Pattern, Kernel${n}Holds) {"; done > "$folder/tests/ops.cc"
(check "$folder") || { echo "misses what is there"; exit 1; }
sed -i.was 's/Longformer, Test1_/Longformer, Also1_/' "$folder/tests/models.cc"
if (check "$folder" > /dev/null); then echo "does not miss a test"; exit 1; fi
mv "$folder/tests/models.cc.was" "$folder/tests/models.cc"
sed -i.was 's/Kernel10/Kernel11/' "$folder/tests/ops.cc"
if (check "$folder" > /dev/null); then echo "does not miss a test of the kernels"; exit 1; fi
echo "finds what it should"
