#!/usr/bin/env python3
"""Changes one line of the product at a time and sees whether a test notices.

  tests/long/mutants.py                  all of them; goes on where it was cut short
  tests/long/mutants.py --only optim     those whose file or change contains this
  tests/long/mutants.py --check          whether each change still applies, without building

Each mutant is a line of tests/long/mutants.txt:  FILE | OLD | NEW | TESTS. OLD stands once in FILE. TESTS are programs with
a filter for GoogleTest, tried from left to right (`ops:*Sort*`), the cheapest first, and after them the
same programs without a filter; `ctest:REGEX` runs tests of ctest. A mutant is noticed where one fails, or where it does not compile. The changes are made in a
clone below build/mutants, never in this tree. Results are kept in build/mutants/results.jsonl, by
commit. Exits with 1 where fewer than 95 % are noticed.
"""
import argparse, json, os, pathlib, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
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


def build(targets):
    return sh("cmake", "--build", "build/dev", "-j", str(os.cpu_count()), "--target", *targets, cwd=TREE)


def target_of(program):
    return "longspan_program" if program == "ctest" else "test_" + program


def run_test(spec):
    """Whether it failed, and a line that says how."""
    program, _, what = spec.partition(":")
    if program == "ctest":
        command = ["ctest", "--test-dir", "build/dev", "-R", what, "--output-on-failure", "--no-tests=error"]
    else:
        folder = "build/dev/tests/system/" if program == "system" else "build/dev/tests/"
        command = [folder + "test_" + program, "--gtest_brief=1", "--gtest_fail_fast"]
        if what:
            command.append("--gtest_filter=" + what)
    try:
        done = sh(*command, cwd=TREE, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return True, f"{spec}: ran past {LIMIT} s"
    if done.returncode == 0:
        if program != "ctest" and "[  PASSED  ] 0 tests" in done.stdout:
            sys.exit(f"{spec} runs no test")
        return False, ""
    failed = [l for l in done.stdout.splitlines() if "FAILED  ]" in l or "Failed" in l]
    return True, f"{spec}: {(failed or done.stdout.splitlines() or ['died'])[0].strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    mutants = [m for m in read_mutants() if options.only in " ".join(map(str, m.values()))]
    if options.check:
        for m in mutants:
            apply(m, ROOT)
        return print(f"{len(mutants)} mutants apply")

    commit = sh("git", "rev-parse", "HEAD", cwd=ROOT).stdout.strip()
    WORK.mkdir(parents=True, exist_ok=True)
    if not TREE.exists():
        sh("git", "clone", "-q", str(ROOT), str(TREE))
    done = sh("sh", "-c", f"git fetch -q && git reset -q --hard {commit}", cwd=TREE)
    if done.returncode != 0:
        sys.exit(done.stdout)
    if sh("cmake", "--preset", "dev", "-DLONGSPAN_BENCH=OFF", cwd=TREE).returncode != 0:
        sys.exit(f"configuring {TREE} failed")
    results = WORK / "results.jsonl"
    known = {}
    if results.exists():
        for row in map(json.loads, results.read_text().splitlines()):
            if row["commit"] == commit:
                known[(row["file"], row["old"], row["new"])] = row
    programs = sorted({target_of(t.partition(":")[0]) for m in mutants for t in m["tests"].split()})
    done = build(programs)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])

    noticed = 0
    for n, m in enumerate(mutants, 1):
        row = known.get((m["file"], m["old"], m["new"]))
        if row is None:
            began = time.time()
            path, before, after = apply(m, TREE)
            tests = m["tests"].split()
            # What a filter left out comes last.
            wide = dict.fromkeys(t.partition(":")[0] for t in tests if not t.startswith("ctest:"))
            tests += [program for program in wide if program not in tests]
            how, seen = "", False
            try:
                path.write_text(after)
                for spec in tests:
                    if build([target_of(spec.partition(":")[0])]).returncode != 0:
                        seen, how = True, "does not compile"
                    else:
                        seen, how = run_test(spec)
                    if seen:
                        break
            finally:
                path.write_text(before)
            row = dict(m, commit=commit, noticed=seen, how=how, seconds=round(time.time() - began))
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
        noticed += row["noticed"]
        print(f"{n}/{len(mutants)} {'noticed' if row['noticed'] else 'SURVIVED'}  {m['file']}: {m['old']} -> {m['new']}"
              f"  ({row['how'] or m['tests']})", flush=True)
    share = 100 * noticed / max(1, len(mutants))
    print(f"{noticed} of {len(mutants)} noticed, {share:.1f} %")
    return 0 if share >= 95 else 1


if __name__ == "__main__":
    sys.exit(main())
