#!/usr/bin/env python3
"""Compares metrics of labels, tags, summaries and answers with the packages that define them, on drawn cases.

  tests/long/metrics.py                    500 cases of each kind, with build/dev/tests/test_data
  tests/long/metrics.py --cases N --seed S
  tests/long/metrics.py --python PATH      an interpreter with the packages (tests/oracles/label_metrics_golden.py)
"""
import argparse, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cases", type=int, default=500)
parser.add_argument("--seed", type=int, default=6)
parser.add_argument("--python", default=sys.executable)
parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/dev/tests/test_data")
options = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/cases.json"
    subprocess.run([options.python, ROOT / "tests/oracles/label_metrics_golden.py", "--cases", str(options.cases),
                    "--seed", str(options.seed), "--out", path], check=True)
    result = subprocess.run([options.program, "--gtest_filter=LabelMetrics.*Of*:LabelMetrics.*With*"],
                            env={**os.environ, "LONGSPAN_TEST_METRICS": path})
print(f"{options.cases} cases of each kind: {'all equal' if result.returncode == 0 else 'some differ, see above'}")
sys.exit(result.returncode)
