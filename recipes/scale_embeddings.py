"""Copies a pre-trained checkpoint with small embeddings, for fine-tuning.

    python recipes/scale_embeddings.py english/pretrained/best english/scaled

A layer norm follows the sum of the three embedding tables, so a factor common
to all of them changes no output of the encoder. But it changes how fast they
are fine-tuned: Adam's steps are of one size, whatever the size of a weight. A
small model pre-trained at a high rate ends with word embeddings of a deviation
of 0.1; here they get 0.02, that of BERT's new weights. The masked-LM head,
which shares the word embeddings, does not fit the copy. The copy's config has
the dropout of fine-tuning, which so short a pre-training does without.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import checkpoints
import common_flags

TABLES = "bert/embeddings/{}_embeddings"


DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def scale(source, target, deviation, dropout=0.1):
    """Writes the copy to the directory `target`; gives the factor."""
    target = pathlib.Path(target)
    reader = checkpoints.CheckpointReader(str(source))
    factor = deviation / reader.read(TABLES.format("word")).std()
    target.mkdir(parents=True, exist_ok=True)
    checkpoints.rewrite(
        str(source),
        str(target / "bert_model.ckpt"),
        {
            TABLES.format(kind): lambda value, _: value * factor
            for kind in ("word", "position", "token_type")
        },
    )
    shutil.copyfile(pathlib.Path(source) / "vocab.txt", target / "vocab.txt")
    config = common_flags.read_json(pathlib.Path(source) / "bert_config.json")
    config |= dict.fromkeys(DROPOUTS, dropout)
    text = json.dumps(config, indent=2) + "\n"
    common_flags.write_whole(target / "bert_config.json", text)
    return factor


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", help="A directory with a checkpoint.")
    parser.add_argument("target", help="The directory to make.")
    parser.add_argument("--deviation", type=float, default=0.02)
    parser.add_argument("--dropout", type=float, default=0.1)
    flags = parser.parse_args()
    try:
        factor = scale(
            flags.source, flags.target, flags.deviation, flags.dropout
        )
    except (OSError, ValueError) as error:
        sys.exit(f"scale_embeddings.py: {error}")
    print(f"{flags.target}: embeddings times {factor:.3f}")


if __name__ == "__main__":
    main()
