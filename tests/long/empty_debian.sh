#!/usr/bin/env bash
# Runs the two commands of the README in a Debian 12 that has nothing, which debootstrap makes in a
# folder of its own. Needs root and the package debootstrap; takes the mirror of this machine.
#   tests/long/empty_debian.sh FOLDER                 FOLDER must not exist; it is left for a look
#   tests/long/empty_debian.sh FOLDER HUB ROWS.csv    builds the program, and with the commands of
#       docs/fine-tuning.md imports HUB, a folder of transformers, fine-tunes it on the table ROWS.csv
#       with texts and labels, predicts and exports
set -euo pipefail
cd "$(dirname "$0")/../.."
root=${1:?usage: empty_debian.sh FOLDER}
[ ! -e "$root" ] || { echo "$root exists; expected a folder that does not" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "debootstrap and chroot need root" >&2; exit 2; }

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
debootstrap --variant=minbase bookworm "$root" "$mirror"
cp /etc/resolv.conf /etc/hosts "$root/etc/"  # a name that nobody knows costs each mpirun seconds
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"' EXIT
git clone -q . "$root/longspan"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" sh -c "cd /longspan && $1"; }
if [ $# -ge 3 ]; then
  cp -r "$2" "$root/hub"
  cp "$3" "$root/rows.csv"
  time inside 'scripts/quickstart.sh --seconds 5'
  for command in 'import /hub --out /imported' \
    'train --from /hub --task classes --data classes=/rows.csv --steps 100 --out /tuned' \
    'eval --out /tuned' 'predict --out /tuned /lines.txt' 'export /tuned --out /exported' \
    'predict --out /exported /lines.txt'; do
    tail -n 3 "$root/rows.csv" >"$root/lines.txt"
    echo "longspan $command"
    inside "build/dev/longspan $command"
  done
  ls -l "$root/exported"
  exit
fi
time inside 'scripts/quickstart.sh --seconds 20'
time inside 'scripts/test.sh'
