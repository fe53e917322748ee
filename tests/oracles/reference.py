"""The Transformer written as plainly as possible, in f64, with explicit [L, T] masks.

Parameters are a flat dictionary from name to tensor. Nothing is fused, cached or skipped, so that
every line can be held against the equation it states. generate.py checks it against PyTorch's own
layers and against GPT-2 and BERT of the transformers package before any file is written.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

IGNORED = -100  # a target that does not count


@dataclass
class Config:
    kind: str = "decoder"  # decoder | encoder | encoder_decoder
    layers: int = 2
    model: int = 16
    heads: int = 2
    head_width: int = 8
    inner: int = 32
    vocabulary: int = 17
    max_length: int = 16
    norm: str = "pre"  # pre | post
    norm_eps: float = 1e-5
    activation: str = "relu"  # relu | gelu_erf | gelu_tanh | gelu_sigmoid | geglu
    position: str = "none"  # none | sinusoid | learned | learned_per_layer | shaw
    sinusoid_layout: str = "interleaved"  # interleaved | halves
    shaw_clip: int = 3
    shaw_values: bool = True
    shaw_share_layers: bool = False
    shaw_per_head: bool = False
    local: str = "none"  # none | exact | block
    window: int = 0  # exact: keys seen, self included; block: block length
    qkv_bias: bool = False
    out_bias: bool = False
    head_bias: bool = False
    share_qk: bool = False
    tie_embedding: bool = False
    embedding_scale: bool = False  # multiply token embeddings by sqrt(model)
    embedding_norm: bool = False
    token_types: int = 0
    mlm_head: bool = False
    label_smoothing: float = 0.0


def parameter_shapes(c):
    """Every parameter of a configuration: name -> shape. A linear weight is [out, in]."""
    shapes = {}

    def norm(name):
        shapes[name + ".weight"] = shapes[name + ".bias"] = (c.model,)

    def linear(name, out, into, bias):
        shapes[name + ".weight"] = (out, into)
        if bias:
            shapes[name + ".bias"] = (out,)

    def attention(name, relative):
        width = c.heads * c.head_width
        for part in ("q", "v") if c.share_qk and relative else ("q", "k", "v"):
            linear(f"{name}.{part}", width, c.model, c.qkv_bias)
        linear(f"{name}.out", c.model, width, c.out_bias)
        if relative and c.position == "shaw" and not c.shaw_share_layers:
            shaw(name)

    def shaw(name):
        table = (2 * c.shaw_clip + 1, c.head_width)
        table = (c.heads,) + table if c.shaw_per_head else table
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
        linear(name + ".ff.in", c.inner * (2 if c.activation == "geglu" else 1), c.model, True)
        linear(name + ".ff.out", c.model, c.inner, True)
        if c.position == "learned_per_layer":
            shapes[name + ".position.weight"] = (c.max_length, c.model)

    def stack(prefix, cross):
        for i in range(c.layers):
            block(f"{prefix}layers.{i}", cross)
        if c.position == "shaw" and c.shaw_share_layers:
            shaw(prefix + "shared")
        if c.norm == "pre":
            norm(prefix + "final_norm")

    shapes["embed.token.weight"] = (c.vocabulary, c.model)
    if c.position == "learned":
        shapes["embed.position.weight"] = (c.max_length, c.model)
    if c.token_types:
        shapes["embed.type.weight"] = (c.token_types, c.model)
    if c.embedding_norm:
        norm("embed.norm")
    if c.kind == "encoder_decoder":
        stack("encoder.", cross=False)
        stack("decoder.", cross=True)
    else:
        stack("", cross=False)
    if c.mlm_head:
        linear("mlm.dense", c.model, c.model, True)
        norm("mlm.norm")
    if not c.tie_embedding:
        shapes["head.weight"] = (c.vocabulary, c.model)
    if c.head_bias:
        shapes["head.bias"] = (c.vocabulary,)
    return shapes


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
    rate = 10000.0 ** (-2.0 * torch.arange(c.model // 2, dtype=torch.float64) / c.model)
    sin, cos = torch.sin(position * rate), torch.cos(position * rate)
    if c.sinusoid_layout == "halves":
        return torch.cat([sin, cos], 1)
    return torch.stack([sin, cos], 2).reshape(length, c.model)


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
        return y.view(batch, -1, c.heads, c.head_width).transpose(1, 2)

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
    scores = scores / math.sqrt(c.head_width)
    # A finite stand-in for -inf and a second masking: a query that sees nothing yields zeros.
    probabilities = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
    out = probabilities @ v
    if relative and c.shaw_values:
        out = out + (probabilities[..., None] * table("value")).sum(-2)
    return linear(p, name + ".out", out.transpose(1, 2).reshape(batch, length, -1))


def block(c, p, name, x, seen, shared, context=None, context_seen=None):
    relative = None
    if c.position == "shaw":
        relative = shared if c.shaw_share_layers else name + ".attention"
    if c.position == "learned_per_layer":
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
    for i in range(c.layers):
        x = block(c, p, f"{prefix}layers.{i}", x, seen, prefix + "shared", context, context_seen)
    return layer_norm(c, p, prefix + "final_norm", x) if c.norm == "pre" else x


def embed(c, p, tokens, types=None):
    x = p["embed.token.weight"][tokens]
    if c.embedding_scale:
        x = x * math.sqrt(c.model)
    if c.position == "sinusoid":
        x = x + sinusoid(c, tokens.shape[1])
    if c.position == "learned":
        x = x + p["embed.position.weight"][: tokens.shape[1]]
    if c.token_types:
        x = x + p["embed.type.weight"][types]
    return layer_norm(c, p, "embed.norm", x) if c.embedding_norm else x


def logits_of(c, p, hidden):
    if c.mlm_head:
        gelu = activation(Config(activation=c.activation), linear(p, "mlm.dense", hidden))
        hidden = layer_norm(c, p, "mlm.norm", gelu)
    y = hidden @ p["embed.token.weight" if c.tie_embedding else "head.weight"].T
    return y + p["head.bias"] if c.head_bias else y


def run(c, p, inputs):
    """hidden and logits for the inputs of a configuration's kind."""
    lengths = inputs.get("lengths")
    tokens = inputs["tokens"]
    count = tokens.shape[1]
    if c.kind == "encoder_decoder":
        source = inputs["source"]
        keys = source.shape[1]
        memory = stack(c, p, "encoder.", embed(c, p, source),
                       visible(c, keys, keys, lengths, causal=False))
        across = visible(Config(), count, keys, lengths, causal=False)
        hidden = stack(c, p, "decoder.", embed(c, p, tokens),
                       visible(c, count, count, None, causal=True), memory, across)
    else:
        seen = visible(c, count, count, lengths, causal=c.kind == "decoder")
        hidden = stack(c, p, "", embed(c, p, tokens, inputs.get("types")), seen)
    return hidden, logits_of(c, p, hidden)


def loss_of(c, logits, targets):
    """Mean over counted targets of the smoothed negative log-likelihood, in nats."""
    log_p = F.log_softmax(logits, -1).flatten(0, 1)
    flat = targets.flatten()
    counted = flat != IGNORED
    picked = -log_p[torch.arange(len(flat)), flat.clamp(min=0)]
    smooth = -log_p.mean(-1)
    each = (1 - c.label_smoothing) * picked + c.label_smoothing * smooth
    return each[counted].mean()
