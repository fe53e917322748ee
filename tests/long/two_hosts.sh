#!/usr/bin/env bash
# Trains over two "hosts", which are network namespaces of this machine joined by a virtual cable, and compares
# with one process; then cuts the cable in the middle of a run, whose processes must end by themselves and which
# must go on from its last checkpoint. Needs root, the packages iproute2 and openmpi-bin, and a build.
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
# together WORDS...: trains on both hosts.
together() {
  ip netns exec $a unshare --uts sh -c "hostname longspan-a; exec mpirun --host 10.99.0.1,10.99.0.2 -np 2 --bind-to none \
    --mca plm_rsh_agent $work/agent --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
    $*" >"$work/log" 2>&1
}
began=$SECONDS
together $train --out $work/two || { cat "$work/log"; exit 1; }
grep -q "2 processes on 2 hosts" "$work/log" || { cat "$work/log"; echo "expected two hosts"; exit 1; }
for file in model optimizer; do
  cmp "$work/one/checkpoints/step-12/$file.safetensors" "$work/two/checkpoints/step-12/$file.safetensors"
done
echo "two hosts: the bits of one process, $((SECONDS - began)) s"

# The cable is cut while they train.
long="$train --steps 100000 --save-every 20 --set schedule.name=constant --set schedule.warmup=0 --set ranks.timeout=5"
together $long --out $work/cut &
for _ in $(seq 600); do
  ls "$work"/cut/checkpoints/step-*/state.json >/dev/null 2>&1 && break
  sleep 0.1
done
ip -n $a link set eth0 down
began=$SECONDS
training() { pgrep -f "^$build/longspan train .*--out $work/cut" || true; }
while [ -n "$(training)" ] && [ $((SECONDS - began)) -lt 60 ]; do sleep 0.2; done
ended=$((SECONDS - began))
[ $ended -le 15 ] || { cat "$work/log"; echo "processes outlive their limit of 5 s and 10 s more: $ended s"; exit 1; }
# mpirun waits for what it cannot reach, and ends at a second signal at the latest.
left=no
if pgrep -f "mpirun .*--out $work/cut" >/dev/null; then left=yes; fi
for signal in TERM TERM KILL; do
  pkill -$signal -f "mpirun .*--out $work/cut" 2>/dev/null || break
  for _ in $(seq 50); do pgrep -f "mpirun .*--out $work/cut" >/dev/null || break 2; sleep 0.1; done
done
wait || true
grep -q "did not come within 5 s, from rank" "$work/log" || { cat "$work/log"; echo "expected who is missing"; exit 1; }
step=$(ls "$work/cut/checkpoints" | sed -n 's/^step-//p' | sort -n | tail -1)
$build/longspan train --resume --out "$work/cut" --steps $((step + 7)) >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
$long --set accumulate=2 --steps $((step + 7)) --out "$work/whole" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for file in model optimizer; do
  cmp "$work/whole/checkpoints/step-$((step + 7))/$file.safetensors" "$work/cut/checkpoints/step-$((step + 7))/$file.safetensors"
done
echo "a cut cable: all processes ended after $ended s, mpirun left: $left (ended by SIG$signal); the run went on bit for bit"
