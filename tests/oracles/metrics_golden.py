"""Writes golden/text/metrics.json: what rouge_score, sacrebleu, scikit-learn and scipy say of some
texts and numbers.

    .venv/bin/python metrics_golden.py [--check]
"""

import gzip
import json
import math
import pathlib
import random
import sys

import sacrebleu
import scipy.stats
import sklearn.metrics
from rouge_score import rouge_scorer

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "golden" / "text" / "metrics.json"
CORPUS = HERE.parent.parent / "data" / "samples" / "tinyshakespeare.txt.gz"


def documents(draw):
    lines = [l for l in gzip.decompress(CORPUS.read_bytes()).decode().split("\n") if len(l) > 20]
    for _ in range(12):
        at = draw.randrange(len(lines) - 40)
        article = lines[at : at + 30]
        reference = draw.sample(article, draw.randrange(1, 8))
        summary = draw.sample(article, draw.randrange(1, 8))
        summary = [" ".join(w for w in s.split() if draw.random() < 0.8) for s in summary]
        yield [s for s in summary if s], reference
    yield ["Café naïve x-ray 3.5 & 4"], ["cafe naive X ray 3 5"]
    yield ["nothing"], ["in common"]
    yield ["the the the the"], ["the cat the dog", "the end the"]


def rouge(draw):
    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = rouge_scorer.RougeScorer(names, use_stemmer=False)
    cases = []
    for summary, reference in documents(draw):
        scores = {}
        for name in names:
            sep = "\n" if name == "rougeLsum" else " "
            s = scorer.score(sep.join(reference), sep.join(summary))[name]
            scores[name] = [s.precision, s.recall]
        cases.append({"summary": summary, "reference": reference, **scores})
    return cases


def bleu(draw):
    texts = [("Hello, world! It costs $5.00 - or 3,000.5%.", "Hello world; it costs $5 or 3,000%."),
             ("the cat sat on the mat", "the cat sat on the mat"),
             ("„Zitat“ — ja… 1.5.", "„Zitat“ – ja 1.5 ."),
             ("a b", "a b c d e f"), ("x y z w v u", "x y z")]
    pairs = [(" ".join(s), " ".join(r)) for s, r in documents(draw)]
    corpora = [texts, pairs, pairs[:3] + texts, texts[1:2], texts[3:4], pairs[-2:-1]]
    return [{"translations": [t for t, _ in c], "references": [r for _, r in c],
             "bleu": sacrebleu.corpus_bleu([t for t, _ in c], [[r for _, r in c]],
                                           tokenize="intl").score} for c in corpora]


def numbers(draw):
    cases = []
    for n, levels in ((2, 2), (5, 3), (40, 5), (200, 1000)):
        x = [draw.randrange(levels) / 7 for _ in range(n)]
        y = [a + draw.random() for a in x]
        scores = [draw.randrange(levels) / 3 for _ in range(n)]
        labels = [i % 2 if n < 6 else draw.randrange(2) for i in range(n)]
        predictions = [l if draw.random() < 0.7 else 1 - l for l in labels]
        spearman, pearson = scipy.stats.spearmanr(x, y)[0], scipy.stats.pearsonr(x, y)[0]
        cases.append({
            "x": x, "y": y, "scores": scores, "labels": labels, "predictions": predictions,
            "pearson": 0.0 if math.isnan(pearson) else float(pearson),
            "spearman": 0.0 if math.isnan(spearman) else float(spearman),
            "auc": float(sklearn.metrics.roc_auc_score(labels, scores)),
            "matthews": float(sklearn.metrics.matthews_corrcoef(labels, predictions)),
            "accuracy": float(sklearn.metrics.accuracy_score(labels, predictions)),
            "f1": float(sklearn.metrics.f1_score(labels, predictions, zero_division=0)),
        })
    return cases


def main():
    draw = random.Random(3)
    cases = {"rouge": rouge(draw), "bleu": bleu(draw), "numbers": numbers(draw)}
    text = json.dumps(cases, separators=(",", ":"), ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        assert OUT.read_text(encoding="utf-8") == text, "metrics.json differs"
    else:
        OUT.write_text(text, encoding="utf-8")


main()
