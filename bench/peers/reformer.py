"""Reformer in transformers, for bench/peers/compare.py."""

import ctypes
import gc

import torch


def resident(field):
    """VmRSS or VmHWM of this process, in bytes."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field))


def forget_freed():
    """Gives the system what earlier workloads of this process have freed: it would count as lived before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def begin_peak():
    """Resets the peak of this process's memory. Returns False if it cannot, and the peak includes
    earlier workloads."""
    try:
        with open("/proc/self/clear_refs", "w") as marks:
            marks.write("5")
    except OSError:
        return False
    return True


def reformer_step(shape, variant, **_):
    """One training step of ReformerModelWithLMHead: forward, backward, AdamW. Without dropout; as
    bench/worker.cc has it. With the variants "autocast" and "autocast-both", the
    forward pass computes in bf16 what autocast says, or both passes, also what the backward pass runs
    again. The peak is measured in the second step, less the memory in use before the model."""
    from transformers import ReformerConfig, ReformerModelWithLMHead

    torch.manual_seed(0)
    length, vocabulary, model = shape["length"], shape["vocabulary"], shape["model"]
    forget_freed()
    before = resident("VmRSS")
    config = ReformerConfig(
        attn_layers=["local", "lsh"] * (shape["layers"] // 2), vocab_size=vocabulary,
        hidden_size=model, feed_forward_size=2 * model, num_attention_heads=shape["heads"],
        attention_head_size=shape["width"], num_hashes=shape["rounds"], is_decoder=True,
        axial_pos_shape=[128, length // 128], axial_pos_embds_dim=[model // 4, 3 * model // 4],
        max_position_embeddings=length, use_cache=False, hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0)
    net = ReformerModelWithLMHead(config).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    tokens = (torch.arange(length) * 7919 % vocabulary).view(1, length)
    targets = (tokens + 7919) % vocabulary

    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant.startswith("autocast")):
            logits = net(tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            if variant == "autocast-both":
                loss.backward()
        if variant != "autocast-both":
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    check = run().item()
    if begin_peak():
        run()
        run.peak_bytes = resident("VmHWM") - before
    return run, check


WORKLOADS = {"reformer_step": reformer_step}
