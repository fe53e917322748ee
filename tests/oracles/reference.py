"""The Transformer written as plainly as possible, in f64, with explicit [L, T] masks.

Parameters are a flat dictionary from name to tensor. Nothing is fused, cached or skipped, so that
every line can be held against the equation it states. generate.py checks it against PyTorch's own
layers and against GPT-2, BERT and Marian of the transformers package before any file is written.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

IGNORED = -100  # a target that does not count


@dataclass
class Config:
    """The options of models/transformer/transformer.h that these files need, by the same names."""

    wiring: str = "decoder"  # decoder | encoder | encoder_decoder
    n_layer: int = 2
    d_model: int = 16
    n_head: int = 2
    d_head: int = 8
    d_ff: int = 32
    vocab: int = 17
    n_max: int = 16
    norm: str = "pre"  # pre | post
    norm_eps: float = 1e-5
    activation: str = "relu"  # relu | gelu_erf | gelu_tanh | gelu_sigmoid | geglu
    positions: str = "none"  # none | sinusoid | learned | learned_per_layer | shaw
    sinusoid: str = "interleaved"  # interleaved | halves
    shaw_clip: int = 3
    shaw_values: bool = True
    shaw_share_layers: bool = False
    shaw_per_head: bool = False
    shaw_two_sided: bool = True
    local: str = "none"  # none | exact | block
    window: int = 0  # exact: keys seen, self included; block: block length
    qkv_bias: bool = False
    out_bias: bool = False
    head_bias: bool = False
    share_qk: bool = False
    tie_embedding: bool = False
    emb_scale: bool = False  # multiply token embeddings by sqrt(model)
    emb_norm: bool = False
    position_offset: int = 0  # rows of learned tables before position 0
    source_tables: bool = False  # the source has positions and a norm of its own
    d_embed: int = 0  # width of the embedding tables; 0: d_model
    source_vocab: int = 0  # 0: source and target share a table
    token_types: int = 0
    mlm_head: bool = False
    label_smoothing: float = 0.0
    half_loss: bool = False  # only the second half of each segment counts
    layer_loss: bool = False  # every layer predicts
    n_target: int = 1  # tokens ahead that each prediction names
    target_weight: float = 0.5  # of those after the first


def parameter_shapes(c):
    """Every parameter of a configuration: name -> shape. A linear weight is [out, in]."""
    shapes = {}

    def norm(name):
        shapes[name + ".weight"] = shapes[name + ".bias"] = (c.d_model,)

    def linear(name, out, into, bias):
        shapes[name + ".weight"] = (out, into)
        if bias:
            shapes[name + ".bias"] = (out,)

    def attention(name, relative):
        width = c.n_head * c.d_head
        for part in ("q", "v") if c.share_qk and relative else ("q", "k", "v"):
            linear(f"{name}.{part}", width, c.d_model, c.qkv_bias)
        linear(f"{name}.out", c.d_model, width, c.out_bias)
        if relative and c.positions == "shaw" and not c.shaw_share_layers:
            shaw(name)

    def shaw(name):
        table = (2 * c.shaw_clip + 1, c.d_head)
        table = (c.n_head,) + table if c.shaw_per_head else table
        shapes[f"{name}.relative_key.weight"] = table
        if c.shaw_values:
            shapes[f"{name}.relative_value.weight"] = table

    def block(name, cross):
        norm(name + ".norm1")
        attention(name + ".attention", relative=True)
        norm(name + ".norm2")
        if cross:
            attention(name + ".cross", relative=False)
            norm(name + ".norm3")
        linear(name + ".ff.in", c.d_ff * (2 if c.activation == "geglu" else 1), c.d_model, True)
        linear(name + ".ff.out", c.d_model, c.d_ff, True)
        if c.positions == "learned_per_layer":
            shapes[name + ".position.weight"] = (c.n_max, c.d_model)

    def stack(prefix, cross):
        for i in range(c.n_layer):
            block(f"{prefix}layers.{i}", cross)
        if c.positions == "shaw" and c.shaw_share_layers:
            shaw(prefix + "shared")
        if c.norm == "pre":
            norm(prefix + "final_norm")

    width = c.d_embed or c.d_model
    shapes["embed.token.weight"] = (c.vocab, width)
    if c.source_vocab:
        shapes["embed.source.weight"] = (c.source_vocab, width)
    sides = ("", "source_") if c.source_tables else ("",)
    if c.positions == "learned":
        for side in sides:
            shapes[f"embed.{side}position.weight"] = (c.position_offset + c.n_max, c.d_model)
    if c.token_types:
        shapes["embed.type.weight"] = (c.token_types, c.d_model)
    if c.emb_norm:
        for side in sides:
            norm(f"embed.{side}norm")
    if c.d_embed:
        linear("embed.projection", c.d_model, width, False)
    if c.wiring == "encoder_decoder":
        stack("encoder.", cross=False)
        stack("decoder.", cross=True)
    else:
        stack("", cross=False)
    if c.mlm_head:
        linear("mlm.dense", c.d_model, c.d_model, True)
        norm("mlm.norm")
    if c.d_embed:
        linear("head.projection", width, c.d_model, False)
    if not c.tie_embedding:
        shapes["head.weight"] = (c.vocab, width)
    if c.head_bias:
        shapes["head.bias"] = (c.vocab,)
    for layer, further, name in auxiliary_predictions(c):
        if layer < c.n_layer and c.norm == "pre" and not further:
            norm(name.split(".targets")[0] + ".norm")
        linear(name, c.vocab, c.d_model, c.head_bias)
    return shapes


def auxiliary_predictions(c):
    """(layer from 1 on, tokens after the next one, name) of every classifier besides the head."""
    first = 1 if c.layer_loss else c.n_layer
    for layer in range(first, c.n_layer + 1):
        skipped = 1 if layer == c.n_layer else 0  # the head's own
        for further in range(skipped, c.n_target):
            yield layer, further, f"auxiliary.{layer - first}.targets.{further - skipped}"


def random_parameters(c, generator):
    """Large enough that every gradient is far from zero."""
    parameters = {}
    for name, shape in parameter_shapes(c).items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if "norm" in name:
            x = 0.1 * x + (1.0 if name.endswith(".weight") else 0.0)
        else:
            x = 0.3 * x
        parameters[name] = x.requires_grad_()
    return parameters


def linear(p, name, x):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def layer_norm(c, p, name, x):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + c.norm_eps) * p[name + ".weight"] + p[name + ".bias"]


def activation(c, x):
    if c.activation == "relu":
        return torch.relu(x)
    if c.activation == "gelu_erf":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    if c.activation == "gelu_tanh":
        return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if c.activation == "gelu_sigmoid":
        return x * torch.sigmoid(1.702 * x)
    linear_half, gated = x.chunk(2, -1)  # geglu: (first half) * gelu(second half)
    return linear_half * gated * 0.5 * (1 + torch.erf(gated / math.sqrt(2)))


def feed_forward(c, p, name, x):
    return linear(p, name + ".out", activation(c, linear(p, name + ".in", x)))


def sinusoid(c, length):
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-2.0 * torch.arange(c.d_model // 2, dtype=torch.float64) / c.d_model)
    sin, cos = torch.sin(position * rate), torch.cos(position * rate)
    if c.sinusoid == "halves":
        return torch.cat([sin, cos], 1)
    return torch.stack([sin, cos], 2).reshape(length, c.d_model)


def visible(c, length, keys, lengths, causal):
    """[B or 1, 1, L, T], true where query i sees key j."""
    i, j = torch.arange(length)[:, None], torch.arange(keys)[None, :]
    seen = torch.ones(length, keys, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if c.local == "exact":
        seen &= (i - j < c.window) if causal else ((i - j).abs() <= c.window // 2)
    if c.local == "block":
        back = torch.div(i, c.window, rounding_mode="floor")
        back = back - torch.div(j, c.window, rounding_mode="floor")
        seen &= (back == 0) | (back == 1)
    seen = seen[None, None]
    if lengths is not None:
        seen = seen & (j < lengths[:, None, None, None])
    return seen


def attention(c, p, name, x, z, seen, relative):
    """Queries from x, keys and values from z; `relative` names the Shaw tables, if any."""
    batch, length, _ = x.shape
    keys = z.shape[1]

    def heads(y):
        return y.view(batch, -1, c.n_head, c.d_head).transpose(1, 2)

    q = heads(linear(p, name + ".q", x))
    k = heads(linear(p, name + (".k" if name + ".k.weight" in p else ".q"), z))
    v = heads(linear(p, name + ".v", z))
    scores = q @ k.transpose(-1, -2)
    if relative:
        i, j = torch.arange(length)[:, None], torch.arange(keys)[None, :]
        clipped = (j - i).clamp(-c.shaw_clip, c.shaw_clip) + c.shaw_clip

        def table(which):  # [H or 1, L, T, d]
            rows = p[f"{relative}.relative_{which}.weight"]
            return rows[:, clipped] if c.shaw_per_head else rows[clipped][None]

        scores = scores + (q[:, :, :, None] * table("key")).sum(-1)
    scores = scores / math.sqrt(c.d_head)
    # A finite stand-in for -inf and a second masking: a query that sees nothing yields zeros.
    probabilities = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
    out = probabilities @ v
    if relative and c.shaw_values:
        out = out + (probabilities[..., None] * table("value")).sum(-2)
    return linear(p, name + ".out", out.transpose(1, 2).reshape(batch, length, -1))


def block(c, p, name, x, seen, shared, context=None, context_seen=None):
    relative = None
    if c.positions == "shaw":
        relative = shared if c.shaw_share_layers else name + ".attention"
    if c.positions == "learned_per_layer":
        x = x + p[name + ".position.weight"][: x.shape[1]]

    subs = [lambda y: attention(c, p, name + ".attention", y, y, seen, relative)]
    if context is not None:
        subs.append(lambda y: attention(c, p, name + ".cross", y, context, context_seen, None))
    subs.append(lambda y: feed_forward(c, p, name + ".ff", y))

    for i, sub in enumerate(subs):
        norm = f"{name}.norm{i + 1}"
        if c.norm == "pre":
            x = x + sub(layer_norm(c, p, norm, x))
        else:
            x = layer_norm(c, p, norm, x + sub(x))
    return x


def stack(c, p, prefix, x, seen, context=None, context_seen=None):
    """The output, and that of every layer."""
    layers = []
    for i in range(c.n_layer):
        x = block(c, p, f"{prefix}layers.{i}", x, seen, prefix + "shared", context, context_seen)
        layers.append(x)
    return layer_norm(c, p, prefix + "final_norm", x) if c.norm == "pre" else x, layers


def embed(c, p, tokens, types=None, source=False):
    side = "source_" if source and c.source_tables else ""
    x = p[f"embed.{'source' if source and c.source_vocab else 'token'}.weight"][tokens]
    if c.d_embed:
        x = linear(p, "embed.projection", x)
    if c.emb_scale:
        x = x * math.sqrt(c.d_model)
    if c.positions == "sinusoid":
        x = x + sinusoid(c, tokens.shape[1])
    if c.positions == "learned":
        x = x + p[f"embed.{side}position.weight"][c.position_offset:][: tokens.shape[1]]
    if c.token_types:
        x = x + p["embed.type.weight"][types]
    return layer_norm(c, p, f"embed.{side}norm", x) if c.emb_norm else x


def logits_of(c, p, hidden):
    if c.mlm_head:
        gelu = activation(Config(activation=c.activation), linear(p, "mlm.dense", hidden))
        hidden = layer_norm(c, p, "mlm.norm", gelu)
    if c.d_embed:
        hidden = linear(p, "head.projection", hidden)
    y = hidden @ p["embed.token.weight" if c.tie_embedding else "head.weight"].T
    return y + p["head.bias"] if c.head_bias else y


def run(c, p, inputs):
    """hidden, logits and the outputs of all layers for the inputs of a configuration's wiring."""
    lengths = inputs.get("lengths")
    tokens = inputs["tokens"]
    count = tokens.shape[1]
    if c.wiring == "encoder_decoder":
        source = inputs["source"]
        keys = source.shape[1]
        memory, _ = stack(c, p, "encoder.", embed(c, p, source, source=True),
                          visible(c, keys, keys, lengths, causal=False))
        across = visible(Config(), count, keys, lengths, causal=False)
        hidden, layers = stack(c, p, "decoder.", embed(c, p, tokens),
                               visible(c, count, count, None, causal=True), memory, across)
    else:
        seen = visible(c, count, count, lengths, causal=c.wiring == "decoder")
        hidden, layers = stack(c, p, "", embed(c, p, tokens, inputs.get("types")), seen)
    return hidden, logits_of(c, p, hidden), layers


def losses_of(c, p, logits, layers, hidden, targets):
    """The loss, and the sum of the auxiliary ones at the start of training (None without any)."""
    auxiliary = None
    for layer, further, name in auxiliary_predictions(c):
        h = hidden if layer == c.n_layer else layers[layer - 1]
        if layer < c.n_layer and c.norm == "pre":
            h = layer_norm(c, p, name.split(".targets")[0] + ".norm", h)
        weight = c.target_weight if further else 1.0
        term = weight * loss_of(c, linear(p, name, h), targets, further)
        auxiliary = term if auxiliary is None else auxiliary + term
    return loss_of(c, logits, targets), auxiliary


def loss_of(c, logits, targets, further=0):
    """Mean over counted targets of the smoothed negative log-likelihood, in nats. Row i predicts
    the target of row i + further."""
    if c.half_loss:
        logits, targets = (x[:, targets.shape[1] // 2:] for x in (logits, targets))
    logits, targets = logits[:, : targets.shape[1] - further], targets[:, further:]
    log_p = F.log_softmax(logits, -1).flatten(0, 1)
    flat = targets.flatten()
    counted = flat != IGNORED
    picked = -log_p[torch.arange(len(flat)), flat.clamp(min=0)]
    smooth = -log_p.mean(-1)
    each = (1 - c.label_smoothing) * picked + c.label_smoothing * smooth
    return each[counted].mean()
