#!/usr/bin/env python3
"""Prints checksums of short runs of every model, task and memory policy, to compare two states of the code.

  tests/long/fingerprint.py > before.txt         with build/dev/longspan, some minutes
  tests/long/fingerprint.py --only led           cases whose name contains this
  tests/long/fingerprint.py --program PATH       another build of the program
  diff before.txt after.txt                      on one machine: lines that differ changed bits

Each case trains for three steps on made-up data and prints one line for the parameters, one for the
optimiser's state, one for the losses; some cases also one for resuming (which must give the
parameters of the run without a stop), eval, generate and memory. Where the program refuses, the line says so. Bits depend on
the kind of processor, not on the number of threads.
"""
import argparse, hashlib, json, pathlib, struct, subprocess, sys, tempfile, wave

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 3


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


# ------------------------------------------------------------------------------------------- data

class Words:
    """A generator of its own, so that the data are the same in every version of Python."""

    def __init__(self, seed=1):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def letters(self, alphabet, n):
        return "".join(alphabet[self.below(len(alphabet))] for _ in range(n))

    def sentence(self):
        words = [self.letters("etaoinshrdlu", 1 + self.below(7)) for _ in range(3 + self.below(8))]
        return " ".join(words).capitalize() + "."


def npy(shape, data):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (len(header) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def make_data(root):
    w = Words()

    def put(name, data):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    put("text", "\n".join(w.sentence() for _ in range(2000)))
    put("chars", w.letters("abcdefghij klmnopqrstuvwxyz ", 40000))
    put("dna", ">chromosome\n" + w.letters("ACGT", 30000))
    put("fasta", "".join(f">p{i}\n{w.letters('ACDEFGHIKLMNPQRSTVWY', 80)}\n" for i in range(300)))
    put("images", bytes(w.below(256) for _ in range(8 * 3073)))
    with wave.open(str(root / "wav"), "wb") as sound:
        sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(8000)
        sound.writeframes(b"".join(struct.pack("<h", w.below(20000) - 10000) for _ in range(40000)))
    for part, n in (("train", 12), ("valid", 4), ("test", 4)):
        articles = [" <S_SEP> ".join(w.sentence() for _ in range(8)) for _ in range(n)]
        put(f"wiki-leads/{part}.article", "\n".join(articles) + "\n")
        put(f"wiki-leads/{part}.summary", "\n".join(a.split(" <S_SEP> ")[0] for a in articles) + "\n")
    for name, letters in (("positive", "AAAAaaCGTN"), ("negative", "ACGTCCGTCG")):
        put(f"promoter/{name}.fasta", "".join(f">r\n{w.letters(letters, 40)}\n" for _ in range(40)))
    for part, n in (("train", 12), ("valid", 6), ("test", 6)):
        x = bytes(int(c == (i + b * b) % 4) for i in range(n) for b in range(24) for c in range(4))
        y = bytes(int((i % 4 == 0) == (a % 2 == 0)) for i in range(n) for a in range(919))
        put(f"chromatin/{part}_x.npy", npy((n, 24, 4), x))
        put(f"chromatin/{part}_y.npy", npy((n, 919), y))
    people, places = ["Anna", "Bert", "Cleo", "Dora", "Emil", "Fred"], ["Rome", "Oslo", "Bonn"]
    for part, n in (("train", 6), ("dev", 3)):
        put(f"wikihop/{part}.json", json.dumps([
            {"id": f"WH_{part}{i}", "query": f"home {people[i]}", "answer": places[i % 3], "candidates": places,
             "supports": [f"{people[i]} lives in {places[i % 3]}.", "It rains there, as it does nearly everywhere."]}
            for i in range(n)]))
        put(f"triviaqa/qa/wikipedia-{part}.json", json.dumps({"Data": [
            {"QuestionId": f"tc_{i}", "Question": f"Home of {people[i]}?",
             "Answer": {"Value": places[i % 3], "Aliases": [places[i % 3]]},
             "EntityPages": [{"Filename": "Rain.txt"}, {"Filename": f"{people[i]}.txt"}]} for i in range(n)]}))
    for i, name in enumerate(people):
        put(f"triviaqa/evidence/wikipedia/{name}.txt", f"{name} lives in {places[i % 3]}. After the rain the sun comes out.")
    put("triviaqa/evidence/wikipedia/Rain.txt", "Rain falls. It rains there, as it does nearly everywhere.")


# ------------------------------------------------------------------------------------------ cases

def sets(text):
    return [a for pair in text.split() for a in ("--set", pair)]


def cases():
    """(name, arguments of train, what else to run)."""
    everything = ("resume", "eval", "generate", "memory")
    text = ["--task", "bytes", "--data", "bytes=text"]
    pairs = ["--task", "wiki-leads", "--data", "wiki-leads=wiki-leads"]
    for model in ("transformer", "local_transformer", "sparse_transformer", "blockbert", "bigbird", "bigbird_etc",
                  "etc", "linformer", "longformer", "longformer_lm", "led", "bigbird_pegasus", "reformer", "transformer_xl",
                  "compressive", "expire_span", "adaptive_span", "routing", "performer", "bp_transformer",
                  "bp_encoder", "bp_translator"):
        documents = model in ("led", "bigbird_pegasus", "bp_translator")
        data = (pairs + ["--target-length", "24"]) if documents else text
        vocab = 259 if documents else 257
        own = sets(f"model.vocab={vocab}") if documents else []
        yield f"{model}", ["--model", model, *data, "--batch", "2", *own], ("eval",)
        mask = " model.mask_id=256" if model in ("etc", "bigbird_etc") else ""
        tiny = ["--model", f"{model}:tiny", *data, "--batch", "3", *sets(f"model.vocab={vocab}{mask}")]
        yield f"{model}:tiny", tiny, everything
        for policy in ("lean", "selective", "checkpoint", "checkpoint:2", "checkpoint:2:1", "reversible",
                       "reversible:exact", "reversible:1", "reversible:stored"):
            yield f"{model}:tiny {policy}", tiny + ["--memory", policy], ()
        yield f"{model}:tiny chunks", tiny + ["--chunks", "3", "--memory", "checkpoint"], ()
        yield f"{model}:tiny dropout", tiny + sets("model.dropout=0.1 accumulate=2"), ("resume",)
        yield f"{model}:tiny bf16", tiny + ["--dtype", "bf16", "--precision", "bf16"], ()
    for model in ("transformer:encoder", "bigbird:causal", "etc:structured", "reformer:small_trax2",
                  "reformer:small_hf", "reformer:small_lucid"):
        yield model, ["--model", model, *text, "--batch", "2"], ("eval",)
    yield "transformer encoder-decoder", ["--model", "transformer:base", *pairs, "--target-length", "64", "--length", "128",
                                          "--batch", "2", *sets("model.d_model=32 model.n_head=4 model.d_ff=64 model.vocab=259"),
                                          "--layers", "2"], everything
    for optimizer in ("adamw", "adafactor", "adagrad", "sgd", "lamb"):
        yield f"optimizer {optimizer}", ["--model", "local_transformer:tiny", *text, *sets(f"model.vocab=256 optimizer.name={optimizer}"
                                         " optimizer.momentum=0.5 optimizer.clip=0.5")], ("resume",)
    small = sets("model.d_model=16 model.d_ff=16") + ["--layers", "1"]
    one = ["--model", "local_transformer", "--length", "48", "--batch", "3", *small]
    for task, vocab in (("chars", 27), ("words", 9000), ("dna", 5), ("fasta", 26), ("wav", 256)):
        file = "text" if task == "words" else task
        yield f"task {task}", one + ["--task", task, "--data", f"{task}={file}", *sets(f"model.vocab={vocab}")], ("eval",)
    yield "task images", ["--model", "sparse_transformer:small_images", "--task", "images", "--data", "images=images",
                          "--split", "50/25/25", "--batch", "1"], ("eval",)
    yield "task audio", ["--model", "sparse_transformer:small_audio", "--task", "wav", "--data", "wav=wav", "--batch", "1",
                         "--length", "512"], ("eval",)
    yield "task duplicate", ["--model", "reformer:duplication_small", "--task", "duplicate", "--batch", "2",
                             *sets("duplicate.held_out=8")], ("eval",)
    yield "task motif-dna", ["--model", "bigbird:motif", "--task", "motif-dna", "--batch", "2", *sets("motifs.held_out=16")], ("eval",)
    yield "task promoter", ["--model", "bigbird:motif", "--task", "promoter", "--data", "promoter=promoter", *small,
                            *sets("profiles.kmer=2 model.vocab=18"), "--length", "40", "--batch", "8"], ("eval",)
    yield "task chromatin", ["--model", "bigbird:motif", "--task", "chromatin", "--data", "chromatin=chromatin", *small,
                             *sets("profiles.kmer=3 model.classes=919"), "--length", "24", "--batch", "4"], ("eval",)
    for model in ("longformer", "bigbird", "blockbert"):
        yield f"task wikihop {model}", ["--model", model, "--task", "wikihop", "--data", "wikihop=wikihop", *small,
                                        *sets("model.choice_head=true model.mlm_head=false model.vocab=262"),
                                        "--length", "128", "--batch", "3"], ("eval",)
    for model in ("longformer", "bigbird", "blockbert"):
        yield f"task triviaqa {model}", ["--model", model, "--task", "triviaqa", "--data", "triviaqa=triviaqa", *small,
                                         *sets("model.span_head=true model.mlm_head=false model.vocab=258"
                                               " questions.most=20 questions.longest=8"),
                                         "--length", "128", "--batch", "4"], ("eval",)
    yield "task gap sentences", ["--model", "led:summaries", *pairs, "--gap-sentences", "0.3", "--target-length", "256", "--batch", "2",
                                 *sets("model.vocab=259")], ()


# ------------------------------------------------------------------------------------------- runs

class Runner:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *arguments):
        return subprocess.run([self.program, *arguments], cwd=self.folder, capture_output=True, timeout=900)

    def tensors(self, path):
        """Of a tensor file: names and data in their order, without checksums and offsets."""
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        parts = []
        for name in sorted(header):
            begin, end = header[name]["data_offsets"]
            parts.append(name.encode() + data[8 + length + begin:8 + length + end])
        return digest(b"".join(parts))

    def checkpoint(self, out, step):
        at = self.folder / out / "checkpoints" / f"step-{step}"
        return self.tensors(at / "model.safetensors"), self.tensors(at / "optimizer.safetensors")

    def losses(self, out):
        rows = [json.loads(l) for l in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        kept = [[r.get("step"), r.get("loss"), r.get("gradient_norm"), r.get("valid_bpb")] for r in rows]
        return digest(json.dumps(kept).encode()), kept[0][1]

    def case(self, name, arguments, more, number):
        out = f"run-{number}"
        common = ["train", *arguments, "--seed", "7", "--log-every", "1", "--out", out]
        done = self.run(*common, "--steps", str(STEPS))
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines()
            return print(f"{name}: refused: {reason[-1] if reason else done.returncode}", flush=True)
        model, optimizer = self.checkpoint(out, STEPS)
        losses, first = self.losses(out)
        print(f"{name}: parameters {model} optimizer {optimizer} losses {losses} first {first:.6g}")
        if "resume" in more:
            parts = [a if a != out else out + "-parts" for a in common]
            self.run(*parts, "--steps", "1", "--set", "schedule.name=constant")
            whole = [a if a != out else out + "-whole" for a in common]
            self.run(*whole, "--steps", str(STEPS), "--set", "schedule.name=constant")
            self.run(*parts, "--resume", "--steps", str(STEPS), "--set", "schedule.name=constant")
            same = self.checkpoint(out + "-parts", STEPS) == self.checkpoint(out + "-whole", STEPS)
            print(f"{name}: resumed {'equal' if same else 'DIFFERENT'} {self.checkpoint(out + '-parts', STEPS)[0]}")
        if "eval" in more:
            done = self.run("eval", "--out", out)
            evals = self.folder / out / "evals.jsonl"
            scored = evals.read_text().splitlines() if evals.exists() else []
            figures = json.loads(scored[-1]) if scored else {}
            # Perplexity follows from bits, and earlier versions have none.
            kept = {k: v for k, v in sorted(figures.items()) if k.startswith("valid_") and k != "valid_perplexity"}
            print(f"{name}: eval {done.returncode} {digest(json.dumps(kept).encode())} {kept.get('valid_bpb')}")
        if "generate" in more:
            if "wiki-leads" in arguments:
                done = self.run("generate", "--out", out, "--part", "valid", "--index", "0")
            else:
                done = self.run("generate", "--out", out, "--prompt", "The ", "--tokens", "40", "--seed", "3")
            print(f"{name}: generate {done.returncode} {digest(done.stdout)}")
        if "memory" in more:
            done = self.run("memory", *arguments, "--json")
            print(f"{name}: memory {done.returncode} {digest(done.stdout)}")
        sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/dev/longspan"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    with tempfile.TemporaryDirectory(prefix="fingerprint-") as folder:
        folder = pathlib.Path(folder)
        make_data(folder)
        runner = Runner(program, folder)
        for number, (name, arguments, more) in enumerate(cases()):
            if options.only in name:
                runner.case(name, arguments, more, number)


if __name__ == "__main__":
    main()
