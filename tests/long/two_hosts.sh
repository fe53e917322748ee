#!/usr/bin/env bash
# Trains over two "hosts", which are network namespaces of this machine joined by a virtual cable, and compares
# with one process. Needs root, the packages iproute2 and openmpi-bin, and a build.
#   tests/long/two_hosts.sh [BUILD]     BUILD: build/dev
# Says why and ends with 77 where it cannot run.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build/dev}")
[ "$(id -u)" -eq 0 ] || { echo "network namespaces need root"; exit 77; }
for program in ip mpirun unshare; do
  command -v $program >/dev/null || { echo "there is no $program"; exit 77; }
done
work=$(mktemp -d)
a=longspan-a-$$ b=longspan-b-$$
cleanup() {
  for host in $a $b; do
    for pid in $(ip netns pids $host 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
    ip netns delete $host 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT
ip netns add $a 2>/dev/null || { echo "this machine makes no network namespace"; exit 77; }
ip netns add $b
ip -n $a link add eth0 type veth peer name eth0 netns $b
n=1
for host in $a $b; do
  ip -n $host addr add 10.99.0.$n/24 dev eth0
  ip -n $host link set eth0 up
  ip -n $host link set lo up
  n=$((n + 1))
done
# mpirun calls it as `agent HOST COMMAND...` in place of ssh.
cat >"$work/agent" <<END
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c "hostname longspan-b; \$*"
END
chmod +x "$work/agent"
head -c 100000 /dev/urandom | od -An -tx1 >"$work/text"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
train="$build/longspan train --model transformer_xl:tiny --data bytes=$work/text --steps 12 --seed 5 --set model.dropout=0.1"
$train --set accumulate=2 --out "$work/one" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
began=$SECONDS
ip netns exec $a unshare --uts sh -c "hostname longspan-a; exec mpirun --host 10.99.0.1,10.99.0.2 -np 2 --bind-to none \
  --mca plm_rsh_agent $work/agent --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
  $train --out $work/two" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep -q "2 processes on 2 hosts" "$work/log" || { cat "$work/log"; echo "expected two hosts"; exit 1; }
for file in model optimizer; do
  cmp "$work/one/checkpoints/step-12/$file.safetensors" "$work/two/checkpoints/step-12/$file.safetensors"
done
echo "two hosts: the bits of one process, $((SECONDS - began)) s"
