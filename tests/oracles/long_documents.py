#!/usr/bin/env python3
"""Writes the golden files of tests/oracles/long_documents (README.md says what they hold).

    long_documents.py           writes them all
    long_documents.py --check   computes them again and compares with the files
"""

import argparse
import os
import sys
import warnings

import torch

import golden_file
from generate import BART, bart, bart_inputs, bart_names, options_of, randomise, trained, translate

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "long_documents")

# beams, no_repeat_ngram, min_count, stop_early, count, length_penalty
SEARCHES = [
    (1, 0, 0, 1, 9, 1.0),
    (2, 0, 0, 0, 12, 1.0),
    (4, 0, 0, 0, 12, 0.0),
    (4, 2, 0, 1, 12, 2.0),
    (3, 1, 4, 0, 9, -0.5),
    (5, 3, 2, 1, 13, 0.6),
]


def golden_beams():
    """All beams of generate() of the package's BART, whose logits it takes to f32."""
    model = bart().double().eval()
    randomise(model, torch.Generator().manual_seed(542))
    with torch.no_grad():
        model.model.shared.weight *= 2.5  # not all alike
    inputs = bart_inputs(9, 541)
    mask = (torch.arange(11) < inputs["lengths"][:, None]).long()
    tensors = {"input.source": inputs["source"], "input.lengths": inputs["lengths"]}
    for name, x in translate(model, bart_names(), trained(model)).items():
        tensors[f"parameter.{name}"] = x
    for i, (beams, ngram, least, early, count, penalty) in enumerate(SEARCHES):
        out = model.generate(
            input_ids=inputs["source"], attention_mask=mask, num_beams=max(beams, 2),
            num_return_sequences=beams, no_repeat_ngram_size=ngram, min_length=least + 1,
            max_length=count + 1, length_penalty=penalty, early_stopping=bool(early),
            do_sample=False, return_dict_in_generate=True, output_scores=True) \
            if beams > 1 else model.generate(
                input_ids=inputs["source"], attention_mask=mask, num_beams=1, do_sample=False,
                max_length=count + 1, return_dict_in_generate=True)
        sequences = out.sequences.view(2, beams, -1)[:, :, 1:]  # without the start token
        tensors[f"search.{i}.options"] = torch.tensor([beams, ngram, least, early, count])
        tensors[f"search.{i}.length_penalty"] = torch.tensor(penalty, dtype=torch.float64)
        tensors[f"search.{i}.tokens"] = sequences
        if beams > 1:
            tensors[f"search.{i}.scores"] = out.sequences_scores.view(2, beams).double()
    return tensors, options_of(BART)


FILES = {"beams_bart": golden_beams}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    os.makedirs(FOLDER, exist_ok=True)
    for name, make in FILES.items():
        tensors, metadata = make()
        path = os.path.join(FOLDER, name + ".safetensors")
        if options.check:
            kept, kept_metadata = golden_file.read(path)
            if kept.keys() != tensors.keys():
                sys.exit(f"{name}: other tensors than in the file")
            if kept_metadata != {k: golden_file.text(v) for k, v in metadata.items()}:
                sys.exit(f"{name}: other metadata than in the file")
            for key, x in tensors.items():
                if (kept[key].double() - x.detach().double()).abs().max() > 1e-6:
                    sys.exit(f"{name}: {key} differs from the file")
        else:
            golden_file.write(path, tensors, metadata)
        print(f"{name}: {os.path.getsize(path) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
