#!/usr/bin/env python3
"""Compares which files of a hub folder decide with AutoTokenizer of the package transformers (Python with
`transformers` 5, `sentencepiece` and `protobuf` needed):

    cmake --build build/dev --target hub_ids
    PYTHON tests/long/hub_folders.py

Makes folders with tokenizer.json and settings of a class, with the files of older releases alone, and with
SentencePiece models, and compares ids, token types and pairs of 400 lines. A folder whose settings would
give another pipeline than its tokenizer.json must be refused, and the settings of the remedy must give what
the package gives. Then has the package read what `hub_ids write` writes again. Exit status 1 if anything
differs.
"""

import io
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import sentencepiece
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "dev" / "tests" / "hub_ids"
GOLDEN = ROOT / "tests" / "oracles" / "golden"
TEXTS = json.loads((GOLDEN / "hub" / "cases.json").read_text(encoding="utf-8"))["texts"]
r = random.Random(3)
LINES = TEXTS + [" ".join(r.choice(r.choice(TEXTS).split(" ")) for _ in range(r.randint(1, 12))) for _ in range(350)]
PAIRS = [[a, b] for a, b in zip(LINES[:60], LINES[60:120]) if b]
BAD = 0


def report(name, wrong):
    global BAD
    print(f"{name}: {'equal' if not wrong else wrong}", flush=True)
    BAD += bool(wrong)


def ours(folder, lines, *flags):
    path = os.path.join(folder, "lines of the test.json")
    pathlib.Path(path).write_text(json.dumps(lines, ensure_ascii=False), encoding="utf-8")
    run = subprocess.run([PROGRAM, folder, path, "special", *flags], capture_output=True)
    os.remove(path)
    if run.returncode != 0:
        return None, run.stderr.decode(errors="replace")
    return [json.loads(line) for line in run.stdout.decode().split("\n") if line], ""


def differs(folder, tokenizer, *flags):
    made, message = ours(folder, LINES, *flags)
    if made is None:
        return message
    pairs, _ = ours(folder, PAIRS, *flags)
    bad = []
    for line, m in zip(LINES + PAIRS, made + pairs):
        e = tokenizer(*line) if isinstance(line, list) else tokenizer(line)
        if e["input_ids"] != m["ids"]:
            bad.append((line, m["ids"], e["input_ids"]))
        if "token_type_ids" in e and e["token_type_ids"] != m["types"]:
            bad.append((line, m["types"], e["token_type_ids"]))
    return f"{len(bad)} differ, such as {bad[0]}"[:700] if bad else ""


def compare(name, folder, *flags, **settings):
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **settings)
    except Exception as error:  # a folder that the package cannot read proves nothing
        return report(name, f"the package: {error}"[:500])
    report(name, differs(folder, tokenizer, *flags))


def folder_with(place, name, files, config=None, model=None):
    folder = os.path.join(place, name)
    os.makedirs(folder)
    for target, source in files.items():
        if isinstance(source, str):
            pathlib.Path(folder, target).write_text(source, encoding="utf-8")
        elif isinstance(source, bytes):
            pathlib.Path(folder, target).write_bytes(source)
        else:
            shutil.copy(source, os.path.join(folder, target))
    if config is not None:
        pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
    if model is not None:
        pathlib.Path(folder, "config.json").write_text(json.dumps(model))
    return folder


def sentence_piece(kind, **more):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS * 3), model_writer=model, vocab_size=260, model_type=kind, num_threads=1,
                                             minloglevel=4, hard_vocab_limit=False, character_coverage=0.98, **more)
    return model.getvalue()


def refused(name, folder, member):
    """A folder that must be refused, naming a member, with a remedy that gives the file's pipeline."""
    made, message = ours(folder, ["a"])
    if made is not None:
        return report(name, "not refused")
    if member not in message:
        return report(name, f"no {member} in {message}")
    remedies = [re.findall(r"(\w+)=(\w+)", names) for names in re.findall(r"--tokenizer [^:]*:([\w=,]+)", message)]
    first = next((r for r in remedies if r[0][0] == member), remedies[0])
    settings = {k: json.loads(v) if v in ("true", "false", "null") else v for k, v in first}
    if "tokenizer_class" in settings:
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **settings)
    report(name, differs(folder, tokenizer, *[f"{k}={v}" for k, v in first]))


def main():
    place = tempfile.mkdtemp()
    hub, text = GOLDEN / "hub", GOLDEN / "text"
    wp = text / "wordpiece.txt"
    bert = {"tokenizer_class": "BertTokenizer"}
    for name, more in {"uncased": {}, "cased": {"do_lower_case": False}, "keep": {"strip_accents": False}, "strip": {"do_lower_case": False, "strip_accents": True},
                       "no-chinese": {"tokenize_chinese_chars": False}, "fast": {"tokenizer_class": "BertTokenizerFast", "model_max_length": 512}}.items():
        compare("vocab.txt, " + name, folder_with(place, "wp-" + name, {"vocab.txt": wp}, bert | more))
    compare("vocab.txt, model type", folder_with(place, "wp-type", {"vocab.txt": wp}, None, {"model_type": "bert"}))
    compare("vocab.txt, added_tokens_decoder", folder_with(place, "wp-added", {"vocab.txt": wp}, bert | {"added_tokens_decoder": {
        str(len(wp.read_text().split("\n")) - 1): {"content": "newword", "lstrip": True, "rstrip": False, "single_word": False, "normalized": True, "special": False}}}))
    pairs = {"vocab.json": text / "vocab.json", "merges.txt": text / "merges.txt"}
    for name in ("RobertaTokenizer", "GPT2Tokenizer", "LongformerTokenizer", "BartTokenizer", "LEDTokenizer"):
        for prefix in (False, True):
            compare(f"vocab.json, {name}, prefix {prefix}", folder_with(place, f"bpe-{name}-{prefix}", pairs, {"tokenizer_class": name, "add_prefix_space": prefix}))
    compare("vocab.json, mask takes spaces", folder_with(place, "bpe-mask", pairs, {
        "tokenizer_class": "RobertaTokenizer", "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": True, "single_word": False}}))
    compare("vocab.json, special_tokens_map.json", folder_with(place, "bpe-map", pairs | {"special_tokens_map.json": json.dumps({"mask_token": "<madk>", "sep_token": "</s>"})},
                                                            {"tokenizer_class": "RobertaTokenizer"}))
    unigram, bpe = sentence_piece("unigram"), sentence_piece("bpe")
    plain = sentence_piece("unigram", normalization_rule_name="identity")
    pegasus = (text / "pegasus.model").read_bytes()
    for name, model, more in (("XLMRobertaTokenizer", unigram, {}), ("CamembertTokenizer", unigram, {}), ("MBartTokenizer", unigram, {}),
                              ("MBartTokenizer", unigram, {"src_lang": "ro_RO", "tgt_lang": "en_XX"}), ("BigBirdTokenizer", plain, {}), ("ReformerTokenizer", bpe, {}),
                              ("PegasusTokenizer", pegasus, {}), ("XLMRobertaTokenizer", plain, {"add_prefix_space": False})):
        file = {"XLMRobertaTokenizer": "sentencepiece.bpe.model", "CamembertTokenizer": "sentencepiece.bpe.model", "MBartTokenizer": "sentencepiece.bpe.model"}.get(name, "spiece.model")
        compare(f"{file}, {name} {more}", folder_with(place, f"sp-{name}-{len(os.listdir(place))}", {file: model}, {"tokenizer_class": name} | more))
    wordpiece, cased, roberta = (hub / n / "tokenizer.json" for n in ("wordpiece", "wordpiece_cased", "roberta_prefix"))
    compare("tokenizer.json as it is", folder_with(place, "as-is", {"tokenizer.json": cased}, {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]"}))
    compare("tokenizer.json of its class", folder_with(place, "class", {"tokenizer.json": wordpiece}, bert))
    compare("tokenizer.json, cased, says so", folder_with(place, "says", {"tokenizer.json": cased}, bert | {"do_lower_case": False}))
    refused("tokenizer.json, cased, of a class", folder_with(place, "cased", {"tokenizer.json": cased}, bert), "do_lower_case")
    refused("tokenizer.json, cased, of a model", folder_with(place, "cased-type", {"tokenizer.json": cased}, None, {"model_type": "bert"}), "do_lower_case")
    refused("tokenizer.json, prefix", folder_with(place, "prefix", {"tokenizer.json": roberta}, {"tokenizer_class": "RobertaTokenizer"}), "add_prefix_space")
    refused("tokenizer.json of another class", folder_with(place, "other", {"tokenizer.json": hub / "suffix" / "tokenizer.json"}, {"tokenizer_class": "GPT2Tokenizer"}), "tokenizer_class")
    folder = folder_with(place, "chosen", {"tokenizer.json": cased}, bert)
    report("the class's pipeline is chosen", differs(folder, transformers.AutoTokenizer.from_pretrained(folder), "tokenizer_class=BertTokenizer"))
    written(place)
    own(place, text)
    shutil.rmtree(place)
    sys.exit(1 if BAD else 0)


def written(place):
    """What is written again must give the package the same ids."""
    for folder in sorted(os.listdir(place)):
        source, target = os.path.join(place, folder), os.path.join(place, folder + "-written")
        settings = ["tokenizer_class=PreTrainedTokenizerFast"] if folder in ("cased", "cased-type", "prefix", "other", "chosen") else []
        run = subprocess.run([PROGRAM, source, "write", target, *settings], capture_output=True)
        if run.returncode != 0:
            report(f"written {folder}", run.stderr.decode(errors="replace"))
            continue
        compare(f"written {folder}", target)
        tokenizer = transformers.AutoTokenizer.from_pretrained(target)
        report(f"written {folder}, read from before", differs(source, tokenizer, *settings))

def own(place, text):
    """What is written of tokenizers that are not of hub folders."""
    folder_with(place, "own-wordpiece", {"vocab.txt": text / "wordpiece.txt"}, {"do_lower_case": True})
    folder_with(place, "own-bpe", {"vocab.json": text / "vocab.json", "merges.txt": text / "merges.txt"})
    for name in ("own-wordpiece", "own-bpe", str(text / "unigram.model"), str(text / "bpe.model"), "bytes"):
        source = os.path.join(place, name) if name.startswith("own") else name
        target = os.path.join(place, os.path.basename(name) + "-own")
        run = subprocess.run([PROGRAM, source, "write-own", target], capture_output=True)
        if run.returncode != 0:
            report(f"own {name}", run.stderr.decode(errors="replace"))
        else:
            compare(f"own {os.path.basename(name)}", target)


main()
