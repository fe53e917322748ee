#!/usr/bin/env python3
"""How time and memory grow with the length, from the JSON lines of bench_kernels.

    bench_kernels --benchmark_filter='local 256|causal, one head' | growth.py [--from L]

For every workload that was measured at several lengths (L=... in its name), one JSON line:
`time_ratios` and `workspace_ratios` between each length and the next, and the exponents of the
powers of L that fit best from length L on (4096 by default).
"""

import argparse
import json
import math
import re
import sys


def exponent(points):
    """Slope of log(value) over log(length), by least squares."""
    if len(points) < 2:
        return None
    x = [math.log(length) for length, _ in points]
    y = [math.log(value) for _, value in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="least", type=int, default=4096, help="least length fitted")
    options = parser.parse_args()
    families = {}
    for line in sys.stdin:
        result = json.loads(line)
        found = re.search(r"L=(\d+)", result.get("name", ""))
        if found and "best" in result:
            family = result["name"].replace(found.group(0), "L=*")
            families.setdefault(family, {})[int(found.group(1))] = result
    for family, results in families.items():
        lengths = sorted(results)
        if len(lengths) < 2:
            continue
        line = {"name": family, "lengths": lengths}
        for key, label in (("best", "time"), ("workspace_bytes", "workspace")):
            values = [results[n][key] for n in lengths]
            line[f"{label}_ratios"] = [round(b / a, 3) for a, b in zip(values, values[1:]) if a]
            fitted = [(n, v) for n, v in zip(lengths, values) if n >= options.least and v > 0]
            line[f"{label}_exponent"] = exponent(fitted)
        print(json.dumps(line))


if __name__ == "__main__":
    main()
