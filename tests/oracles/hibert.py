#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/hibert (README.md says what they hold).

    hibert.py           writes them all
    hibert.py --check   computes them again and compares with the files

HIBERT is written with one loop over documents, one over sentences and one over tokens, and nothing is
packed or padded: every attention is over the rows of one sentence or of one document. Before a file is
written, the sentence encoder is held against one encoder over all tokens with a block-diagonal mask, and
adding the context against cross-attention over a single key with identity projections.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from streams import main, norm, random_parameters, with_gradients


@dataclass(frozen=True)
class Hibert:
    """The options of models/hibert/hibert.h that these files need."""
    vocab: int = 17
    n_layer: int = 2
    document_layers: int = 2
    decoder_layers: int = 2
    n_head: int = 2
    d_model: int = 8
    d_ff: int = 12
    sentence_length: int = 6
    labels: int = 0
    label_bias: bool = True
    emb_scale: bool = True
    position_offset: int = 0
    sentence_positions: bool = True
    share_all: bool = False
    activation: str = "relu"
    smoothing: float = 0.1
    dropout: float = 0

    def layers(self):
        """Names of the layers of the sentence encoder, of the document encoder and of the decoder."""
        words = [f"words.layers.{i}" for i in range(self.n_layer - 1)] + ["ends.layers.0"]
        return (words, [f"documents.layers.{i}" for i in range(self.document_layers)],
                [f"decoder.layers.{i}" for i in range(self.decoder_layers)])

    def shapes(self):
        d, f, v = self.d_model, self.d_ff, self.vocab
        words, documents, decoder = self.layers()
        shapes = {"embed.token.weight": (v, d)}
        blocks = words + documents + (decoder if self.labels == 0 else [])
        for name in blocks:
            for w in "q", "k", "v", "out":
                shapes |= {f"{name}.attention.{w}.weight": (d, d), f"{name}.attention.{w}.bias": (d,)}
            shapes |= {f"{name}.ff.in.weight": (f, d), f"{name}.ff.in.bias": (f,),
                       f"{name}.ff.out.weight": (d, f), f"{name}.ff.out.bias": (d,)}
            for n in (1, 2, 3) if name in decoder else (1, 2):
                shapes |= {f"{name}.norm{n}.weight": (d,), f"{name}.norm{n}.bias": (d,)}
        if self.labels > 0:
            return shapes | {"tags.weight": (self.labels, d)} | (
                {"tags.bias": (self.labels,)} if self.label_bias else {})
        if not self.share_all:
            shapes["decoder.token.weight"] = (v, d)
        return shapes | {"head.weight": (v, d)}


CASES = {
    "base": Hibert(),
    "one_layer": Hibert(n_layer=1, document_layers=1, decoder_layers=1, n_head=4, smoothing=0),
    "options": Hibert(emb_scale=False, position_offset=2, share_all=True, activation="gelu_erf"),
    "no_documents": Hibert(document_layers=0, sentence_positions=False),
    "labels": Hibert(labels=2),
    "labels_paper": Hibert(labels=3, label_bias=False, emb_scale=False, position_offset=2),
}


def position(c, j):
    half = c.d_model // 2
    w = [10000 ** (-m / (half - 1)) for m in range(half)]
    p = j + c.position_offset
    return torch.tensor([math.sin(p * x) for x in w] + [math.cos(p * x) for x in w], dtype=torch.float64)


def embed(p, c, table, ids):
    scale = math.sqrt(c.d_model) if c.emb_scale else 1
    return torch.stack([scale * p[table][token] + position(c, j) for j, token in enumerate(ids)])


def linear(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def attention(p, c, name, x, sees):
    """x [n, d]; sees(i, j): whether row i sees row j. One row and one head at a time."""
    q, k, v = (linear(p, f"{name}.{w}", x) for w in "qkv")
    d = c.d_model // c.n_head
    rows = []
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if sees(i, j)]
        heads = []
        for h in range(c.n_head):
            own = slice(h * d, (h + 1) * d)
            weights = torch.softmax(torch.stack([q[i, own] @ k[j, own] for j in keys]) / math.sqrt(d), 0)
            heads.append(sum(w * v[j, own] for w, j in zip(weights, keys)))
        rows.append(torch.cat(heads))
    return linear(p, name + ".out", torch.stack(rows))


def feed_forward(p, c, name, x):
    f = torch.relu if c.activation == "relu" else F.gelu
    return linear(p, name + ".ff.out", f(linear(p, name + ".ff.in", x)))


def encoder_layer(p, c, name, x, sees=lambda i, j: True):
    x = norm(p, name + ".norm1", x + attention(p, c, name + ".attention", x, sees))
    return norm(p, name + ".norm2", x + feed_forward(p, c, name, x))


def sentence_vector(p, c, sentence):
    x = embed(p, c, "embed.token.weight", sentence)
    for name in c.layers()[0]:
        x = encoder_layer(p, c, name, x)
    return x[-1]


def encode(p, c, document):
    """h and d of a document, [S, d]."""
    h = torch.stack([sentence_vector(p, c, s) for s in document])
    x = h + torch.stack([position(c, i) for i in range(len(h))]) if c.sentence_positions else h
    for name in c.layers()[1]:
        x = encoder_layer(p, c, name, x)
    return h, x


def write(p, c, context, inputs):
    """States of the decoder for one sentence, whose slot has this context."""
    x = embed(p, c, "embed.token.weight" if c.share_all else "decoder.token.weight", inputs)
    for name in c.layers()[2]:
        x = norm(p, name + ".norm1", x + attention(p, c, name + ".attention", x, lambda i, j: j <= i))
        x = norm(p, name + ".norm2", x + context)
        x = norm(p, name + ".norm3", x + feed_forward(p, c, name, x))
    return x


def check_flat(p, c, documents, h):
    """All tokens in one sequence, with a mask of the sentences, as a plain encoder reads them."""
    sentences = [s for document in documents for s in document]
    of = [i for i, s in enumerate(sentences) for _ in s]
    x = torch.cat([embed(p, c, "embed.token.weight", s) for s in sentences])
    mask = torch.tensor([[a == b for b in of] for a in of])
    n, d = len(of), c.d_model // c.n_head
    for name in c.layers()[0]:
        q, k, v = (linear(p, f"{name}.attention.{w}", x).view(n, c.n_head, d).transpose(0, 1) for w in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).reshape(n, -1)
        x = norm(p, name + ".norm1", x + linear(p, name + ".attention.out", y))
        x = norm(p, name + ".norm2", x + feed_forward(p, c, name, x))
    ends = [i for i in range(n) if i + 1 == n or of[i + 1] != of[i]]
    assert (x[ends] - h).abs().max() < 1e-12


def check_context(c, context):
    """Cross-attention over one key returns its value, whatever the queries are."""
    one = context.view(1, 1, 1, -1)
    queries = torch.randn(1, 1, 4, c.d_model, dtype=torch.float64)
    assert (F.scaled_dot_product_attention(queries, one, one)[0, 0] - context).abs().max() < 1e-14


def documents_of(name, c):
    """Documents of 3, 1 and 2 sentences, some empty; the decoder's tokens are the last four ids."""
    gen = torch.Generator().manual_seed(len(name) * 17 + 3)
    end = c.vocab - 2

    def sentence(n):
        return torch.randint(c.vocab - 4, (n,), generator=gen).tolist() + [end]

    return [[sentence(4), sentence(0), sentence(5)], [sentence(2)], [sentence(1), sentence(3)]]


def packed(lists):
    return torch.tensor([x for part in lists for x in part])


def golden(name):
    c = CASES[name]
    p = random_parameters(c.shapes(), len(name), 0.35)
    documents = documents_of(name, c)
    sentences = [s for document in documents for s in document]
    both = [encode(p, c, document) for document in documents]
    h, d = torch.cat([x[0] for x in both]), torch.cat([x[1] for x in both])
    check_flat(p, c, documents, h)
    tensors = {"input.tokens": packed(sentences), "input.sentences": torch.tensor([len(s) for s in sentences]),
               "input.documents": torch.tensor([len(x) for x in documents]), "output.h": h, "output.d": d}
    if c.labels > 0:
        logits = d @ p["tags.weight"].T + (p["tags.bias"] if c.label_bias else 0)
        labels = torch.tensor([i * 7 % c.labels for i in range(len(sentences))])
        labels[2] = -100
        loss = F.cross_entropy(logits, labels, ignore_index=-100)
        tensors |= {"input.labels": labels, "output.logits": logits, "output.loss": loss}
        return with_gradients(tensors, p, loss), asdict(c)
    slots = [2, 3, 5]
    begin, end = c.vocab - 4, c.vocab - 3
    targets = [sentences[s][:-1] + [end] for s in slots]
    inputs = [[begin] + t[:-1] for t in targets]
    for s in slots:
        check_context(c, d[s])
    logits = torch.cat([write(p, c, d[s], x) @ p["head.weight"].T for s, x in zip(slots, inputs)])
    total = 0
    for row, target in zip(torch.log_softmax(logits, 1), packed(targets)):
        total = total - (1 - c.smoothing) * row[target] - c.smoothing * row.mean()
    loss = total / len(logits)
    tensors |= {"input.slots": torch.tensor(slots), "input.lengths": torch.tensor([len(x) for x in inputs]),
                "input.inputs": packed(inputs), "input.targets": packed(targets),
                "output.logits": logits, "output.loss": loss}
    return with_gradients(tensors, p, loss), asdict(c)


if __name__ == "__main__":
    main(__doc__, "hibert", CASES, golden)
