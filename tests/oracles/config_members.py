"""Writes checkpoints/members.json: config.json of models of the package transformers as it writes them,
with defaults and with labels, whose members the engine must all know. Needs no torch.

    .venv/bin/python config_members.py                  # writes members.json again
    .venv/bin/python config_members.py --load FOLDER    # has the package read FOLDER/NAME/config.json
                                                        # for every NAME, and shows what it found
"""

import json
import pathlib
import sys

import transformers

OUT = pathlib.Path(__file__).resolve().parent / "checkpoints" / "members.json"
KINDS = {"roberta": "RobertaConfig", "bert": "BertConfig", "big_bird": "BigBirdConfig",
         "bigbird_pegasus": "BigBirdPegasusConfig", "longformer": "LongformerConfig",
         "bart": "BartConfig", "led": "LEDConfig", "reformer": "ReformerConfig"}
MORE = {"roberta": {"num_labels": 3}, "bert": {"id2label": {0: "no", 1: "yes"}, "pad_token_id": 5},
        "bart": {"decoder_start_token_id": 7}}


def written(kind, **more):
    config = getattr(transformers, kind)(**more).to_diff_dict()
    config.pop("transformers_version", None)
    return config


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--load":
        for path in sorted(pathlib.Path(sys.argv[2]).glob("*/config.json")):
            c = transformers.AutoConfig.from_pretrained(path.parent)
            print(path.parent.name, type(c).__name__, c.id2label, c.label2id, "pad", c.pad_token_id,
                  "start", c.decoder_start_token_id, "encoder-decoder", c.is_encoder_decoder)
        return
    configs = {name: written(kind) for name, kind in KINDS.items()}
    configs |= {name + "_more": written(KINDS[name], **more) for name, more in MORE.items()}
    OUT.write_text(json.dumps(configs, indent=1) + "\n")


main()
