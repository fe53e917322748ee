#!/usr/bin/env python3
"""Changes one line of the product at a time and sees whether a test notices.

  tests/long/mutants.py                  all of them; goes on where it was cut short
  tests/long/mutants.py --trees 2        two at a time, each in a clone of its own
  tests/long/mutants.py --only optim     those whose file or change contains this
  tests/long/mutants.py --check          whether each change still applies, without building

Each mutant is a line of tests/long/mutants.txt:  FILE | OLD | NEW | TESTS. OLD stands once in FILE. TESTS are programs with
a filter for GoogleTest, tried from left to right (`ops:*Sort*`), the cheapest first, and after them the
same programs without a filter; `ctest:REGEX` runs tests of ctest. A mutant is noticed where one fails, or where it does not
compile. The changes are made in clones below build/mutants, never in this tree. Results are kept in
build/mutants/results.jsonl, by commit. Exits with 1 where fewer than 95 % are noticed.
"""
import argparse, json, os, pathlib, queue, subprocess, sys, threading, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
LIMIT = 900  # seconds for a program; a mutant that hangs is noticed


def read_mutants():
    mutants = []
    text = (ROOT / "tests/long/mutants.txt").read_text()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [f.strip() for f in line.split(" | ")]
        if len(fields) != 4:
            sys.exit(f"mutants.txt:{number}: {len(fields)} fields; expected FILE | OLD | NEW | TESTS")
        mutants.append(dict(zip(("file", "old", "new", "tests"), fields), line=number))
    return mutants


def apply(mutant, root):
    """The file's text before, and after the change; exits where OLD is not there once."""
    path = root / mutant["file"]
    text = path.read_text()
    old, new = (mutant[k].replace("\\n", "\n").replace("\\|", "|") for k in ("old", "new"))
    if text.count(old) != 1:
        sys.exit(f"mutants.txt:{mutant['line']}: «{old}» stands {text.count(old)} times in {mutant['file']}; expected once")
    return path, text, text.replace(old, "" if new == "nothing" else new)


def sh(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)


def build(tree, jobs, targets):
    return sh("cmake", "--build", "build/dev", "-j", str(jobs), "--target", *targets, cwd=tree)


def target_of(program):
    return "longspan_program" if program == "ctest" else "test_" + program


def run_test(tree, spec):
    """Whether it failed, and a line that says how."""
    program, _, what = spec.partition(":")
    if program == "ctest":
        command = ["ctest", "--test-dir", "build/dev", "-R", what, "--output-on-failure", "--no-tests=error"]
    else:
        folder = f"build/dev/tests/{program}/" if program in ("app", "system", "ranks") else "build/dev/tests/"
        command = [folder + "test_" + program, "--gtest_brief=1", "--gtest_fail_fast"]
        if what:
            command.append("--gtest_filter=" + what)
    try:
        done = sh(*command, cwd=tree, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return True, f"{spec}: ran past {LIMIT} s"
    if done.returncode == 0:
        if program != "ctest" and "[  PASSED  ] 0 tests" in done.stdout:
            return False, f"{spec} RUNS NO TEST"
        return False, ""
    failed = [l for l in done.stdout.splitlines() if "FAILED  ]" in l or "Failed" in l]
    return True, f"{spec}: {(failed or done.stdout.splitlines() or ['died'])[0].strip()}"


def prepare(tree, commit, jobs, programs):
    """Brings a clone to the commit and builds it; exits where that fails."""
    if not tree.exists():
        sh("git", "clone", "-q", str(ROOT), str(tree))
    done = sh("sh", "-c", f"git fetch -q && git reset -q --hard {commit}", cwd=tree)
    if done.returncode != 0:
        sys.exit(done.stdout)
    if sh("cmake", "--preset", "dev", "-DLONGSPAN_BENCH=OFF", cwd=tree).returncode != 0:
        sys.exit(f"configuring {tree} failed")
    done = build(tree, jobs, programs)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])


def judge(mutant, tree, jobs):
    """Whether a test notices the mutant, and how."""
    tests = mutant["tests"].split()
    # What a filter left out comes last.
    wide = dict.fromkeys(t.partition(":")[0] for t in tests if not t.startswith("ctest:"))
    tests += [program for program in wide if program not in tests]
    path, before, after = apply(mutant, tree)
    try:
        path.write_text(after)
        for spec in tests:
            if build(tree, jobs, [target_of(spec.partition(":")[0])]).returncode != 0:
                return True, "does not compile"
            seen, how = run_test(tree, spec)
            if seen or how:
                return seen, how
    finally:
        path.write_text(before)
    return False, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--trees", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    mutants = [m for m in read_mutants() if options.only in " ".join(map(str, m.values()))]
    if options.check:
        for m in mutants:
            apply(m, ROOT)
        return print(f"{len(mutants)} mutants apply")

    commit = sh("git", "rev-parse", "HEAD", cwd=ROOT).stdout.strip()
    WORK.mkdir(parents=True, exist_ok=True)
    results = WORK / "results.jsonl"
    known = {}
    if results.exists():
        for row in map(json.loads, results.read_text().splitlines()):
            if row["commit"] == commit:
                known[(row["file"], row["old"], row["new"])] = row
    programs = sorted({target_of(t.partition(":")[0]) for m in mutants for t in m["tests"].split()})
    trees = [WORK / f"tree{i}" for i in range(options.trees)]
    for tree in trees:
        prepare(tree, commit, os.cpu_count(), programs)

    left, rows, lock = queue.SimpleQueue(), [], threading.Lock()
    for m in mutants:
        left.put(m)
    jobs = max(1, os.cpu_count() // options.trees)

    def work(tree):
        while True:
            try:
                m = left.get_nowait()
            except queue.Empty:
                return
            row = known.get((m["file"], m["old"], m["new"]))
            if row is None:
                began = time.time()
                seen, how = judge(m, tree, jobs)
                row = dict(m, commit=commit, noticed=seen, how=how, seconds=round(time.time() - began))
            with lock:
                if (m["file"], m["old"], m["new"]) not in known:
                    with results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                rows.append(row)
                print(f"{len(rows)}/{len(mutants)} {'noticed' if row['noticed'] else 'SURVIVED'}  {m['file']}: "
                      f"{m['old']} -> {m['new']}  ({row['how'] or m['tests']})", flush=True)

    workers = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    noticed = sum(row["noticed"] for row in rows)
    share = 100 * noticed / max(1, len(mutants))
    print(f"{noticed} of {len(mutants)} noticed, {share:.1f} %")
    return 0 if share >= 95 and len(rows) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
