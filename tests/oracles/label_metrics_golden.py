"""Writes golden/text/label_metrics.json: what scikit-learn, seqeval, rouge_score and
transformers.data.metrics.squad_metrics say of drawn labels, tags, summaries and answers.

    .venv/bin/python label_metrics_golden.py [--check]
    .venv/bin/python label_metrics_golden.py --cases N --seed S --out FILE

Needs scikit-learn, seqeval, rouge_score and a release 4 of transformers.
"""

import argparse
import json
import pathlib
import random
import tempfile
import types
import warnings

import numpy
import seqeval.metrics
import sklearn.metrics
import sklearn.utils.class_weight
from rouge_score import rouge_scorer
from transformers.data.metrics import squad_metrics
from transformers.data.processors import squad as squad_processor

OUT = pathlib.Path(__file__).resolve().parent / "golden" / "text" / "label_metrics.json"


def averages(labels, predictions, names, **more):
    found = {}
    for name in names:
        p, r, f, _ = sklearn.metrics.precision_recall_fscore_support(
            labels, predictions, average=name, zero_division=0, **more)
        found[name] = [float(p), float(r), float(f)]
    return found


def classes(draw):
    k, n = draw.randrange(2, 7), draw.choice([1, 2, 3, 20, 60])
    used = draw.sample(range(k), draw.randrange(1, k + 1))
    labels = [draw.choice(used) for _ in range(n)]
    predictions = [l if draw.random() < 0.6 else draw.randrange(k) for l in labels]
    if draw.random() < 0.1:
        predictions = [draw.randrange(k)] * n
    case = {"classes": k, "labels": labels, "predictions": predictions,
            "accuracy": float(sklearn.metrics.accuracy_score(labels, predictions)),
            "matthews": float(sklearn.metrics.matthews_corrcoef(labels, predictions)),
            "confusion": sklearn.metrics.confusion_matrix(labels, predictions, labels=range(k)).tolist(),
            "f1": sklearn.metrics.f1_score(labels, predictions, labels=range(k), average=None,
                                           zero_division=0).tolist(),
            "averages": averages(labels, predictions, ["micro", "macro", "weighted"])}
    if k == 2:
        case["binary"] = float(sklearn.metrics.f1_score(labels, predictions, average="binary", zero_division=0))
    counts = [labels.count(c) for c in range(k)]
    case["samples"] = counts
    there = [c for c in range(k) if counts[c] > 0]
    # scikit-learn knows no classes without samples: its K are those that are there.
    weights = sklearn.utils.class_weight.compute_class_weight("balanced", classes=numpy.array(there), y=labels)
    case["weights"] = [float(weights[there.index(c)]) * len(there) / k if c in there else 0.0 for c in range(k)]
    return case


def several(draw):
    k, n = draw.randrange(2, 6), draw.choice([1, 2, 15])
    share = draw.choice([0.0, 0.2, 0.5, 0.9])
    labels = [[int(draw.random() < share) for _ in range(k)] for _ in range(n)]
    scores = [[draw.randrange(-8, 9) / 8 for _ in range(k)] for _ in range(n)]
    thresholds = [draw.randrange(-4, 5) / 8 for _ in range(k if draw.random() < 0.5 else 1)]
    above = [[int(s > thresholds[i % len(thresholds)]) for i, s in enumerate(row)] for row in scores]
    y, p = numpy.array(labels), numpy.array(above)
    return {"labels": labels, "scores": scores, "thresholds": thresholds,
            "accuracy": float(sklearn.metrics.accuracy_score(y, p)),
            "f1": sklearn.metrics.f1_score(y, p, average=None, zero_division=0).tolist(),
            "averages": averages(y, p, ["micro", "macro", "weighted", "samples"])}


TAGS = (["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ["O", "B-A", "I-A", "E-A", "S-A", "I-B", "E-B", "S-B"],
        ["O", "B", "I", "E", "S", "B-", "I-A-B", "B-A-B", "X", ".", "NOUN", "é-A", "IA", "BA"])


def entities(draw):
    alphabet = draw.choice(TAGS)
    sentences = [[draw.choice(alphabet) for _ in range(draw.choice([0, 1, 2, 5, 12]))]
                 for _ in range(draw.randrange(1, 6))]
    sentences[0].append("O")  # seqeval divides by the number of words
    found = [[t if draw.random() < 0.7 else draw.choice(alphabet) for t in s] for s in sentences]
    if draw.random() < 0.1:
        found = [["O"] * len(s) for s in sentences]
    m = seqeval.metrics
    case = {"tags": sentences, "predictions": found, "accuracy": float(m.accuracy_score(sentences, found)),
            "overall": [float(f(sentences, found, zero_division=0))
                        for f in (m.precision_score, m.recall_score, m.f1_score)],
            "types": {}, "averages": {}}
    report = m.classification_report(sentences, found, output_dict=True, zero_division=0)
    for name, row in report.items():
        numbers = [float(row[x]) for x in ("precision", "recall", "f1-score")]
        if name in ("macro avg", "weighted avg") and len(report) == 3:
            continue  # no entities at all: the mean of nothing
        if name in ("macro avg", "weighted avg"):
            case["averages"][name[:-4]] = numbers
        elif name != "micro avg":
            case["types"][name] = numbers + [float(row["support"])]
    return case


STEMS = ("the cat dies died dying flies enjoy enjoyed enjoyment relational conditional rationally hopping hopped falling filing "
         "agreed feed skies news innings proceed formality sensibility geology theology adoption replacement controlling happy "
         "sky 1990s ponies caresses generalizations oscillators x-ray naïve café straße \u212aelvin \u0130stanbul can't").split()


def summaries(draw):
    def text():
        lines = [" ".join(draw.choice(STEMS).title() if draw.random() < 0.2 else draw.choice(STEMS)
                          for _ in range(draw.randrange(0, 9))) for _ in range(draw.randrange(1, 5))]
        return draw.choice(["\n", ".\n", "\n\n"]).join(lines)

    reference, summary = text(), text()
    case = {"reference": reference, "summary": summary}
    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    for ending, stem in (("", False), ("_stem", True)):
        scores = rouge_scorer.RougeScorer(names, use_stemmer=stem).score(reference, summary)
        for name in names:
            case[name + ending] = [scores[name].precision, scores[name].recall, scores[name].fmeasure]
    return case


ANSWERS = ["the cat", "Cat", "a cat's tail", "An  apple, the tree", "the", "", "1,000 km", "Ça va", "— so", "cat tail tail",
           "tree\u00a0house", "the\tend", "a\x1cb", "an_apple", "U.S.A.", "tail", "«the» end"]


def squad(draw):
    examples, predictions, scores = [], {}, {}
    kind = draw.choice(["answers", "none", "both", "both"])
    for i in range(draw.choice([1, 2, 9, 25])):
        answers = [draw.choice(ANSWERS) for _ in range(draw.randrange(1, 4))]
        if kind == "none" or (kind == "both" and draw.random() < 0.4):
            answers = []
        name = str(i)
        examples.append(types.SimpleNamespace(qas_id=name, answers=[{"text": a} for a in answers]))
        predictions[name] = draw.choice(answers + ["", draw.choice(ANSWERS)])
        scores[name] = draw.randrange(0, 9) / 8
    threshold = draw.choice([1.0, 0.5, 0.25])
    found = squad_metrics.squad_evaluate(examples, predictions, scores, threshold)
    return {"references": [[a["text"] for a in e.answers] for e in examples],
            "answers": list(predictions.values()), "scores": list(scores.values()), "threshold": threshold,
            "figures": {k: float(v) for k, v in found.items()}}


def windows_of(total, room, stride):
    spans, first = [], 0
    while True:
        spans.append((first, min(room, total - first)))
        if first + spans[-1][1] >= total:
            return spans
        first += min(stride, room)


def answers(draw):
    words = [draw.choice(["ab", "cd", "ef", "gh", "ij"]) for _ in range(draw.randrange(1, 40))]
    asked, stride, padding = draw.randrange(0, 4), draw.randrange(1, 9), draw.randrange(0, 3)
    length = asked + 3 + draw.randrange(1, 15)
    spans = windows_of(len(words), length - asked - 3, stride)
    parts = draw.choice([2, 1000])  # ties or none

    def score():
        return draw.randrange(-4 * parts, 4 * parts) / (8 if parts == 2 else 1024)

    features, results, rows = [], [], {"starts": [], "ends": []}
    ranges = [types.SimpleNamespace(start=a, length=b) for a, b in spans]
    for i, (first, count) in enumerate(spans):
        tokens = ["[CLS]"] + ["?"] * asked + ["[SEP]"] + words[first:first + count] + ["[SEP]"]
        at = {asked + 2 + j: first + j for j in range(count)}
        most = {k: squad_processor._check_is_max_context(ranges, i, v) for k, v in at.items()}
        features.append(types.SimpleNamespace(unique_id=i, example_index=0, tokens=tokens, token_to_orig_map=at,
                                              token_is_max_context=most))
        starts, ends = ([score() for _ in range(len(tokens) + padding)] for _ in range(2))
        rows["starts"].append(starts)
        rows["ends"].append(ends)
        results.append(types.SimpleNamespace(unique_id=i, start_logits=starts, end_logits=ends))
    none, threshold = draw.random() < 0.6, draw.choice([0.0, -1.0, 2.0])
    count, longest = draw.choice([1, 2, 5, 20]), draw.choice([1, 3, 30])
    example = types.SimpleNamespace(qas_id="0", doc_tokens=words)
    tokenizer = types.SimpleNamespace(convert_tokens_to_string=" ".join)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{n}.json" for n in ("best", "all", "odds")]
        best = squad_metrics.compute_predictions_logits(
            [example], features, results, count, longest, False, *names, False, none, threshold, tokenizer)
        kept = json.load(open(names[1]))["0"]
        odds = json.load(open(names[2]))["0"] if none else 0.0
    found = [[c["text"], c["start_logit"], c["end_logit"], c["probability"]] for c in kept]
    text = best["0"]
    if found[0][0] == "empty":  # what the package makes up where no answer is possible
        found, text = [[*c[:3], 1.0] for c in found[1:]], ""
    return {"words": words, "asked": asked, "length": length, "stride": stride, **rows, "candidates": count,
            "longest": longest, "no_answer": none, "threshold": threshold, "text": text, "difference": odds,
            "found": found}


PARTS = (classes, several, entities, summaries, squad, answers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = {}
    for part in PARTS:
        draw = random.Random(options.seed)
        cases[part.__name__] = [part(draw) for _ in range(options.cases)]
    text = json.dumps(cases, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"
    if options.check:
        assert options.out.read_text(encoding="utf-8") == text, f"{options.out.name} differs"
    else:
        options.out.write_text(text, encoding="utf-8")


main()
