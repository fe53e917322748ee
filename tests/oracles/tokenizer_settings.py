"""Writes golden/text/settings.json and pegasus.model: what tokenizers of the package transformers make
of texts, read from folders whose tokenizer_config.json says how. Needs no torch.

    .venv/bin/python tokenizer_settings.py            # writes settings.json again
    .venv/bin/python tokenizer_settings.py --train    # pegasus.model too
    .venv/bin/python tokenizer_settings.py --check    # computes everything again and compares
"""

import gzip
import io
import json
import pathlib
import shutil
import sys
import tempfile

import sentencepiece
import transformers

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "golden" / "text"
CORPUS = HERE.parent.parent / "data" / "samples" / "tinyshakespeare.txt.gz"
TEXTS = ["Speak, Speak!", " we Café", "First Citizen: I'll HEAR thee.", "no such 中 thing 12",
         "The king <mask_1> and\n\tthe Queen", "", " "]

# name -> (files, class, tokenizer_config.json)
FOLDERS = {
    "cased": ({"wordpiece.txt": "vocab.txt"}, "BertTokenizer", {"do_lower_case": False}),
    "uncased": ({"wordpiece.txt": "vocab.txt"}, "BertTokenizer", {"do_lower_case": True}),
    "prefix": ({"vocab.json": "vocab.json", "merges.txt": "merges.txt"}, "RobertaTokenizer",
               {"add_prefix_space": True}),
    "no_prefix": ({"vocab.json": "vocab.json", "merges.txt": "merges.txt"}, "RobertaTokenizer",
                  {"add_prefix_space": False}),
    "pegasus": ({"pegasus.model": "spiece.model"}, "PegasusTokenizer", {}),
    "pegasus_offset": ({"pegasus.model": "spiece.model"}, "PegasusTokenizer", {"offset": 7}),
    "big_bird": ({"bpe.model": "spiece.model"}, "BigBirdTokenizer", {}),
}


def train():
    text = gzip.open(CORPUS, "rt").read()[:200_000]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=200,
        model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1,
        normalization_rule_name="identity", minloglevel=2)
    (OUT / "pegasus.model").write_bytes(model.getvalue())


def case(files, kind, config):
    with tempfile.TemporaryDirectory() as folder:
        for source, name in files.items():
            shutil.copy(OUT / source, pathlib.Path(folder) / name)
        config = {"tokenizer_class": kind, **config}
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = getattr(transformers, kind).from_pretrained(folder)
        # Names of special tokens in a text are text: pieces, and not what tokenize() makes of them.
        ids = [tokenizer.convert_tokens_to_ids(tokenizer._tokenize(t)) if kind != "RobertaTokenizer"
               else tokenizer(t, add_special_tokens=False)["input_ids"] for t in TEXTS]
        special = {name: getattr(tokenizer, name + "_token_id")
                   for name in ("pad", "unk", "mask") if getattr(tokenizer, name + "_token")}
    return {"files": files, "config": config, "ids": ids, "special": special}


def main():
    if "--train" in sys.argv:
        train()
    cases = {"texts": TEXTS, "folders": {name: case(*f) for name, f in FOLDERS.items()}}
    text = json.dumps(cases, ensure_ascii=False, indent=1) + "\n"
    path = OUT / "settings.json"
    if "--check" in sys.argv:
        if path.read_text() != text:
            sys.exit("settings.json is other than what the package says")
        print(f"{len(FOLDERS)} folders agree")
    else:
        path.write_text(text)


main()
