#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/routing (README.md says what they hold).

    routing.py           writes them all
    routing.py --check   computes them again and compares with the files

The official code of the Routing Transformer needs TensorFlow 1. The model is written plainly: every
group has a mask of all pairs of tokens, every centroid is followed by a loop. The settings are those of
the authors' code (official), of lucidrains' routing-transformer (lucid), and the engine's own.
"""

from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F

from streams import main, random_parameters, streams_of, with_gradients


@dataclass(frozen=True)
class Routing:
    """The options of models/routing/routing.h that these files need."""
    vocab: int = 17
    n_layer: int = 2
    d_model: int = 12
    d_ff: int = 10
    local_heads: int = 1
    routing_heads: int = 2
    d_head: int = 5
    routing_layers: int = -1
    clusters: int = 3
    window: int = 6
    local_block: int = 4
    share_qk: bool = True
    select: str = "topw"
    norm_qk: str = "ln0"
    logit_scale: str = "none"
    mask_self: bool = False
    scatter_eps: float = 0
    head_mix: bool = False
    local_clip: int = 5
    routing_clip: int = 3
    ema: str = "spherical"
    decay: float = 0.7
    commitment: float = 0.3
    d_embed: int = 0
    qk_norm_eps: float = 1e-6
    local_values: bool = False
    activation: str = "geglu"
    ff_bias: bool = True
    norm: str = "pre"
    norm_eps: float = 1e-5

    def routes(self, i):
        return self.routing_heads > 0 and (self.routing_layers < 0 or i >= self.n_layer - self.routing_layers)

    def heads(self, i):
        """Local and routing heads of layer i."""
        both = self.local_heads + self.routing_heads
        return (self.local_heads, self.routing_heads) if self.routes(i) else (both, 0)


# The authors' code divides queries by sqrt(d) before their norm, whose epsilon is 1e-6 there.
OFFICIAL = dict(scatter_eps=1e-2, head_mix=True, ema="counts_raw", local_values=True, activation="geglu_tanh",
                ff_bias=False, norm_eps=1e-6, qk_norm_eps=1e-6 * 5)
LUCID = dict(norm_qk="unit_keys", logit_scale="rsqrt_d", mask_self=True, scatter_eps=1e-5, ema="lucid",
             routing_clip=-1)

CASES = {
    "plain": Routing(),
    "official": Routing(d_embed=7, **OFFICIAL),
    "lucid": Routing(**LUCID),
    "separate": Routing(share_qk=False),
    "separate_official": Routing(share_qk=False, d_embed=12, **OFFICIAL),
    "norm_behind": Routing(norm="post", local_values=True, d_embed=15),
    "paper_sum": Routing(ema="paper_sum", share_qk=False, logit_scale="rsqrt_d"),
    "last_layer": Routing(n_layer=3, routing_layers=1, local_heads=2, routing_heads=1),
    "recent": Routing(select="argmax_recent"),
    "recent_short": Routing(select="argmax_recent", window=2, clusters=4, mask_self=True),
    "self_masked": Routing(mask_self=True, logit_scale="rsqrt_d"),
    "pure": Routing(local_heads=0, routing_heads=2, clusters=2, window=40),
    "no_positions": Routing(local_clip=-1, routing_clip=-1, clusters=1, window=5),
}


def shapes(c):
    """name -> shape of every parameter."""
    d = c.d_head
    width = c.d_embed or c.d_model
    all = {"embed.token.weight": (c.vocab, width)}
    if c.d_embed:
        all["embed.projection.weight"], all["embed.projection.bias"] = (c.d_model, width), (c.d_model,)
    if width != c.d_model:
        all["head.projection.weight"], all["head.projection.bias"] = (width, c.d_model), (width,)
    for i in range(c.n_layer):
        at = f"layers.{i}.attention."
        local, routing = c.heads(i)
        for n in "12":
            all[f"layers.{i}.norm{n}.weight"] = all[f"layers.{i}.norm{n}.bias"] = (c.d_model,)
        if local:
            all[at + "local_q.weight"] = all[at + "local_k.weight"] = (local * d, c.d_model)
            if c.local_clip >= 0:
                all[at + "local.relative_key.weight"] = (c.local_clip + 1, d)
            if c.local_values:
                all[at + "local.relative_value.weight"] = (c.local_clip + 1, d)
        if routing:
            all[at + "q.weight"] = (routing * d, c.d_model)
            if not c.share_qk:
                all[at + "k.weight"] = (routing * d, c.d_model)
            if c.routing_clip >= 0:
                rows = c.routing_clip + 1 if c.share_qk else 2 * c.routing_clip + 1
                all[at + "routing.relative_key.weight"] = (rows, d)
                all[at + "routing.relative_value.weight"] = (rows, d)
        all[at + "v.weight"] = ((local + routing) * d, c.d_model)
        all[at + "out.weight"] = (c.d_model, (local + routing) * d)
        if c.head_mix:
            all[at + "mix.weight"] = (d, d)
        at = f"layers.{i}.ff."
        all[at + "in.weight"], all[at + "out.weight"] = (2 * c.d_ff, c.d_model), (c.d_model, c.d_ff)
        if c.ff_bias:
            all[at + "in.bias"], all[at + "out.bias"] = (2 * c.d_ff,), (c.d_model,)
    if c.norm == "pre":
        all["final_norm.weight"] = all["final_norm.bias"] = (c.d_model,)
    all["head.weight"], all["head.bias"] = (c.vocab, width), (c.vocab,)
    return all


def first_centroids(c, seed):
    """Of each layer with routing heads: directions of length sqrt(d), or 1 with unit keys."""
    gen = torch.Generator().manual_seed(seed)
    all = {}
    for i in range(c.n_layer):
        if c.routes(i):
            x = torch.randn(c.routing_heads, c.clusters, c.d_head, generator=gen, dtype=torch.float64)
            all[i] = F.normalize(x, dim=-1) * (1 if c.norm_qk == "unit_keys" else c.d_head ** 0.5)
    return all


def local_heads(c, p, i, x, v):
    """x [B, L, D], v [B, H, L, d] -> [B, H, L, d]."""
    at, d, length = f"layers.{i}.attention.", c.d_head, x.shape[1]
    split = lambda w: F.linear(x, p[at + w]).unflatten(-1, (-1, d)).transpose(1, 2)
    q, k = split("local_q.weight"), split("local_k.weight")
    t = torch.arange(length)
    score = q @ k.transpose(-1, -2)
    if c.local_clip >= 0:
        table = p[at + "local.relative_key.weight"]
        row = (t[None] - t[:, None]).clamp(-c.local_clip, 0) + c.local_clip
        score = score + torch.einsum("bhid,ijd->bhij", q, table[row])
    blocks = t[:, None] // c.local_block - t[None] // c.local_block
    seen = (t[None] <= t[:, None]) & (blocks <= 1)
    share = (score / d ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    out = share @ v
    if c.local_values:
        out = out + torch.einsum("bhij,ijd->bhid", share, p[at + "local.relative_value.weight"][row])
    return out


def best(scores, w):
    """The positions of the w largest scores, of equal ones the first, ascending."""
    order = sorted(range(len(scores)), key=lambda t: (-scores[t].item(), t))
    return sorted(order[:w])


def attend(c, p, i, q, k, v, queries, keys):
    """One group: q, k, v [L, d] -> rows of the queries. Ranks are places in the lists."""
    at, d = f"layers.{i}.attention.", c.d_head
    rows, columns = torch.tensor(queries), torch.tensor(keys)
    score = q[rows] @ k[columns].T
    value = v[columns][None].expand(len(queries), -1, -1)
    rank = torch.arange(len(keys))[None] - torch.arange(len(queries))[:, None]
    if c.routing_clip >= 0:
        row = rank.clamp(-c.routing_clip, 0 if c.share_qk else c.routing_clip) + c.routing_clip
        score = score + torch.einsum("id,ijd->ij", q[rows], p[at + "routing.relative_key.weight"][row])
        value = value + p[at + "routing.relative_value.weight"][row]
    if c.logit_scale == "rsqrt_d":
        score = score / d ** 0.5
    if c.mask_self:
        score = score.masked_fill(rows[:, None] == columns[None], -5e4)
    seen = columns[None] <= rows[:, None]
    if c.select == "argmax_recent":
        seen = seen & (rank > -c.window)
    weight = score.masked_fill(~seen, -1e30).softmax(-1) * seen  # a row may see no key
    return torch.einsum("ij,ijd->id", weight, value)


def routing_heads(c, p, i, x, v, mu):
    """x [B, L, D], v [B, H, L, d] -> [B, H, L, d], x^ of queries and keys, and their nearest centroids."""
    at = f"layers.{i}.attention."
    split = lambda w: F.linear(x, p[at + w]).unflatten(-1, (-1, c.d_head)).transpose(1, 2)
    q = split("q.weight")
    return routed(c, p, i, q, q if c.share_qk else split("k.weight"), v, mu)


def routed(c, p, i, q, k, v, mu):
    """The same for projected queries and keys [B, H, L, d]."""
    d, length = c.d_head, q.shape[2]
    if c.norm_qk == "ln0":
        q, k = (F.layer_norm(t, (d,), eps=c.qk_norm_eps) for t in (q, k))
    else:
        k = F.normalize(k, dim=-1)
    clustered = q if c.norm_qk == "ln0" else k
    of_queries, of_keys = (torch.einsum("bhld,hkd->bhlk", t.detach(), mu) for t in (clustered, k))
    nearest_q, nearest_k = of_queries.argmax(-1), of_keys.argmax(-1)
    result = []
    for b in range(v.shape[0]):
        for h in range(v.shape[1]):
            total, n = torch.zeros(length, d, dtype=v.dtype), torch.zeros(length, 1, dtype=v.dtype)
            for cluster in range(c.clusters):
                if c.select == "topw":
                    queries = best(of_queries[b, h, :, cluster], c.window)
                    keys = queries if c.share_qk else best(of_keys[b, h, :, cluster], c.window)
                else:
                    queries = keys = (nearest_q[b, h] == cluster).nonzero()[:, 0].tolist()
                if queries:
                    o = attend(c, p, i, q[b, h], k[b, h], v[b, h], queries, keys)
                    total = total.index_add(0, torch.tensor(queries), o)
                    n[queries] += 1
            result.append(torch.where(n > 0, total / (n + c.scatter_eps).clamp(min=1e-30), 0.0))
    out = torch.stack(result).view(v.shape)
    kinds = [(clustered, nearest_q)] if c.share_qk else [(q, nearest_q), (k, nearest_k)]
    return out, kinds


def committed(c, kinds, mu):
    """Queries and keys; shared ones count twice, but once where they are normalised as keys alone."""
    heads = torch.arange(mu.shape[0])[None, :, None]
    parts = [(x - mu[heads, nearest]).square().mean() for x, nearest in kinds]
    if not c.share_qk:
        return c.commitment * (parts[0] + parts[1])
    return c.commitment * parts[0] * (2 if c.norm_qk == "ln0" else 1)


def followed(c, kinds, mu):
    """The centroids after one step, by a loop over clusters and members."""
    d, k, l = c.d_head, c.clusters, c.decay
    result = mu.clone()
    for h in range(mu.shape[0]):
        start = 0.0 if c.ema == "counts_raw" else 1.0
        n, total, now = [start] * k, [mu[h, j].clone() for j in range(k)], [mu[h, j].clone() for j in range(k)]
        members = []
        for x, nearest in kinds:
            members.append([[x[b, h, t].detach() for b in range(x.shape[0]) for t in range(x.shape[2])
                             if nearest[b, h, t] == j] for j in range(k)])
        zero = torch.zeros(d, dtype=mu.dtype)
        if c.ema == "paper_sum":
            of_q, of_k = members[0], members[-1]
            for j in range(k):
                now[j] = l * now[j] + (1 - l) / 2 * sum(of_q[j], zero) + (1 - l) / 2 * sum(of_k[j], zero)
        elif c.ema == "lucid":
            for j in range(k):
                joint = sum((m for own in members for m in own[j]), zero)
                if any(own[j] for own in members):
                    now[j] = l * now[j] + (1 - l) * joint / joint.norm()
                else:
                    now[j] = l * now[j] + (1 - l) * now[j]
        else:
            for own in members:
                for j in range(k):
                    n[j] = l * n[j] + (1 - l) * len(own[j])
                    total[j] = l * total[j] + (1 - l) * sum(own[j], zero)
                for j in range(k):
                    smooth = (n[j] + 1e-5) / (sum(n) + k * 1e-5) * sum(n)
                    now[j] = total[j] / smooth if c.ema == "counts_raw" else \
                        total[j] / total[j].norm() * d ** 0.5
        result[h] = torch.stack(now)
    return result


def run(c, p, centroids, tokens):
    """Logits, hidden states, the commitment loss, and the centroids after one step."""
    affine = lambda name, x: F.linear(x, p[name + ".weight"], p.get(name + ".bias"))
    norm = lambda name, x: F.layer_norm(x, (c.d_model,), p[name + ".weight"], p[name + ".bias"], c.norm_eps)
    before = norm if c.norm == "pre" else lambda name, x: x
    behind = norm if c.norm == "post" else lambda name, x: x
    x, loss, after = p["embed.token.weight"][tokens], torch.zeros((), dtype=torch.float64), {}
    if c.d_embed:
        x = affine("embed.projection", x)
    for i in range(c.n_layer):
        at = f"layers.{i}."
        local, routing = c.heads(i)
        y = before(at + "norm1", x)
        v = F.linear(y, p[at + "attention.v.weight"]).unflatten(-1, (-1, c.d_head)).transpose(1, 2)
        heads = []
        if local:
            heads.append(local_heads(c, p, i, y, v[:, :local]))
        if routing:
            out, kinds = routing_heads(c, p, i, y, v[:, local:], centroids[i])
            heads.append(out)
            loss = loss + committed(c, kinds, centroids[i])
            after[i] = followed(c, kinds, centroids[i])
        all = torch.cat(heads, 1)
        if c.head_mix:
            all = F.linear(all, p[at + "attention.mix.weight"])
        x = behind(at + "norm1", x + affine(at + "attention.out", all.transpose(1, 2).flatten(2)))
        a, b = affine(at + "ff.in", before(at + "norm2", x)).chunk(2, -1)
        gate = F.gelu(b, approximate="tanh" if c.activation == "geglu_tanh" else "none")
        x = behind(at + "norm2", x + affine(at + "ff.out", a * gate))
    hidden = before("final_norm", x)
    last = affine("head.projection", hidden) if c.d_embed not in (0, c.d_model) else hidden
    return affine("head", last), hidden, loss, after


def golden(name):
    c = CASES[name]
    p = random_parameters(shapes(c), len(name) * 13 + 5, 0.4)
    centroids = first_centroids(c, len(name))
    tokens, targets = streams_of(name, c.vocab, 2, 19, [(0, 3), (1, 18)])
    logits, hidden, commitment, after = run(c, p, centroids, tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    tensors = {"input.tokens": tokens, "input.targets": targets, "output.logits": logits,
               "output.hidden": hidden, "output.loss": loss, "output.commitment": commitment}
    for i in centroids:
        tensors[f"before.layers.{i}.attention.centroids.means"] = centroids[i]
        tensors[f"after.layers.{i}.attention.centroids.means"] = after[i]
    return with_gradients(tensors, p, loss + commitment), asdict(c)


def held_against_package():
    """The heads of lucidrains' routing-transformer: outputs, gradients, loss and centroids agree."""
    from routing_transformer.routing_transformer import KmeansAttention

    c = replace(CASES["lucid"], commitment=1.0)
    gen = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(shape, generator=gen, dtype=torch.float64)
    q, v, dy = (draw(3, c.routing_heads, 19, c.d_head) for _ in range(3))
    mu = F.normalize(draw(c.routing_heads, c.clusters, c.d_head), dim=-1)
    theirs = KmeansAttention(c.clusters, c.window, c.routing_heads, c.d_head, causal=True, ema_decay=c.decay,
                             commitment=c.commitment, shared_qk=True).double().train()
    theirs.kmeans.means.copy_(mu)
    theirs.kmeans.initted.fill_(True)
    results = []
    for of in ("package", "here"):
        a, b = q.clone().requires_grad_(), v.clone().requires_grad_()
        if of == "package":
            out, loss = theirs(a, a, b)
            theirs.kmeans.update()
            after = theirs.kmeans.means
        else:
            out, kinds = routed(c, {}, 0, a, a, b, mu)
            loss, after = committed(c, kinds, mu), followed(c, kinds, mu)
        results.append([out, loss, after, *torch.autograd.grad((out * dy).sum() + loss, [a, b])])
    for x, y in zip(*results):
        if (x - y).abs().max() > 1e-11:
            raise RuntimeError("routing-transformer computes something else")


if __name__ == "__main__":
    held_against_package()
    torch.set_num_threads(1)
    main(__doc__.splitlines()[0], "routing", CASES, golden)
