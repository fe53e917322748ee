#!/usr/bin/env python3
"""Writes the page and the pictures of bench/results/families from the JSON lines there.

    report.py [--results bench/results/families] [--plot build/dev/bench/bench_plot]

Reads pairs.jsonl, growth.jsonl and cost.jsonl of bench_families, lengths.jsonl of
bench/peers/lengths.py, and layer.jsonl of bench_kernels; parts that are missing are left out, and
of lines for the same thing the last one counts. Nothing on the page is typed by hand.
"""

import argparse
import json
import math
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
CAUSAL = ("fixed", "strided")
REFERENCE = {"fixed": "dense under a mask", "strided": "dense under a mask",
             "blockbert": "dense under a mask", "etc": "dense under a mask, labels gathered"}
FAMILIES = {
    "fixed": "Sparse Transformer, fixed", "strided": "Sparse Transformer, strided",
    "blockbert": "BlockBERT", "bigbird": "BigBird", "longformer": "Longformer",
    "longformer_globals": "Longformer, globals", "led": "LED's encoder", "etc": "ETC, labels"}
LAYERS = ("longformer", "longformer_globals", "led", "bigbird")
FASTER = 1.05  # a smaller ratio is within the difference of two equal measurements
LIMIT_OF_BAND = 1.3
LIMITS_AT_12288 = {"fixed, merged": 0.60, "strided, merged": 0.45}


def lines_of(folder, name):
    path = os.path.join(folder, name + ".jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as lines:
        return list(map(json.loads, lines))


def read(folder, name, *keys):
    """Lines of a part by the given keys, or {}."""
    return {tuple(line[k] for k in keys): line for line in lines_of(folder, name)
            if all(k in line for k in keys)}


def peers(folder):
    for line in lines_of(folder, "lengths"):
        if "machine" in line:
            m = line["machine"]
            return f" Peers: {m['peer']} ({m['capability']}), transformers {m['transformers']}."
    return ""


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def yes(value):
    return "yes" if value else "**no**"


def unsteady(lines):
    n = sum(not line["steady"] for line in lines)
    text = (f"\n{n} of {len(lines)} measurements are unsteady: the FMA peak before and after "
            "differs by more than 5 %.\n" if n else "")
    slow = sum(line.get("phase") == "slow" for line in lines)
    return text + (f"\n{slow} of {len(lines)} measurements are of a slow phase of the machine: a loop that loads "
                   "stayed below 90 % of its best beside every turn.\n" if slow else "")


def tokens(n):
    return f"{round(n):,}"


def growth(found):
    lines = [line for (family,), line in found.items()]
    rows, fits = [], []
    for line in lines:
        name = FAMILIES.get(line["family"], line["family"])
        off = line["time_exponent"] - line["time_theory"]
        within = yes(line["time_within"]) + ("" if line["time_within"] else
                                             ", below" if off < 0 else ", above")
        rows.append([name, f"{line['time_exponent']:.2f}", f"{line['time_theory']:.1f}", within,
                     f"{line['pairs_exponent']:.2f}", f"{line['workspace_exponent']:.2f}",
                     yes(line["workspace_within"]),
                     *(f"{1e3 * s:.0f}" for s in line["seconds"]),
                     f"{line['workspace_bytes'][-1] / 2**20:.0f}"])
        if line["time_theory"] == 1:
            continue  # pairs and tokens grow alike, and cannot be told apart
        fit = line["seconds_fit"]
        heads = line["heads"]
        fits.append([name, f"{line['options'][0]}; {line['options'][-1]}"
                     if line["options"][0] != line["options"][-1] else line["options"][0],
                     f"{1e9 * fit['token'] / heads:.0f}", f"{1e9 * fit['pair']:.2f}",
                     f"{100 * fit['worst_error']:.1f} %", line["rounds"]])
    lengths = lines[0]["lengths"]
    text = ("## Growth\n\n![seconds over tokens](growth.png)\n\n"
            f"Exponents from {lengths[0]:,} to {lengths[-1]:,} tokens by least squares; `within`: "
            "by 0.1 of theory; memory's theory is 1. Milliseconds at each length, and MiB of "
            "workspace at the longest: all that is alive at once besides inputs, gradients "
            "included.\n\n")
    text += table(["family", "time", "theory", "within", "pairs", "memory", "within",
                   *(f"{n:,}" for n in lengths), "MiB"], rows)
    text += ("\nA token's cost, whatever it sees, and a pair's, in nanoseconds for each head, with "
             "the largest error of `seconds = token tokens + pair pairs`. Where a token's share is "
             "large the time grows more slowly than the pairs. Strides and blocks are those of the "
             "shortest and of the longest sequence.\n\n")
    text += table(["family", "options", "token", "pair", "error", "rounds"], fits)
    series = [{"name": f"{FAMILIES.get(line['family'], line['family'])}: "
                       f"{line['time_exponent']:.2f}", "x": line["lengths"], "y": line["seconds"]}
              for line in lines]
    picture = {"path": "growth.png", "title": "One layer's attention, forward and backward",
               "x_label": "tokens", "y_label": "seconds of one thread", "log": True,
               "series": series}
    return text + unsteady(lines), [picture]


def crossing(points):
    """From which length on the ratio rival / own is at least FASTER: between two measured lengths,
    where a line through the logarithms crosses it; None: nowhere yet."""
    points = sorted(points)
    if not points or points[-1][1] < FASTER:
        return None
    last = max((i for i, (_, ratio) in enumerate(points) if ratio < FASTER), default=None)
    if last is None:
        return points[0][0], True
    (x0, y0), (x1, y1) = points[last], points[last + 1]
    share = math.log(FASTER / y0) / math.log(y1 / y0)
    return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0))), False


def from_length(points):
    found = crossing(points)
    if found is None:
        return "none measured"
    length, at_once = found
    return (f"{tokens(length)} or less" if at_once else tokens(length))


def rivals(found, family):
    """kind of rival -> [(length, seconds of the rival / ours)]."""
    base = "causal" if family in CAUSAL else "dense"
    ratios = {"own": [], "torch": [], "reference": []}
    for (group, length), line in found.items():
        seconds = line["seconds"]
        own = seconds.get(f"longspan {family}")
        if group == "dense" and own:
            for kind, label in (("own", f"longspan {base}"), ("torch", f"torch {base}")):
                ratios[kind].append((length, seconds[label] / own))
            oracle = seconds.get(f"oracle {family}")
            if family not in LAYERS and oracle:
                ratios["reference"].append((length, oracle / own))
        if group == family and "transformers" in seconds:
            ratios["reference"].append((length, seconds["transformers"] / seconds["longspan"]))
    return {kind: sorted(points) for kind, points in ratios.items()}


def at_longest(points):
    return f"{points[-1][1]:.1f} at {points[-1][0]:,}" if points else ""


def lengths(found):
    rows, series = [], {"own": [], "torch": [], "reference": []}
    for family, name in FAMILIES.items():
        ratios = rivals(found, family)
        reference = REFERENCE.get(family, "transformers, whole layer")
        rows.append([name, *(cell for kind in ratios
                             for cell in (from_length(ratios[kind]), at_longest(ratios[kind]))),
                     reference])
        for kind, points in ratios.items():
            if points:
                series[kind].append({"name": name, "x": [p[0] for p in points],
                                     "y": [p[1] for p in points]})
    differ = sorted({f"{line['group']} {n}" for line in found.values() for n in line["differ"]})
    text = ("## From which length on it is faster\n\n"
            "![our dense kernel](own.png)\n![PyTorch's dense attention](torch.png)\n"
            "![reference implementations](reference.png)\n\n"
            f"From which length on by {100 * FASTER - 100:.0f} %, forward and backward; between "
            "measured lengths by interpolation. Beside the length, "
            "how many times faster at the longest length measured. Causal families against causal "
            "dense attention. PyTorch's is scaled_dot_product_attention. References are the "
            "attention layers of transformers with their projections, against ours with theirs, "
            "or, where no package has the family, dense attention in PyTorch under an explicit "
            "mask.\n\n")
    text += table(["family", "our dense", "times", "PyTorch's dense", "times", "reference",
                   "times", "which"], rows)
    text += ("\nGradients of both sides agree in mean magnitude.\n" if not differ else
             "\nGradients differ in: " + ", ".join(differ) + ".\n")
    titles = {"own": "Our dense attention's time over the family's",
              "torch": "PyTorch's dense attention's time over the family's",
              "reference": "The reference implementation's time over ours"}
    pictures = []
    for kind, drawn in series.items():
        if not drawn:
            continue
        ends = [min(s["x"][0] for s in drawn), max(s["x"][-1] for s in drawn)]
        pictures.append({"path": kind + ".png", "title": titles[kind], "x_label": "tokens",
                         "y_label": "times faster", "log": True,
                         "series": drawn + [{"name": "", "x": ends, "y": [1, 1], "faint": True}]})
    return text + unsteady(list(found.values())), pictures


def cost(found):
    lines = list(found.values())
    rows = [[line["pattern"], line["options"], f"{line['pairs']:,}",
             f"{line['nanoseconds_a_pair']:.2f}", f"{line['cost_beside_dense']:.2f}",
             f"{line['rate_beside_dense']:.2f}", f"{line['rate_beside_causal']:.2f}",
             f"{100 * line['share_of_fma_peak']:.0f} %"] for line in lines]
    first = lines[0]
    text = (f"## What a pair costs\n\nForward and backward of {first['length']:,} tokens, all "
            f"patterns in turns in one process, best of {first['rounds']}. Nanoseconds for each "
            "attended pair of a head; its cost as a multiple of one in our dense kernel; useful "
            "FLOPs a second as a share of those of the dense and of the causal kernel; and of the "
            "FMA peak.\n\n")
    text += table(["pattern", "options", "pairs", "ns", "cost", "of dense", "of causal", "of peak"],
                  rows)
    for line in lines:
        if line["pattern"] == "band:256":
            ratio = line["cost_beside_dense"]
            text += (f"\nA pair in a band of 256 keys a side costs {ratio:.2f} times one in the "
                     f"dense kernel; at most {LIMIT_OF_BAND} wanted: "
                     f"{yes(ratio <= LIMIT_OF_BAND)}.\n")
    return text + unsteady(lines), []


def pairs(found):
    lines = list(found.values())
    rows = [[FAMILIES.get(line["family"], line["family"]), line["options"], f"{line['length']:,}",
             f"{line['formula']:,}", f"{line['counted']:,}", yes(line["equal"]),
             f"{line['computed'] / line['counted']:.2f}"] for line in lines]
    return ("## Attended pairs\n\nOf all 8 heads: by the closed formula, counted one by one, and "
            "pairs covered by the runs of the layouts, of which the kernels leave out what no row "
            "of a register tile sees, over those attended to.\n\n" +
            table(["family", "options", "tokens", "formula", "counted", "equal", "covered"], rows),
            [])


def layer(found):
    names = {}
    for (name,), line in found.items():
        if name.startswith("sparse layer/") and " L=12288/" in name:
            names[name.split("/")[1]] = line["best"]
    dense = names.get("dense")
    if not dense:
        return "", []
    rows = [[name, f"{seconds:.2f}", f"{seconds / dense:.3f}",
             f"{LIMITS_AT_12288[name]:.2f}" if name in LIMITS_AT_12288 else "",
             yes(seconds / dense <= LIMITS_AT_12288[name]) if name in LIMITS_AT_12288 else ""]
            for name, seconds in names.items()]
    return ("## A whole layer at 12,288 tokens\n\nSparse Transformer, d = 512, 8 heads, l = 128, "
            "c = 32: feed-forward network, embedding and loss included. Seconds forward and "
            "backward, and as a share of the dense layer's.\n\n" +
            table(["attention", "seconds", "of dense", "wanted", "reached"], rows), [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default=os.path.join(HERE, "results", "families"))
    parser.add_argument("--plot", default=os.path.join(HERE, "../build/dev/bench/bench_plot"))
    options = parser.parse_args()

    parts = [(growth, read(options.results, "growth", "family")),
             (lengths, read(options.results, "lengths", "group", "length")),
             (cost, read(options.results, "cost", "pattern", "length")),
             (layer, read(options.results, "layer", "name")),
             (pairs, read(options.results, "pairs", "family", "length"))]
    page = ("# Families of sparse attention\n\nWritten by `bench/report.py` from the JSON lines "
            "beside it, which `bench/families.sh` measures; bench/README.md says how. One thread, "
            f"f32, 8 heads of 64.{peers(options.results)}\n")
    pictures = []
    for write, found in parts:
        if found:
            text, drawn = write(found)
            page += "\n" + text if text else ""
            pictures += drawn
    with open(os.path.join(options.results, "README.md"), "w") as out:
        out.write(page)
    for picture in pictures:
        picture["path"] = os.path.join(options.results, picture["path"])
    lines = "".join(json.dumps(picture) + "\n" for picture in pictures)
    subprocess.run([options.plot], input=lines, text=True, check=True)


if __name__ == "__main__":
    main()
