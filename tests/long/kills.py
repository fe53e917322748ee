#!/usr/bin/env python3
"""Kills runs of `longspan train` at random moments, lets them go on, and compares what they end
with, bit for bit, with runs that nobody has killed.

    tests/long/kills.py --program build/dev/longspan                # 1,000 kills
    tests/long/kills.py --program build/dev/longspan --kills 100 --seed 3
    tests/long/kills.py --models led,bigbird --policies checkpoint

Each run is killed one to six times with SIGKILL and started again with --resume: after a random
time, while a checkpoint is being written, or soon after some row of metrics.jsonl. At its end these
must be those of the run that was not killed:

    checkpoints        which there are; the bytes of both tensor files of the last; its losses
    metrics.jsonl      every step once, with the same figures; every validation once
    summary.json       all but times, speeds and bytes
    config.toml        its bytes
    names of files     no temporary one is left

Prints a line for each pair of model and policy, and a summary; ends with status 1 and keeps the
folder where anything differs. Needs Python 3 alone. One thread, one run at a time.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

STEPS, SAVE_EVERY, EVAL_EVERY, KEEP = 40, 2, 4, 2

SMALL = ["--layers", "2", "--set", "model.d_model=16", "--set", "model.n_head=2", "--set", "model.d_ff=24",
         "--set", "model.dropout=0.1"]
TEXT = ["--data", "bytes=FOLDER/text", "--split", "70/30/0", "--length", "24", "--batch", "2"]
PAIRS = ["--task", "wiki-leads", "--data", "wiki-leads=FOLDER", "--length", "48", "--target-length", "24",
         "--batch", "2", "--set", "model.vocab=259"]
MODELS = {
    "transformer": TEXT + ["--set", "model.positions=learned"],
    "local_transformer": TEXT + ["--set", "model.window=8"],
    "reformer": TEXT + ["--set", "model.chunk=8"],
    "sparse_transformer": TEXT + ["--set", "model.stride=8", "--set", "model.columns=2"],
    "longformer": TEXT + ["--set", "model.one_sided_window=4"],
    "longformer_lm": TEXT + ["--set", "model.window=8"],
    "bigbird": TEXT + ["--set", "model.block=4"],
    "blockbert": TEXT + ["--set", "model.heads_per_shift=1,1"],
    "etc": TEXT + ["--set", "model.n_long=24", "--set", "model.n_global=4", "--set", "model.radius=4"],
    "led": PAIRS + ["--set", "model.one_sided_window=4"],
    "bigbird_pegasus": PAIRS + ["--set", "model.block=4"],
}
POLICIES = ["standard", "lean", "selective", "checkpoint", "checkpoint:2", "reversible",
            "reversible:exact", "reversible:stored"]

# What is not the same in two runs.
TIMES = {"seconds", "tokens_per_second", "peak_bytes"}


class Difference(Exception):
    """What a run that was killed has otherwise."""


def write_data(folder):
    words = ["the ", "quick ", "brown ", "fox ", "jumps ", "over ", "a ", "lazy ", "dog.\n"]
    draw = random.Random(1)
    text = "".join(draw.choice(words) for _ in range(1400))
    (folder / "text").write_text(text)
    for part, count in (("train", 12), ("valid", 4), ("test", 1)):
        names = ["alpha", "beta", "gamma", "delta"]
        with open(folder / f"{part}.article", "w") as articles, \
             open(folder / f"{part}.summary", "w") as summaries:
            for i in range(count):
                name = names[i % 4]
                articles.write(f"{name} is number {i} . <S_SEP> there is more about it .\n")
                summaries.write(f"it is {name} .\n")


def log_every(model, policy):
    """Where rows are few, the last one is not due."""
    return 1 if len(model + policy) % 2 == 0 else 3


def command_of(args, folder, model, policy, out):
    words = [str(args.program), "train", "--model", model, "--memory", policy, "--steps", str(STEPS),
             "--save-every", str(SAVE_EVERY), "--eval-every", str(EVAL_EVERY), "--keep", str(KEEP),
             "--log-every", str(log_every(model, policy)), "--seed", "7", "--out", str(out)]
    words += SMALL + MODELS[model]
    return [word.replace("FOLDER", str(folder)) for word in words]


def start(command, log):
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                env=dict(os.environ, LONGSPAN_THREADS="1"))


def hidden(folder):
    """Names of what is being written, which begin with a dot."""
    try:
        return [name for name in os.listdir(folder) if name.startswith(".")]
    except FileNotFoundError:
        return []


def rows_of(out):
    """Rows of metrics.jsonl; a last one that is cut off is none."""
    rows = []
    try:
        lines = (out / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return rows
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            pass
    return rows


def lines_in(path):
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def steps_saved(out):
    names = os.listdir(out / "checkpoints") if (out / "checkpoints").is_dir() else []
    return sorted(int(name[5:]) for name in names if name.startswith("step-"))


def wait_for(process, condition, limit):
    """Until the condition holds, the process has ended, or `limit` seconds are over."""
    end = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < end and not condition():
        time.sleep(0.0002)


def kill_some_time(process, draw, out, seconds):
    """Kills at a moment that is drawn. Returns whether it still ran."""
    way = draw.random()
    if way < 0.3:
        moment = time.monotonic() + draw.uniform(0, seconds)
        wait_for(process, lambda: time.monotonic() >= moment, seconds)
    elif way < 0.6:  # within the writing of one of the next checkpoints
        for _ in range(draw.randint(1, 3)):
            wait_for(process, lambda: not hidden(out / "checkpoints"), 20 * seconds)
            wait_for(process, lambda: hidden(out / "checkpoints"), 20 * seconds)
        time.sleep(draw.choice([0, draw.uniform(0, 0.002)]))
    else:  # after one of the next rows: in a step, a validation, or at the end
        metrics = out / "metrics.jsonl"
        wanted = lines_in(metrics) + draw.randint(1, STEPS + STEPS // EVAL_EVERY)
        wait_for(process, lambda: lines_in(metrics) >= wanted, 20 * seconds)
        time.sleep(draw.choice([0, draw.uniform(0, 0.003)]))
    runs = process.poll() is None
    process.kill()
    process.wait()
    return runs and process.returncode == -9


def phase_of(out, rows_before):
    """What a run was doing when it was killed, by what it has left."""
    if hidden(out / "checkpoints"):
        return "save"
    rows = rows_of(out)
    if len(rows) <= rows_before:
        return "start"
    if "valid_bpb" not in rows[-1] and rows[-1]["step"] % EVAL_EVERY == 0:
        return "validation"
    if STEPS in steps_saved(out):
        return "end"
    return "step"


def without_times(values):
    return {key: value for key, value in values.items() if key not in TIMES}


def result_of(out, every):
    """All of a finished run that two runs must have in common. Throws Difference where it is not as
    any run should be whose metrics.jsonl has a row `every` so many steps."""
    steps, validations = {}, {}
    for row in rows_of(out):
        kind = validations if "valid_bpb" in row else steps
        if row["step"] in kind:
            raise Difference(f"metrics.jsonl has step {row['step']} twice")
        kind[row["step"]] = without_times(row)
        if every > 1:  # the largest of all steps since the last row, some of which were before
            kind[row["step"]].pop("inversion_error", None)
    if sorted(steps) != [step for step in range(1, STEPS + 1) if step % every == 0 or step == STEPS]:
        raise Difference(f"metrics.jsonl has the steps {sorted(steps)}")
    if sorted(validations) != list(range(EVAL_EVERY, STEPS + 1, EVAL_EVERY)):
        raise Difference(f"metrics.jsonl has validations of the steps {sorted(validations)}")
    last = out / "checkpoints" / f"step-{STEPS}"
    state = json.loads((last / "state.json").read_text())
    return {
        "rows of steps": steps,
        "rows of validations": validations,
        "checkpoints": steps_saved(out),
        "parameters": (last / "model.safetensors").read_bytes(),
        "optimizer": (last / "optimizer.safetensors").read_bytes(),
        "state": {key: state[key] for key in ("step", "tokens", "recent", "train_bpb")},
        "summary": without_times(json.loads((out / "summary.json").read_text())),
        "config.toml": (out / "config.toml").read_bytes(),
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*")),
    }


def compare(expected, found):
    for name, value in expected.items():
        if found[name] == value:
            continue
        if isinstance(value, dict):
            where = [key for key in value if found[name].get(key) != value[key]]
            raise Difference(f"{name} differ at {where[0] if where else 'more of them'}")
        raise Difference(f"{name} differ" + (f": {set(value) ^ set(found[name])}"
                                             if isinstance(value, list) else ""))


def finish(process, log):
    if process.wait() != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise Difference(f"status {process.returncode}: {' '.join(last)}")


def uninterrupted(args, folder, model, policy):
    out, log = folder / "whole", folder / "whole.log"
    begin = time.monotonic()
    finish(start(command_of(args, folder, model, policy, out), log), log)
    seconds = time.monotonic() - begin
    result = result_of(out, log_every(model, policy))
    shutil.rmtree(out)
    log.unlink()
    return result, seconds


def killed(args, folder, model, policy, draw, kills, seconds, phases):
    """A run that is killed up to so often. Returns its result and how often it was."""
    out, log = folder / "killed", folder / "killed.log"
    shutil.rmtree(out, ignore_errors=True)
    log.unlink(missing_ok=True)
    command = command_of(args, folder, model, policy, out) + ["--resume"]
    done = 0
    for _ in range(kills):
        before = len(rows_of(out))
        process = start(command, log)
        if kill_some_time(process, draw, out, seconds):
            done += 1
            phases[phase_of(out, before)] += 1
        elif process.returncode == 0:
            break
        elif process.returncode != -9:
            finish(process, log)
    finish(start(command, log), log)
    return result_of(out, log_every(model, policy)), done


def main():
    parser = argparse.ArgumentParser(description="Kills runs and compares what they end with.")
    parser.add_argument("--program", type=pathlib.Path, default="build/dev/longspan")
    parser.add_argument("--kills", type=int, default=1000, help="in all")
    parser.add_argument("--models", default="transformer,reformer,sparse_transformer,bigbird,led",
                        help=f"of {','.join(MODELS)}")
    parser.add_argument("--policies", default="standard,selective,checkpoint,reversible",
                        help=f"of {','.join(POLICIES)}")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    shm = "/dev/shm"  # syncing takes most of the time of so small a run elsewhere
    parser.add_argument("--folder", default=shm if os.access(shm, os.W_OK) else None,
                        help="where the runs go; one of their own is made in it")
    args = parser.parse_args()
    args.program = args.program.resolve()
    models, policies = args.models.split(","), args.policies.split(",")
    for name in models:
        if name not in MODELS:
            parser.error(f"there is no model {name}; expected some of {','.join(MODELS)}")
    for name in policies:
        if name not in POLICIES:
            parser.error(f"there is no policy {name}; expected some of {','.join(POLICIES)}")
    if not os.access(args.program, os.X_OK):
        parser.error(f"{args.program} is no program; expected --program build/dev/longspan")

    folder = pathlib.Path(tempfile.mkdtemp(prefix="longspan-kills-", dir=args.folder))
    write_data(folder)
    pairs = [(model, policy) for model in models for policy in policies]
    runs = failures = 0
    phases = collections.Counter()
    begin = time.monotonic()
    for index, (model, policy) in enumerate(pairs):
        quota = args.kills * (index + 1) // len(pairs) - args.kills * index // len(pairs)
        draw = random.Random(f"{args.seed} {model} {policy}")
        here = idle = 0
        try:
            expected, seconds = uninterrupted(args, folder, model, policy)
            while here < quota and idle < 20:
                found, done = killed(args, folder, model, policy, draw,
                                     min(draw.randint(1, 6), quota - here), seconds, phases)
                runs += 1
                here += done
                idle = 0 if done > 0 else idle + 1
                compare(expected, found)
        except (Difference, OSError, KeyError, json.JSONDecodeError) as problem:
            failures += 1
            kept = folder / f"failed-{model}-{policy}".replace(":", "-")
            kept.mkdir()
            for name in ("whole", "whole.log", "killed", "killed.log"):
                if (folder / name).exists():
                    (folder / name).rename(kept / name)
            print(f"{model} {policy}: {type(problem).__name__}: {problem}; see {kept}", flush=True)
        else:
            print(f"{model} {policy}: {here} kills", flush=True)

    total = sum(phases.values())
    minutes = (time.monotonic() - begin) / 60
    where = ", ".join(f"{phases[name]} in {name}" for name in
                      ("start", "step", "save", "validation", "end") if phases[name])
    print(f"{total} kills of {runs} runs, {len(models)} models x {len(policies)} policies "
          f"({where}): {failures} differences, {minutes:.1f} minutes")
    if failures == 0 and total < args.kills:
        print(f"only {total} of {args.kills} kills came before a run had ended")
    if failures > 0:
        return 1
    shutil.rmtree(folder)
    return 0 if total >= args.kills else 1


if __name__ == "__main__":
    sys.exit(main())
