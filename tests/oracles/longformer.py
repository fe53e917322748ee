"""Longformer and LED written plainly, in f64, with explicit [L, T] masks: the two formulas of the
README for rows that are global and rows that are not. Parameters are a flat dictionary from name to
tensor. long_documents.py checks it against the transformers package."""

import math
from dataclasses import dataclass

import torch

from reference import Config, activation, layer_norm, linear, stack, visible


@dataclass
class Longformer:
    """The options of models/longformer/longformer.h that these files need, by the same names."""

    n_layer: int = 2
    d_model: int = 16
    n_head: int = 2
    d_ff: int = 32
    vocab: int = 23
    n_max: int = 48
    position_offset: int = 2
    token_types: int = 1
    norm_eps: float = 1e-5
    activation: str = "gelu_erf"
    one_sided_window: tuple = (3,)
    dilation: tuple = (1,)
    dilated_heads: int = 2
    mlm_head: bool = True
    dropout: float = 0.0


def parameter_shapes(c):
    """Every parameter of a Longformer: name -> shape."""
    d, shapes = c.d_model, {}

    def norm(name):
        shapes[name + ".weight"] = shapes[name + ".bias"] = (d,)

    def dense(name, out=d, into=d):
        shapes[name + ".weight"], shapes[name + ".bias"] = (out, into), (out,)

    shapes["embed.token.weight"] = (c.vocab, d)
    shapes["embed.position.weight"] = (c.position_offset + c.n_max, d)
    shapes["embed.type.weight"] = (c.token_types, d)
    norm("embed.norm")
    for i in range(c.n_layer):
        layer = f"layers.{i}"
        for part in ("q", "k", "v", "out", "q_global", "k_global", "v_global"):
            dense(f"{layer}.attention.{part}")
        norm(f"{layer}.norm1")
        dense(f"{layer}.ff.in", c.d_ff, d)
        dense(f"{layer}.ff.out", d, c.d_ff)
        norm(f"{layer}.norm2")
    dense("mlm.dense")
    norm("mlm.norm")
    shapes["head.bias"] = (c.vocab,)
    return shapes


def of_layer(values, i):
    return values[min(i, len(values) - 1)]


def longformer_attention(c, p, name, x, lengths, is_global, i):
    """x [B, L, D]; is_global [B, L]; window and dilation of layer i."""
    batch, length, width = x.shape
    d = width // c.n_head
    reach, stride = of_layer(c.one_sided_window, i), of_layer(c.dilation, i)
    valid = torch.arange(length) < lengths[:, None]  # [B, L]
    is_global = is_global & valid
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    heads = []
    for h in range(c.n_head):
        s = stride if h < c.dilated_heads else 1
        heads.append((distance.abs() <= reach * s) & (distance % s == 0))
    near = torch.stack(heads)[None]  # [1, H, L, L]
    seen = (near | is_global[:, None, None, :]) & valid[:, None, None, :]

    def project(part):
        return linear(p, f"{name}.{part}", x).view(batch, length, c.n_head, d).transpose(1, 2)

    def attend(q, k, v, mask):
        scores = (q / math.sqrt(d)) @ k.transpose(-1, -2)
        return (torch.softmax(scores.masked_fill(~mask, -1e30), -1) * mask) @ v

    local = attend(project("q"), project("k"), project("v"), seen)
    all_valid = valid[:, None, None, :].expand(seen.shape)
    wide = attend(project("q_global"), project("k_global"), project("v_global"), all_valid)
    y = torch.where(is_global[:, None, :, None], wide, local)
    y = y.transpose(1, 2).reshape(batch, length, width)
    return linear(p, name + ".out", y * valid[:, :, None])


def feed_forward(c, p, name, x):
    return linear(p, name + ".out", activation(c, linear(p, name + ".in", x)))


def longformer(c, p, tokens, lengths, is_global):
    """hidden and logits of the masked-token head."""
    x = p["embed.token.weight"][tokens] + p["embed.type.weight"][0]
    x = x + p["embed.position.weight"][c.position_offset :][: tokens.shape[1]]
    x = layer_norm(c, p, "embed.norm", x)
    for i in range(c.n_layer):
        layer = f"layers.{i}"
        y = longformer_attention(c, p, layer + ".attention", x, lengths, is_global, i)
        x = layer_norm(c, p, layer + ".norm1", x + y)
        x = layer_norm(c, p, layer + ".norm2", x + feed_forward(c, p, layer + ".ff", x))
    h = layer_norm(c, p, "mlm.norm", activation(c, linear(p, "mlm.dense", x)))
    return x, h @ p["embed.token.weight"].T + p["head.bias"]


@dataclass
class Led:
    """The options of models/longformer/led.h that these files need, by the same names."""

    n_layer: int = 2
    d_model: int = 16
    n_head: int = 2
    d_ff: int = 32
    vocab: int = 23
    n_max: int = 48
    n_max_target: int = 24
    position_offset: int = 0
    norm_eps: float = 1e-5
    activation: str = "gelu_erf"
    one_sided_window: tuple = (3,)
    dilation: tuple = (1,)
    dilated_heads: int = 2
    dropout: float = 0.0


def led_decoder(c):
    """Its decoder as a configuration of reference.py."""
    return Config(wiring="encoder_decoder", n_layer=c.n_layer, d_model=c.d_model, n_head=c.n_head,
                  d_head=c.d_model // c.n_head, d_ff=c.d_ff, vocab=c.vocab, norm="post",
                  norm_eps=c.norm_eps, activation=c.activation, qkv_bias=True, out_bias=True)


def led_shapes(c):
    """Every parameter of an LED: name -> shape."""
    d, shapes = c.d_model, {}

    def norm(name):
        shapes[name + ".weight"] = shapes[name + ".bias"] = (d,)

    def dense(name, out=d, into=d):
        shapes[name + ".weight"], shapes[name + ".bias"] = (out, into), (out,)

    shapes["embed.token.weight"] = (c.vocab, d)
    for side, n in (("", c.n_max_target), ("source_", c.n_max)):
        shapes[f"embed.{side}position.weight"] = (c.position_offset + n, d)
        norm(f"embed.{side}norm")
    for i in range(c.n_layer):
        for where in ("encoder", "decoder"):
            layer = f"{where}.layers.{i}"
            parts = ("q", "k", "v", "out")
            more = ("q_global", "k_global", "v_global") if where == "encoder" else ()
            for part in parts + more:
                dense(f"{layer}.attention.{part}")
            if where == "decoder":
                for part in parts:
                    dense(f"{layer}.cross.{part}")
                norm(f"{layer}.norm3")
            norm(f"{layer}.norm1")
            norm(f"{layer}.norm2")
            dense(f"{layer}.ff.in", c.d_ff, d)
            dense(f"{layer}.ff.out", d, c.d_ff)
    shapes["head.bias"] = (c.vocab,)
    return shapes


def led(c, p, source, lengths, is_global, tokens):
    """hidden and logits of the decoder."""

    def embed(side, ids):
        x = p["embed.token.weight"][ids]
        x = x + p[f"embed.{side}position.weight"][c.position_offset :][: ids.shape[1]]
        return layer_norm(c, p, f"embed.{side}norm", x)

    x = embed("source_", source)
    for i in range(c.n_layer):
        layer = f"encoder.layers.{i}"
        y = longformer_attention(c, p, layer + ".attention", x, lengths, is_global, i)
        x = layer_norm(c, p, layer + ".norm1", x + y)
        x = layer_norm(c, p, layer + ".norm2", x + feed_forward(c, p, layer + ".ff", x))
    d = led_decoder(c)
    across = visible(Config(), tokens.shape[1], source.shape[1], lengths, causal=False)
    seen = visible(Config(), tokens.shape[1], tokens.shape[1], None, causal=True)
    y, _ = stack(d, p, "decoder.", embed("", tokens), seen, x, across)
    return y, y @ p["embed.token.weight"].T + p["head.bias"]
