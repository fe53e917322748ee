#!/usr/bin/env python3
"""Runs the commands of README.md and docs/*.md as they are written, on small made-up data.

  tests/long/commands.py                  all pages, with build/dev; some minutes
  tests/long/commands.py docs/etc.md      these pages
  tests/long/commands.py --list           prints the commands and what is done with each

Commands are the lines of indented code that begin with a program of this repository. What varies is replaced: FILE and
DIR by data, a number of steps by 2, seconds by 5; the rest stays. Of tests it only looks whether the filter selects
some, of scripts whether they and their cases exist: they have runs of their own. A command that needs what nobody can
make up (pretrained weights) is left out, and listed. Fails if a command fails.
"""
import argparse, importlib.util, json, os, pathlib, re, shlex, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("longspan", "mpirun ", "build/dev/", "scripts/", "tests/", "bench/", "cmake ", "ctest ", "cp ", "tail ", "python3 ")
ASSIGNMENT = re.compile(r"[A-Za-z_]+=")
MISSING = ("ROBERTA", "BASE", "PREFIX", "my_model", "genomes", "runs/learning")
SYNOPSIS = re.compile(r"\[|\.\.\.|\bNAME\b|\bID\b")


def commands_of(page):
    """The commands of a page in order, continued lines joined, comments cut off."""
    lines, found = page.read_text().splitlines(), []
    fenced = False
    joined = ""
    for line in lines:
        if line.startswith("```"):
            fenced = not fenced
        if fenced or not line.startswith("    ") and not joined:
            continue
        text = joined + line.strip()
        joined = ""
        if text.endswith("\\"):
            joined = text[:-1]
            continue
        text = re.sub(r"\s{2,}#.*", "", text).strip()
        bare = re.sub(r"^([A-Za-z_]+=\S+ )+", "", text)
        variable = bare.startswith("$") and any(re.match(re.escape(bare.split()[0][1:]) + "=", c) for c in found)
        assigned = ASSIGNMENT.match(text) and ("longspan" in text or "--" in text)
        if bare.startswith(PROGRAMS) or variable or assigned:
            found.append(text)
    return found


class Page:
    def __init__(self, page, build, folder, environment):
        self.page, self.build, self.folder, self.environment = page, build, folder, environment
        self.shell = []  # assignments so far
        self.skipped_runs = set()
        self.failures = 0

    def reason_to_skip(self, command):
        for name in MISSING:
            if re.search(rf"(?<![\w-]){re.escape(name)}\b", command):
                return f"needs {name}"
        out = re.search(r"--out (\S+)", command)
        if out and out[1] in self.skipped_runs:
            return "its run was left out"
        if command.startswith("mpirun ") and shutil.which("mpirun") is None:
            return "needs mpirun"
        if SYNOPSIS.search(command) and "model." not in command and "'" not in command:
            return "a synopsis"
        return ""

    def check_script(self, words):
        """Scripts have runs of their own: they must exist and know their cases."""
        script = ROOT / words[0]
        if not script.exists():
            return f"{words[0]} does not exist"
        if words[0] == "bench/learning.sh":
            unknown = [w for w in words[1:] if not re.search(rf"(^|[\s|(]){re.escape(w)}\)?", script.read_text())]
            return f"{words[0]} does not know {unknown}" if unknown else ""
        return ""

    def check_tests(self, words):
        listed = subprocess.run([str(self.build / words[0].removeprefix("build/dev/")), *words[1:], "--gtest_list_tests"],
                                capture_output=True, text=True)
        some = [l for l in listed.stdout.splitlines() if l.startswith("  ")]
        return "" if some else "the filter selects no test"

    def small(self, command):
        command = re.sub(r"(--steps )\d+", r"\g<1>2", command)
        command = re.sub(r"(--seconds )\d+", r"\g<1>5", command)
        command = re.sub(r"(--vocabulary )\d+", r"\g<1>300", command)
        command = re.sub(r"\bFILE\.model\b", "made.model", command)
        command = command.replace("DIR/wikixml/wikixml.xml.gz", "text").replace("documents=DIR", "documents=wiki-leads")
        command = re.sub(r"\b(dna|images|wav)=FILE", r"\1=\1", command).replace("wikixml.xml.gz", "text")
        command = re.sub(r"\bFILE\b", "text", command).replace("runs/data/tinyshakespeare.txt", "text")
        command = command.replace("$DATA/tinyshakespeare.txt", "text")
        command = re.sub(r"\bDIR\b", ".", command)
        # Data sets that nobody can make up, by others of their kind; the proteins are bundled.
        samples = ROOT / "data/samples"
        command = re.sub(r"--task (wikixml|tinyshakespeare)\b", "--data bytes=text", command)
        command = re.sub(r"--task photo-crops-32\b", "--task images --data images=images", command)
        command = re.sub(r"--task proteins\b(?!.*proteins=)", f"--task proteins --data proteins={samples}/uniprot-500.fasta.gz",
                         command)
        command = command.replace("=data/samples/", f"={samples}/")
        assigned = next((a for a in self.shell if command.startswith("$" + a.split("=")[0] + " ")), "")
        trains = re.search(r"\btrain\b", assigned + command) and "tokens train" not in command or "examples/" in command
        if assigned and re.search(r"--(steps|seconds)", assigned):
            trains = False
        if trains and "--resume" not in command and not re.search(r"--(steps|seconds)", command):
            command += " --steps 2"
        if trains and re.search(r"--model \S+:enwik8", command):  # a paper's batch needs its memory and its data
            command += " --batch 1 --length 64"
        return command

    def run(self, command):
        skip = self.reason_to_skip(command)
        if skip:
            out = re.search(r"--out (\S+)", command)
            if out and skip != "a synopsis":
                self.skipped_runs.add(out[1])
            return "left out: " + skip
        bare = re.sub(r"^([A-Z_]+=\S+ )+", "", command)
        words = bare.split() if "'" not in bare else shlex.split(bare)
        if bare.startswith(("scripts/", "tests/", "bench/")):
            return self.check_script(words) or "exists"
        if bare.startswith(("cmake ", "ctest ", "python3 ", "build/dev/bench/")):
            return "left out: has a run of its own"
        if "LONGSPAN_TEST_DEVICE=" in command:
            return "left out: needs a build with the emulated device"
        if bare.startswith("build/dev/tests/"):
            return self.check_tests(words) or "selects tests"
        small = self.small(command)
        if ASSIGNMENT.match(command):
            self.shell.append(self.small(command).replace('" --steps 2', ' --steps 2"'))
            return "set"
        small = small.replace("build/dev/", f"{self.build}/")
        script = "\n".join(s.replace("build/dev/", f"{self.build}/") for s in self.shell) + "\n" + small
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True, errors="replace",
                              env=self.environment, timeout=900)
        if done.returncode == 0:
            return "ran"
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        return f"FAILED with {done.returncode}: " + " | ".join(last)


def make_hub_folders(folder, build):
    """bert-base, bert-classes, longformer-answers and led-summaries: golden folders with a tokenizer of their 23 tokens; gpt2: an exported run over bytes.
    reviews, books: labelled texts; lines.txt, story.txt, questions.txt: texts."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = special + [f"w{i}" for i in range(5, 23)]
    tokenizer = {"version": "1.0", "added_tokens": [{"id": i, "content": token, "special": True} for i, token in enumerate(special)],
                 "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                 "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
                 "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
                 "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                           "vocab": {token: i for i, token in enumerate(vocabulary)}}}
    for name, golden in (("bert-base", "bert_masked_left"), ("bert-classes", "bert_classes"), ("longformer-answers", "longformer_spans"),
                         ("led-summaries", "led")):
        shutil.copytree(ROOT / "tests/oracles/hub_folders" / golden, folder / name)
        (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer))
        named = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(named))
    sizes = ["vocab=256", "d_model=16", "n_head=2", "d_ff=16", "n_layer=1"]
    for command in (["train", "--model", "transformer:gpt2", "--data", "bytes=text", "--steps", "1", "--length", "64", "--out", "made-gpt2",
                     *(word for size in sizes for word in ("--set", f"model.{size}"))], ["export", "made-gpt2", "--out", "gpt2"]):
        subprocess.run([str(build / "longspan"), *command], cwd=folder, capture_output=True, check=True)
    (folder / "reviews").mkdir()
    (folder / "books").symlink_to("reviews")
    rows = ["text,label"] + [f"w{5 + i % 9} w{6 + i % 7},{('good', 'bad')[i % 2]}" for i in range(40)]
    for part in ("train", "valid"):
        (folder / "reviews" / f"{part}.csv").write_text("\n".join(rows) + "\n")
    (folder / "reviews.csv").write_text("\n".join(rows) + "\n")
    (folder / "lines.txt").write_text("w5 w6\nw7\n")
    (folder / "story.txt").write_text("w5 w6 w7 w8.\n")
    (folder / "questions.txt").write_text("w9\nw10 w11\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
    parser.add_argument("--build", default=str(ROOT / "build/dev"), help="the build to use (build/dev)")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    spec = importlib.util.spec_from_file_location("fingerprint", ROOT / "tests/long/fingerprint.py")
    fingerprint = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fingerprint)
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1", LONGSPAN_DATA=".", PATH=f"{build}:{build}/examples:{os.environ['PATH']}")
    failures = 0
    for name in options.pages:
        with tempfile.TemporaryDirectory(prefix="commands-") as folder:
            folder = pathlib.Path(folder)
            if not options.list:
                fingerprint.make_data(folder)
                (folder / "text.txt").write_text((folder / "text").read_text()[:600])
                (folder / "article.txt").write_text((folder / "text").read_text()[:600])
                subprocess.run([str(build / "longspan"), "tokens", "train", "--data", "bytes=text", "--vocabulary", "300",
                                "--out", "made.model"], cwd=folder, capture_output=True, check=True)
                if name.endswith(("README.md", "hub.md", "fine-tuning.md", "classifier-walk.md")):
                    make_hub_folders(folder, build)
            page = Page(ROOT / name, build, folder, environment)
            for command in commands_of(ROOT / name):
                if options.list:
                    print(f"{name}: {command}: {page.reason_to_skip(command) or page.small(command)}")
                    continue
                outcome = page.run(command)
                wrong = outcome.startswith(("FAILED", "the filter")) or "does not" in outcome
                failures += wrong
                print(f"{name}: {command[:110]}: {outcome}", flush=True)
    if failures:
        sys.exit(f"{failures} commands failed")


if __name__ == "__main__":
    main()
