#!/usr/bin/env python3
"""What a step of several processes costs: a model of its time, held to measurements, and drawn beyond them.

    bench/scaling.py FILE --out FOLDER [--build build/dev] [--turns 3]     FILE: a text of some megabytes

The model, for N processes of which groups of S compute a sequence together:

    seconds = A x (multiply-adds of a batch / S) / rate + messages x alpha + bytes x beta

  rate      multiply-adds per second of a process, from one process that trains alone on its share of the cores
  messages, bytes      that one process sends in a step, counted on the meta device: longspan memory --ranks N,S --json
  alpha, beta          seconds of a message and of a byte, by bench_ping with as many processes

Nothing is hidden behind computing: on a host, messages move inside the calls of a process that computes. Measures 1, 2 and 4
processes over shared memory and over TCP, two layouts each, and writes FOLDER/scaling.jsonl (one row for each layout and
network: measured and predicted seconds of a step in each turn) and FOLDER/batches.png and FOLDER/sequences.png: predicted speed up to 4,096 processes.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORES = len(os.sched_getaffinity(0))
MODEL = ["--model", "transformer", "--memory", "standard", "--set", "model.d_model=256", "--set", "model.n_layer=6",
         "--set", "model.n_head=8", "--set", "model.d_ff=1024", "--set", "model.dropout=0", "--set", "model.vocab=257"]
# Batches of a step of all processes together, and the size of a batch.
LAYOUTS = {"batches": dict(together=1, batches=4, batch=4, length=512), "sequences": dict(together=2, batches=4, batch=1, length=2048)}
NETWORKS = {"shared memory": [], "tcp": ["--mca", "btl", "tcp,self"]}
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
# For the picture: seconds of a message and of a byte in networks, as data sheets have them.
ASSUMED = {"10 Gbit/s": (20e-6, 8 / 10e9), "100 Gbit/s": (3e-6, 8 / 100e9)}


def output_of(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def launch(ranks, network):
    return ["mpirun", "-np", ranks, "--oversubscribe", "--bind-to", "none", *NETWORKS[network]] if ranks > 1 else []


def counted(build, ranks, together, batch, length, accumulate):
    """What one process computes and sends in a step."""
    text = output_of([build / "longspan", "memory", "--json", "--ranks", f"{ranks},{together}", "--batch", batch, "--length", length,
                      "--set", f"accumulate={accumulate}", *MODEL])
    row = json.loads(text.splitlines()[0])
    return row["macs"] * accumulate, row["sent_bytes"], row["sent_messages"]


def measured(build, text, ranks, network, together, batches, batch, length):
    """Median seconds of steps 4 to 7."""
    with tempfile.TemporaryDirectory() as folder:
        output_of([*launch(ranks, network), build / "longspan", "train", "--data", f"bytes={text}", "--out", f"{folder}/run", "--threads", 1,
                   "--batch", batch, "--length", length, "--steps", 7, "--split", "99/1/0", "--eval-every", 0, "--save-every", 0,
                   "--log-every", 1, "--set", f"ranks.sequence={together}", "--set", f"accumulate={batches * together // ranks}", *MODEL])
        rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    seconds = [row["seconds"] for row in rows if "tokens" in row]
    return statistics.median(b - a for a, b in zip(seconds[2:], seconds[3:]))


def seconds(macs, rate, sent, messages, alpha, beta):
    return macs / rate + messages * alpha + sent * beta


def predicted_speed(build, together, batch, length, rate):
    """Series for the picture: tokens per second relative to one process, with a batch for each process or group."""
    sizes = [n for n in (2, 4, 8, 16, 64, 256, 1024, 4096) if n % together == 0]
    counts = {n: counted(build, n, together, batch, length, 1) for n in sizes}
    macs, _, _ = counted(build, 1, 1, batch, length, 1)
    alone = macs / rate
    series = [{"name": "ideal", "x": sizes, "y": [float(n) for n in sizes], "faint": True}]
    for name, (alpha, beta) in ASSUMED.items():
        speed = [alone * (n / together) / seconds(counts[n][0], rate, counts[n][1], counts[n][2], alpha, beta) for n in sizes]
        series.append({"name": f"predicted, {name}", "x": sizes, "y": speed})
    return series


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--out", required=True)
    parser.add_argument("--build", default=str(ROOT / "build/dev"))
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    build, out = pathlib.Path(options.build).resolve(), pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    configurations = [(layout, ranks, network) for layout in LAYOUTS for ranks in (1, 2, 4)
                      for network in (NETWORKS if ranks > 1 else ["shared memory"])]
    found = {c: [] for c in configurations}
    for _ in range(options.turns):  # of all, so that they see the machine alike
        rates = {}
        for layout, ranks, network in configurations:
            shape = LAYOUTS[layout]
            own = min(shape["together"], ranks)
            macs, sent, messages = counted(build, ranks, own, shape["batch"], shape["length"], shape["batches"] * own // ranks)
            ping = {"alpha": 0, "beta": 0}
            if ranks > 1:
                ping = json.loads(output_of([*launch(ranks, network), build / "bench/bench_ping"]))
            time = measured(build, options.text, ranks, network, own, shape["batches"], shape["batch"], shape["length"])
            if ranks == 1:
                rates[layout] = macs / time
            rate = rates[layout] * min(1, CORES / ranks)  # more processes than cores take turns
            expected = seconds(macs, rate, sent, messages, ping["alpha"], ping["beta"])
            found[layout, ranks, network].append({"measured": time, "predicted": expected, "rate": rate, "alpha": ping["alpha"],
                                                  "beta": ping["beta"], "macs": macs, "sent_bytes": sent, "sent_messages": messages})
    rows = []
    for (layout, ranks, network), turns in found.items():
        ratio = statistics.median(t["predicted"] / t["measured"] for t in turns)
        rows.append({"layout": layout, "processes": ranks, "together": min(LAYOUTS[layout]["together"], ranks), "network": network,
                     "cores": CORES, "predicted_over_measured": ratio, "turns": turns})
        middle = {key: statistics.median(t[key] for t in turns) for key in ("measured", "predicted")}
        print(f"{layout}, {ranks} processes, {network}: measured {middle['measured']:.2f} s, predicted {middle['predicted']:.2f} s,"
              f" {100 * (ratio - 1):+.0f} % (median of the turns)", flush=True)
    rates = {layout: statistics.median(t["rate"] for t in found[layout, 1, "shared memory"]) for layout in LAYOUTS}
    (out / "scaling.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pictures = []
    for layout, shape in LAYOUTS.items():
        series = predicted_speed(build, shape["together"], shape["batch"], shape["length"], rates[layout])
        pictures.append({"path": str(out / f"{layout}.png"), "title": f"{layout}: speed of N processes over that of one", "log": True,
                         "x_label": "processes", "y_label": "speed", "series": series})
    subprocess.run([build / "bench/bench_plot"], input="".join(json.dumps(p) + "\n" for p in pictures), text=True, check=True)


if __name__ == "__main__":
    main()
