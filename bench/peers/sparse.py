"""Families of sparse attention in PyTorch, for bench/peers/lengths.py, at the sizes of
bench/family.cc:

    oracle  dense attention under an explicit mask, for families that no package implements
    layer   the attention layers of transformers, with their projections
"""

import math

import torch
import torch.nn.functional as F

from inputs import differentiable, magnitude, values


def places(length):
    at = torch.arange(length)
    return at[:, None], at[None, :]


def stride(length):
    return max(1, math.floor(math.sqrt(length) / 16 + 0.5)) * 16


def fixed(length, heads):
    i, j = places(length)
    l, c = stride(length), 16
    own = i // l == j // l
    masks = []
    for head in range(heads):
        first = l - (head % min(heads, l // c) + 1) * c
        masks.append((j <= i) & (own | (j % l >= first) & (j % l < first + c)))
    return torch.stack(masks)


def strided(length, heads):
    i, j = places(length)
    l = stride(length)
    return ((j <= i) & ((i - j < l) | ((i - j) % l == 0)))[None]


def blockbert(length, heads):
    i, j = places(length)
    n, away = 3, heads // 8
    shifts = [0] * (heads - 2 * away) + [1] * away + [2] * away
    return torch.stack([(i * n // length + s) % n == j * n // length for s in shifts])


def longformer(length, heads):
    i, j = places(length)
    return ((i - j).abs() <= 256)[None]


MASKS = {"fixed": fixed, "strided": strided, "blockbert": blockbert, "longformer": longformer}


def hidden(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def etc_oracle(length, heads, width):
    """Both sides of ETC's attention, each as one dense product under a mask and labels."""
    radius, globals_, k = 84, min(230, length), 12
    share = -(-length // globals_)
    i, j = places(length)
    owner = torch.arange(length) // share
    g = torch.arange(globals_)
    linked = owner[:, None] == g[None, :]  # [n_l, n_g]
    link = torch.where(linked, 2 * k + 2, 2 * k + 1)
    near = (j - i).clamp(-k, k) + k
    among = (g[None, :] - g[:, None]).clamp(-k, k) + k
    ids = [torch.cat([near, link], 1), torch.cat([among, link.t()], 1)]
    full = lambda n, m: torch.ones(n, m, dtype=torch.bool)
    masks = [hidden(torch.cat([(i - j).abs() <= radius, full(length, globals_)], 1)),
             hidden(torch.cat([full(globals_, globals_), linked.t()], 1))]
    inputs = []
    leaf = lambda *shape: inputs.append(values(shape, len(inputs) + 1, 2.0))
    for rows, other in ((length, globals_), (globals_, length)):
        leaf(1, heads, rows, width)  # q
        for keys in (rows, other):
            leaf(1, heads, keys, width)
            leaf(1, heads, keys, width)
        leaf(heads, 32, width)
        leaf(heads, 32)

    def forward(*x):
        out = []
        for side in range(2):
            q, k0, v0, k1, v1, a, b = x[7 * side : 7 * side + 7]
            scores = q @ torch.cat([k0, k1], 2).transpose(-1, -2)
            labels = q @ a.transpose(-1, -2) + b[:, None]  # [1, H, n, ids]
            scores = scores + labels.gather(-1, ids[side].expand(*scores.shape))
            p = (scores / math.sqrt(width) + masks[side]).softmax(-1)
            out.append(p @ torch.cat([v0, v1], 2))
        return out

    return forward, inputs


def several(forward, inputs):
    """As differentiable(.., "both") of a function with several results."""
    leaves = [x.requires_grad_() for x in inputs]
    dy = [values(tuple(y.shape), 90) for y in forward(*inputs)]
    run = lambda: torch.autograd.grad(forward(*inputs), leaves, dy)
    return run, magnitude(run())


def oracle(shape, family, **_):
    """family: of MASKS or etc; "dense" and "causal" have no mask."""
    heads, length, width = shape["heads"], shape["length"], shape["width"]
    if family == "etc":
        return several(*etc_oracle(length, heads, width))
    inputs = [values((1, heads, length, width), s, 2.0) for s in (1, 2, 3)]
    bias = hidden(MASKS[family](length, heads))[None] if family in MASKS else None

    def forward(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias,
                                              is_causal=family == "causal")

    return differentiable(forward, inputs, "both")


WEIGHTS = ("query", "key", "value", "query_global", "key_global", "value_global", "out")


def fill(layers):
    """Sets weights and biases to the values in Longspan's layer."""
    with torch.no_grad():
        for i, name in enumerate(WEIGHTS):
            if name in layers:
                layers[name].weight.copy_(values(tuple(layers[name].weight.shape), 10 + 2 * i, 0.15))
                layers[name].bias.copy_(values(tuple(layers[name].bias.shape), 11 + 2 * i, 0.15))


def sliding_layer(module, out, window, globals_, length):
    """forward(x) of Longformer's or LED's attention; pads as the models do."""
    padded = -(-length // (2 * window)) * 2 * window
    at = torch.arange(padded)[None]
    is_global, absent = at < globals_, at >= length
    mask = torch.where(absent, -10000.0, torch.where(is_global, 10000.0, 0.0))

    def forward(x, *_):
        if padded > length:
            x = F.pad(x, (0, 0, 0, padded - length))
        y = module(x, attention_mask=mask, is_index_masked=absent, is_index_global_attn=is_global,
                   is_global_attn=globals_ > 0)[0]
        return out(y[:, :length])

    return forward


def longformer_layer(family, length, heads, model):
    import transformers
    from transformers.models.led.modeling_led import LEDEncoderSelfAttention
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    window = 512 if family == "led" else 256
    common = {"attention_window": [2 * window]}
    if family == "led":
        config = transformers.LEDConfig(d_model=model, encoder_attention_heads=heads,
                                        attention_dropout=0.0, **common)
        module = LEDEncoderSelfAttention(config, 0)
    else:
        config = transformers.LongformerConfig(hidden_size=model, num_attention_heads=heads,
                                               attention_probs_dropout_prob=0.0, **common)
        module = LongformerSelfAttention(config, 0)
    out = torch.nn.Linear(model, model)
    globals_ = {"led": 1, "longformer": 0, "longformer_globals": 64}[family]
    layers = {n: getattr(module, n) for n in WEIGHTS if hasattr(module, n)} | {"out": out}
    if globals_ == 0:
        layers = {n: x for n, x in layers.items() if "global" not in n}
    return sliding_layer(module, out, window, globals_, length), layers


def bigbird_layer(length, heads, model):
    """Below 5 + 2 r blocks the model has full attention."""
    import transformers
    from transformers.models.big_bird.modeling_big_bird import (
        BigBirdBlockSparseAttention, BigBirdModel, BigBirdSelfAttention)

    config = transformers.BigBirdConfig(
        hidden_size=model, num_attention_heads=heads, block_size=64, num_random_blocks=3,
        attention_probs_dropout_prob=0.0, max_position_embeddings=4096)
    out = torch.nn.Linear(model, model)
    if length <= (5 + 2 * 3) * 64:
        module = BigBirdSelfAttention(config)
        call = lambda x: module(x)[0]
    else:
        module = BigBirdBlockSparseAttention(config, seed=0).train()
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
            torch.ones(1, length), 64)
        call = lambda x: module(x, band, rows, columns, blocked, blocked)[0]
    layers = {"query": module.query, "key": module.key, "value": module.value, "out": out}
    return lambda x, *_: out(call(x)), layers


def layer(shape, family, **_):
    heads, length = shape["heads"], shape["length"]
    model = heads * shape["width"]
    if family == "bigbird":
        forward, layers = bigbird_layer(length, heads, model)
    else:
        forward, layers = longformer_layer(family, length, heads, model)
    fill(layers)
    x = values((1, length, model), 1, 2.0)
    weights = [p for name in WEIGHTS if name in layers
               for p in (layers[name].weight, layers[name].bias)]
    return differentiable(forward, [x, *weights], "both")


WORKLOADS = {"oracle": oracle, "layer": layer}
