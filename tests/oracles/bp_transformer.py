#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/bp_transformer (README.md says what they hold).

    bp_transformer.py           writes them all
    bp_transformer.py --check   computes them again and compares with the files

The official code of BP-Transformer needs a graph library on a GPU. The models are written plainly: a tree is
a list of sets of tokens, who attends to whom follows from these sets, and attention is a softmax over all nodes
with a mask and a matrix of labels.
"""

from dataclasses import asdict, dataclass, field, replace

import torch
import torch.nn.functional as F

from streams import main, norm, random_parameters, with_gradients


@dataclass(frozen=True)
class Tree:
    """The options of models/bp_transformer/tree_layers.h, and of all three models."""
    model: str = "bp_transformer"
    vocab: int = 17
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 12
    d_ff: int = 10
    k: int = 2
    clip: int = 2
    span_self_loop: bool = False
    d_embed: int = 0
    tie_embedding: bool = True
    intermediate_loss: bool = True  # language model
    causal: bool = False            # encoder
    classes: int = 0
    pair_classes: int = 0
    match_layers: int = 0
    sentence_end: int = -1          # encoder-decoder
    label_smoothing: float = 0
    lengths: tuple = field(default=(13, 13))
    targets: int = 9                # of the encoder-decoder

    def options(self):
        own = {"bp_transformer": ["d_embed", "tie_embedding", "intermediate_loss"],
               "bp_encoder": ["d_embed", "tie_embedding", "causal", "classes", "pair_classes"] +
               ["match_layers"] * (self.match_layers > 0),
               "bp_translator": ["sentence_end", "label_smoothing"]}[self.model]
        names = ["model", "vocab", "n_layer", "n_head", "d_model", "d_ff", "k", "clip", "span_self_loop"] + own
        return {n: v for n, v in asdict(self).items() if n in names}


ENCODER = Tree(model="bp_encoder", classes=3, pair_classes=4)
TRANSLATOR = Tree(model="bp_translator", lengths=(13, 6))

CASES = {
    "lm": Tree(),
    "lm_power_of_two": Tree(k=1, clip=9, span_self_loop=True, lengths=(16, 16)),
    "lm_many_neighbours": Tree(k=8, clip=0, lengths=(7, 7), n_layer=3),
    "lm_one_token": Tree(lengths=(1, 1)),
    "lm_projected": Tree(d_embed=5, tie_embedding=False, intermediate_loss=False, k=3, lengths=(20, 20)),
    "encoder": replace(ENCODER, lengths=(13, 5, 1, 8)),
    "encoder_causal": replace(ENCODER, causal=True, k=1, lengths=(11, 11), span_self_loop=True),
    "encoder_untied": replace(ENCODER, d_embed=7, tie_embedding=False, lengths=(3, 6), clip=0),
    "encoder_matching": replace(ENCODER, match_layers=2, lengths=(13, 5, 1, 8)),
    "encoder_matching_causal": replace(ENCODER, match_layers=1, n_layer=1, causal=True, lengths=(7, 7)),
    "translator": TRANSLATOR,
    "translator_sentences": replace(TRANSLATOR, sentence_end=3, label_smoothing=0.1, k=1),
}


def tree(n):
    """The nodes of a tree over n tokens, leaves first: (level, place, set of tokens)."""
    nodes = [(0, i, {i}) for i in range(n)]
    level = nodes
    while len(level) > 1:
        level = [(level[i][0] + 1, i // 2, set().union(*(x[2] for x in level[i:i + 2])))
                 for i in range(0, len(level), 2)]
        nodes = nodes + level
    return nodes


def pairs(n, c, causal):
    """(row, key) -> label. A leaf takes, level by level, the k nodes that come next; of one that is partly seen
    it takes the child that is not, if there is one."""
    nodes = tree(n)
    at = {(level, place): i for i, (level, place, _) in enumerate(nodes)}
    label = lambda level, slot: (2 * c.k + 1) * min(level, c.clip) + slot
    all = {}
    for u, (level, _, tokens) in enumerate(nodes):
        if level == 0:
            all[u, u] = label(0, 0)
            continue
        for i in tokens:
            all[u, i] = label(level, 0)
        if c.span_self_loop:
            all[u, u] = label(level, 0)
    for i in range(n):
        for side in (-1,) if causal else (-1, 1):
            seen, edge, level = {i}, i, 0
            while 0 <= edge + side < n:
                place = (edge + side) >> level
                for slot in range(c.k):
                    key = at.get((level, place + side * slot))
                    if key is None:
                        break
                    if nodes[key][2] & seen:
                        key = at.get((level - 1, 2 * (place + side * slot) + (side > 0)))
                        if key is None:
                            continue
                    assert not nodes[key][2] & seen
                    seen |= nodes[key][2]
                    edge = min(seen) if side < 0 else max(seen)
                    all[i, key] = label(level, 2 * slot + (1 if side < 0 else 2))
                level += 1
    return all


def attention(c, p, at, x, z, labels, table):
    """x [R, D] attends to z [N, D]: labels [R, N], -1 where a row does not see a key; rows without keys get 0."""
    split = lambda t, w: F.linear(t, p[at + w + ".weight"]).unflatten(-1, (c.n_head, -1)).transpose(0, 1)
    q, k, v = split(x, "q"), split(z, "k"), split(z, "v")
    d = q.shape[-1]
    score = q @ k.transpose(-1, -2)
    if table is not None:
        score = score + torch.einsum("hid,ijd->hij", q, table[labels.clamp(min=0)])
    share = (score / d ** 0.5).masked_fill(labels < 0, -torch.inf).softmax(-1)
    share = torch.where((labels >= 0).any(-1, keepdim=True), share, torch.zeros_like(share))
    return F.linear((share @ v).transpose(0, 1).flatten(1), p[at + "out.weight"])


def layers(c, p, prefix, leaves, causal, source=None, source_labels=None):
    """The states of all nodes after each layer, for one sample's leaves [n, D]."""
    n, nodes = leaves.shape[0], len(tree(leaves.shape[0]))
    x = torch.cat([leaves, leaves.new_zeros(nodes - n, c.d_model)])
    return layers_over(c, p, prefix, x, n, causal, c.n_layer, source, source_labels)


def layers_over(c, p, prefix, x, n, causal, count, source=None, source_labels=None):
    """The same for the states x of all nodes of a tree over n tokens."""
    nodes = x.shape[0]
    labels = torch.full((nodes, nodes), -1)
    for (row, key), label in pairs(n, c, causal).items():
        labels[row, key] = label
    states = []
    for i in range(count):
        at = f"{prefix}layers.{i}."
        x = norm(p, at + "norm1",
                 x + attention(c, p, at + "attention.", x, x, labels, p[at + "attention.relation"]))
        last = "norm2"
        if source is not None:
            rows = torch.cat([source_labels, torch.full((nodes - n, source.shape[0]), -1)])
            x = norm(p, at + "norm2", x + attention(c, p, at + "cross.", x, source, rows, None))
            last = "norm3"
        inner = F.relu(F.linear(x, p[at + "ff.in.weight"], p[at + "ff.in.bias"]))
        x = norm(p, at + last, x + F.linear(inner, p[at + "ff.out.weight"], p[at + "ff.out.bias"]))
        states.append(x)
    return states


def shapes(c):
    width = c.d_embed or c.d_model
    all = {"embed.token.weight": (c.vocab, width)}

    def affine(name, *sizes):
        all[name + ".weight"], all[name + ".bias"] = sizes, (sizes[0],)

    def stack(prefix, cross, count=c.n_layer):
        for i in range(count):
            at = f"{prefix}layers.{i}."
            for kind in ["attention"] + ["cross"] * cross:
                for w in ["q", "k", "v", "out"]:
                    all[f"{at}{kind}.{w}.weight"] = (c.d_model, c.d_model)
            all[at + "attention.relation"] = ((2 * c.k + 1) * (c.clip + 1), c.d_model // c.n_head)
            for j in range(3 if cross else 2):
                affine(f"{at}norm{j + 1}", c.d_model)
            affine(at + "ff.in", c.d_ff, c.d_model)
            affine(at + "ff.out", c.d_model, c.d_ff)

    if c.model == "bp_translator":
        affine("encoder.embed.norm", c.d_model)
        affine("decoder.embed.norm", c.d_model)
        stack("encoder.", False)
        stack("decoder.", True)
    else:
        if width != c.d_model:
            affine("embed.projection", c.d_model, width)
        affine("embed.norm", c.d_model)
        stack("", False)
        stack("match.", True, c.match_layers)
    all["head.bias"] = (c.vocab,)
    if not c.tie_embedding:
        all["head.weight"] = (c.vocab, c.d_model)
    if c.classes:
        affine("classifier", c.classes, c.d_model)
    if c.pair_classes:
        affine("pair.hidden", c.d_model, 2 * c.d_model)
        affine("pair.classifier", c.pair_classes, c.d_model)
    return all


def embed(c, p, tokens, name="embed.norm"):
    x = p["embed.token.weight"][tokens]
    if "embed.projection.weight" in p:
        x = F.linear(x, p["embed.projection.weight"], p["embed.projection.bias"])
    return norm(p, name, x)


def head(c, p, x):
    return F.linear(x, p["embed.token.weight" if c.tie_embedding else "head.weight"], p["head.bias"])


def loss_of(logits, targets, smoothing=0.0):
    """Mean over the targets that count; `smoothing` of the mass is uniform over all tokens."""
    log_p = logits.log_softmax(-1)[targets >= 0]
    right = log_p.gather(-1, targets[targets >= 0][:, None])[:, 0]
    return -((1 - smoothing) * right + smoothing * log_p.mean(-1)).mean()


def language_model(c, p, tensors):
    tokens, targets = tensors["input.tokens"], tensors["input.targets"]
    states = [layers(c, p, "", embed(c, p, row), True) for row in tokens]
    n = tokens.shape[1]
    logits = [head(c, p, torch.stack([s[i][:n] for s in states])) for i in range(c.n_layer)]
    losses = [loss_of(x, targets) for x in logits]
    tensors["output.logits"], tensors["output.loss"] = logits[-1], losses[-1]
    total = torch.stack(losses).mean() if c.intermediate_loss else losses[-1]
    tensors["output.total"] = total
    return total


def roots(c, p, rows):
    return torch.stack([layers(c, p, "", embed(c, p, row), c.causal)[-1][-1] for row in rows])


def matched(c, p, first, second):
    """The roots of pairs whose tokens attend to each other's, as the layers before left them."""
    result = []
    for pair in zip(first, second):
        states = [layers(c, p, "", embed(c, p, row), c.causal)[-1] for row in pair]
        ends = []
        for x, z, n, m in zip(states, states[::-1], map(len, pair), map(len, pair[::-1])):
            all_pairs = torch.zeros(n, m, dtype=torch.long)
            ends.append(layers_over(c, p, "match.", x, n, c.causal, c.match_layers, z[:m], all_pairs)[-1][-1])
        result.append(torch.cat(ends))
    return torch.stack(result)


def encoder(c, p, tensors):
    tokens, targets = tensors["input.tokens"], tensors["input.targets"]
    rows = [row[:n] for row, n in zip(tokens, c.lengths)]
    root = roots(c, p, rows)
    classes = F.linear(root, p["classifier.weight"], p["classifier.bias"])
    whole = list(tokens)  # the second of each pair is not cut
    both = matched(c, p, rows, whole) if c.match_layers else torch.cat([root, roots(c, p, whole)], 1)
    hidden = F.relu(F.linear(both, p["pair.hidden.weight"], p["pair.hidden.bias"]))
    pair = F.linear(hidden, p["pair.classifier.weight"], p["pair.classifier.bias"])
    leaves = torch.stack([layers(c, p, "", embed(c, p, row), c.causal)[-1][:tokens.shape[1]] for row in tokens])
    tensors["output.classes"], tensors["output.pairs"] = classes, pair
    tensors["output.logits"] = head(c, p, leaves)
    tensors["output.loss"] = loss_of(tensors["output.logits"], targets)
    return tensors["output.loss"] + classes.pow(2).mean() + pair.pow(2).mean()


def translator(c, p, tensors):
    source, tokens = tensors["input.source"], tensors["input.tokens"]
    logits = []
    for row, n, inputs in zip(source, c.lengths, tokens):
        row = row[:n]
        memory = layers(c, p, "encoder.", embed(c, p, row, "encoder.embed.norm"), False)[-1][:n]
        ends = (row == c.sentence_end).long()
        of_source = ends.cumsum(0) - ends  # a sentence's end belongs to it
        begun = (inputs == c.sentence_end).long()
        begun[0] = 0
        of_target = begun.cumsum(0).clamp(max=of_source.max())
        labels = torch.where(of_target[:, None] == of_source[None], 0, -1)
        x = embed(c, p, inputs, "decoder.embed.norm")
        states = layers(c, p, "decoder.", x, True, memory, labels)
        logits.append(head(c, p, states[-1][:len(inputs)]))
    tensors["output.logits"] = torch.stack(logits)
    tensors["output.loss"] = loss_of(tensors["output.logits"], tensors["input.targets"], c.label_smoothing)
    return tensors["output.loss"]


def golden(name):
    c = CASES[name]
    p = random_parameters(shapes(c), seed=len(name), scale=0.4)
    gen = torch.Generator().manual_seed(len(name) * 31 + 7)
    draw = lambda n, vocab=c.vocab: torch.randint(vocab, (len(c.lengths), n), generator=gen)
    tensors = {}
    if c.model == "bp_translator":
        vocab = 6 if c.sentence_end >= 0 else c.vocab  # so that sentences end often
        tensors["input.source"], n = draw(max(c.lengths), vocab), c.targets
        tensors["input.tokens"] = draw(n, vocab)
    else:
        n = max(c.lengths)
        tensors["input.tokens"] = draw(n)
    tensors["input.lengths"] = torch.tensor(c.lengths)
    tensors["input.targets"] = draw(n)
    if n > 1:
        tensors["input.targets"][0, n // 2] = -100
    run = {"bp_transformer": language_model, "bp_encoder": encoder, "bp_translator": translator}[c.model]
    total = run(c, p, tensors)
    return with_gradients(tensors, p, total), c.options()


if __name__ == "__main__":
    main(__doc__, "bp_transformer", CASES, golden)
