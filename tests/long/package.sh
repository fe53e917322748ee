#!/usr/bin/env bash
# Installs the Debian package of a build in a Debian 12 that has nothing, uses it, and removes it:
#   apt-get installs it with all that it depends on; the program, its manual and its completion work;
#   the program of README.md, that of docs/from-pytorch.md and those of docs/your-own-program.md and
#   docs/tutorial.md are compiled with the installed headers, by CMake or pkg-config, and run;
#   after removal no file of it is left, nor what it depended on.
# Needs root and debootstrap; takes the mirror of this machine.
#   tests/long/package.sh FOLDER [BUILD]     FOLDER must not exist, and is left for a look; BUILD: build/dev
# Says why and ends with 77 where it cannot run.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=${1:?usage: package.sh FOLDER [BUILD]}
build=$(realpath "${2:-build/dev}")
[ ! -e "$root" ] || { echo "$root exists; expected a folder that does not" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "skipped: debootstrap and chroot need root"; exit 77; }
command -v debootstrap >/dev/null || { echo "skipped: there is no debootstrap"; exit 77; }

made=$(mktemp -d)
cpack --config "$build/CPackConfig.cmake" -B "$made" >"$made/log" 2>&1 || { cat "$made/log"; exit 1; }
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$made/debootstrap.log"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"; rm -rf "$made"' EXIT
cp "$made"/longspan_*.deb "$root/tmp"
mkdir -p "$root/tmp/try/data" "$root/tmp/scripts"
cp -r data/samples "$root/tmp/try/data"

# What the pages tell a reader to do, as scripts.
sh tests/install/page.sh docs/your-own-program.md . >"$root/tmp/scripts/own.sh"
sh tests/install/page.sh docs/tutorial.md . >"$root/tmp/scripts/tutorial.sh"
sh tests/install/pytorch.sh docs/from-pytorch.md >"$root/tmp/scripts/pytorch.cc"
{
  cat <<'END'
#include <longspan/longspan.h>
using namespace longspan;
struct Options {
  TransformerConfig model = local_transformer_preset("small");
  int64_t steps = 3;
  double clip = 1;
};
int main(int, char** argv) {
  const Options opt;
  const Generator gen{1};
  const auto corpus = ByteCorpus::open(argv[1], Split::parse("90/10/0"));
  SegmentBatches train(corpus.train(), 2, 64, {.seed = 1});
  const Cosine schedule{.peak = 1e-3, .warmup = 1, .steps = opt.steps, .floor = 0.05};
END
  sed -n '/^## A program of your own/,/^## /p' README.md | sed -n '/^```cpp/,/^```/p' | grep -v '^```'
  printf '}\n'
} >"$root/tmp/scripts/readme.cc"

inside() {
  printf '+ %s\n' "$1"
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" bash -c "set -eu; cd /tmp/try; $1"
}
quietly() { inside "$1" >"$made/log" 2>&1 || { tail -n 30 "$made/log"; echo "failed: $1"; exit 1; }; echo "works: $1"; }

quietly 'apt-get update && apt-get install -y /tmp/longspan_*.deb'
inside 'longspan --version'
quietly 'longspan train --model transformer_xl --data bytes=data/samples/tinyshakespeare.txt.gz --steps 3 --out run'
quietly 'apt-get install -y --no-install-recommends man-db bash-completion'
quietly 'man longspan | grep -q "score and study Transformers"'
quietly 'set +eu; . /usr/share/bash-completion/bash_completion; _completion_loader longspan; complete -p longspan'
quietly 'test -s /usr/share/zsh/vendor-completions/_longspan'
quietly 'g++ -std=c++20 ../scripts/readme.cc $(pkg-config --cflags --libs longspan) -o readme && ./readme data/samples/tinyshakespeare.txt.gz'
quietly 'g++ -std=c++20 ../scripts/pytorch.cc $(pkg-config --cflags --libs longspan) -o pytorch && ./pytorch | grep -F "[[1, 0, 2],"'
quietly 'mkdir own && cd own && PREFIX=/usr sh ../../scripts/own.sh'
quietly 'mkdir mine && cd mine && PREFIX=/usr sh ../../scripts/tutorial.sh'

quietly 'apt-get purge -y --auto-remove longspan'
inside 'find / -xdev \( -path /tmp -o -path /proc -o -path /dev -o -path /var/cache \) -prune -o -iname "*longspan*" -print' |
  tail -n +2 >"$made/left"
if [ -s "$made/left" ]; then cat "$made/left"; echo "the files above are left"; exit 1; fi
quietly '! dpkg-query -W libopenblas-pthread-dev'  # went with it, as nothing else needs it
echo "the package works in an empty Debian, and leaves nothing"
