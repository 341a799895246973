"""Writes the vectors that BERT gives to the tokens of texts, or to the texts.

    python extract_features.py --input_file=texts.txt \\
        --init_checkpoint=uncased_L-12_H-768_A-12 \\
        --output_file=vectors.npy --output_format=npy --pooling=mean

One text, or a pair `first ||| second`, on each line. By default the original's
JSON lines: four layers of every token. With --pooling one vector for each
text; with --similarity the cosines between texts, or the texts of --other_file
that are nearest to each. A few hundred short texts a second on two CPU cores
with a small BERT (6 layers, H 384).
"""

from absl import flags

import common_flags
import text_files

FLAGS = flags.FLAGS


def define_flags():
    """The original's flags with its defaults, then those that are new."""
    common_flags.define_model_flags()
    common_flags.define_device_flags()
    flags.adopt_module_key_flags(common_flags)
    flags.mark_flag_as_required("init_checkpoint")
    flags.DEFINE_string(
        "input_file", None, "One text or pair on each line.", required=True
    )
    flags.DEFINE_string("output_file", None, "What to write.", required=True)
    flags.DEFINE_string(
        "layers",
        "-1,-2,-3,-4",
        "The layers to write, -1 being the last and 0 the first. With "
        "--pooling the last one only, unless given.",
    )
    flags.DEFINE_integer("batch_size", 32, "Texts per batch.", lower_bound=1)
    flags.DEFINE_bool(
        "use_one_hot_embeddings",
        False,
        "Looks words up by a matrix product, as TPUs like it.",
    )
    _define_new_flags()


def _define_new_flags():
    flags.DEFINE_enum(
        "output_format",
        "jsonl",
        ("jsonl", "npz", "npy"),
        "jsonl: the original's lines, 6 digits. npz: arrays values [tokens, "
        "layers, H], lengths and tokens, or vectors. npy: one array of "
        "vectors.",
    )
    flags.DEFINE_enum(
        "output_dtype",
        "float32",
        ("float16", "float32"),
        "The numbers of npz and npy.",
    )
    flags.DEFINE_enum(
        "pooling",
        "none",
        ("none", "cls", "mean", "max"),
        "One vector for a text: that of its [CLS] in the layer, or the mean "
        "or maximum over its tokens, [CLS] and [SEP] among them.",
    )
    flags.DEFINE_bool(
        "normalize", False, "With --pooling: vectors of length 1."
    )
    common_flags.define_long_text_flags("read in windows")
    flags.DEFINE_enum(
        "similarity",
        "none",
        ("none", "matrix", "nearest"),
        "Writes cosines instead of vectors: of every text with every text of "
        "--other_file (or of the same file), or the nearest of them.",
    )
    flags.DEFINE_string(
        "other_file", None, "With --similarity: the texts to compare with."
    )
    flags.DEFINE_integer(
        "top_k", 10, "With --similarity=nearest: how many.", lower_bound=1
    )


def chosen_layers():
    """The numbers of --layers. Raises ValueError for what is none."""
    pooled = FLAGS.pooling != "none" and not FLAGS["layers"].present
    text = "-1" if pooled else FLAGS.layers
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--layers={text} is no list of numbers such as -1,-2."
        ) from None


def check_flags(layers):
    """Raises ValueError for flags that cannot work together."""
    pooled, similarity = FLAGS.pooling != "none", FLAGS.similarity
    if FLAGS.max_seq_length < 5:
        raise ValueError(
            f"--max_seq_length={FLAGS.max_seq_length} must be at least 5: "
            "[CLS] a [SEP] b [SEP]."
        )
    inputs = [x for x in (FLAGS.input_file, FLAGS.other_file) if x]
    for path in inputs:
        text_files.check_input(path)
    text_files.check_output("output_file", FLAGS.output_file, inputs)
    if similarity != "none" and not pooled:
        raise ValueError(
            f"--similarity={similarity} compares texts: add --pooling=mean "
            "(or cls, max)."
        )
    if similarity != "none" and len(layers) > 1:
        raise ValueError(
            f"--similarity={similarity} compares one vector of each text; "
            f"--layers={FLAGS.layers} gives {len(layers)}. Name one layer."
        )
    if FLAGS.other_file and similarity == "none":
        raise ValueError("--other_file goes with --similarity.")
    if FLAGS["top_k"].present and similarity != "nearest":
        raise ValueError("--top_k goes with --similarity=nearest.")
    if FLAGS.doc_stride is not None and FLAGS.long_text != "windows":
        raise ValueError("--doc_stride needs --long_text=windows.")
    if FLAGS.normalize and not pooled:
        raise ValueError("--normalize goes with --pooling.")
    if FLAGS.output_format == "npy" and (not pooled or similarity == "nearest"):
        raise ValueError(
            "--output_format=npy holds one array with a row for each text; "
            "take npz, or --pooling without --similarity=nearest."
        )
    if FLAGS.output_format == "jsonl" and FLAGS["output_dtype"].present:
        raise ValueError(
            "--output_dtype goes with --output_format=npz or npy; jsonl "
            "always has 6 digits."
        )


def main(_):
    """Checks the flags, then extracts."""
    layers = chosen_layers()
    check_flags(layers)
    import feature_extraction

    feature_extraction.run(layers)


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
