"""Makes the data of masked-LM and next-sentence pre-training from plain text.

    python create_pretraining_data.py --input_file='text/*.txt' \\
        --output_file=/data/pretrain.tfrecord --vocab_file=vocab.txt \\
        --max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=5

The text has one sentence per line and a blank line between documents. The same
seed gives the records of google-research/bert, in the same order, at about ten
times its speed. For more text than fits into memory add `--streaming`: several
files, each shuffled within itself, and a run that was killed goes on where it
was. `--num_workers` changes the time, never a byte. A second of one core makes
a few megabytes of text into records, for each of the `dupe_factor` passes.
"""

import dataclasses
import json
import os
import sys

from absl import flags, logging

import common_flags
import records
import text_files
import tokenization
from pretraining_data import Options
from pretraining_shards import create_shards
from pretraining_writer import Tools, Workers, create_training_data

FLAGS = flags.FLAGS

RUNNERS = ("DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner")


def define_flags():
    """The original's flags, then those that are new."""
    flags.DEFINE_string(
        "input_file",
        None,
        "The text: files or patterns, separated by commas; .gz is unpacked.",
        required=True,
    )
    flags.DEFINE_string(
        "output_file",
        None,
        "The TFRecord file, or several separated by commas, which get the "
        "records in turn; a name in .gz is compressed.",
        required=True,
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "The vocabulary the model is to be trained with.",
        required=True,
    )
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Whether to lower-case the text: true for uncased models, false for "
        "cased ones.",
    )
    flags.DEFINE_integer(
        "max_seq_length", 128, "The longest sequence, in pieces."
    )
    flags.DEFINE_integer("random_seed", 12345, "The seed of all draws.")
    flags.DEFINE_integer(
        "dupe_factor", 10, "How often the text is used, with other masks."
    )
    common_flags.define_float(
        "short_seq_prob",
        0.1,
        "The share of documents cut into shorter sequences, as fine-tuning "
        "has them.",
    )
    common_flags.define_masking_flags()
    flags.adopt_module_key_flags(common_flags)
    _define_new_masking_flags()
    _define_scale_flags()


def _define_new_masking_flags():
    flags.DEFINE_integer(
        "max_ngram",
        1,
        "Masks spans of up to so many words (or pieces), n of them with "
        "weight 1/n; ALBERT takes 3.",
    )
    flags.DEFINE_enum(
        "segmenter",
        "none",
        ("none", "blank", "jieba"),
        "With --do_whole_word_mask: what the words of Chinese text are. "
        "blank: the input separates them by blanks; jieba: "
        "requirements-zh.txt; none: single characters.",
    )
    flags.DEFINE_bool(
        "unmasked",
        False,
        "Writes records without masks, for run_pretraining.py "
        "--dynamic_masking.",
    )
    flags.DEFINE_bool(
        "original_labels",
        False,
        "Labels B as random even where it follows A, as the original does "
        "if the text is a single document.",
    )


def _define_scale_flags():
    flags.DEFINE_integer(
        "num_workers",
        1,
        "Processes that share the work; the output does not depend on it.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "streaming",
        False,
        "Writes OUTPUT-00000-of-N and so on, each from its own part of the "
        "text, in memory that does not grow with it. Half of the instances "
        "get a random next sentence, where the text allows it.",
    )
    flags.DEFINE_integer(
        "num_shards",
        0,
        "With --streaming: how many files. 0: one for each 32 MB of text.",
        lower_bound=0,
    )
    flags.DEFINE_enum(
        "runner",
        None,
        RUNNERS,
        "Makes the shards of --streaming as an Apache Beam pipeline; needs "
        "requirements-beam.txt. Beam's own options follow after --.",
    )


def read_options() -> Options:
    """The options that the flags say. Raises ValueError if they are wrong."""
    if FLAGS.dupe_factor < 1:
        raise ValueError(
            f"--dupe_factor={FLAGS.dupe_factor} uses the text never; take 1 "
            "or more"
        )
    names = {field.name for field in dataclasses.fields(Options)}
    streaming = FLAGS.streaming or FLAGS.runner is not None
    values = {name: FLAGS[name].value for name in names if name in FLAGS}
    options = Options(**values, original_draws=not streaming)
    if options.unmasked and options.max_ngram > 1:
        raise ValueError(
            f"--max_ngram={options.max_ngram} masks spans while the data is "
            "made, and --unmasked leaves masking to the training, which has "
            "no spans. Leave one out"
        )
    if options.unmasked and common_flags.given("masked_lm_prob") is not None:
        raise ValueError(
            "--masked_lm_prob has no effect with --unmasked; give it to "
            "run_pretraining.py --dynamic_masking"
        )
    if FLAGS.num_shards and not streaming:
        raise ValueError("--num_shards goes with --streaming only")
    if streaming and "," in FLAGS.output_file:
        raise ValueError(
            "--streaming takes one --output_file; the shards get their names "
            "from it, and --num_shards says how many"
        )
    if _BEAM_OPTIONS and FLAGS.runner is None:
        raise ValueError(
            f"{_BEAM_OPTIONS[0]!r} follows --, where Beam's options stand; "
            "they need --runner"
        )
    if streaming and FLAGS.original_labels:
        raise ValueError("--original_labels does not go with --streaming")
    return options


def load_tools(options: Options) -> Tools:
    """Vocabulary and tokenizer, checked before any text is read."""
    tokenizer = tokenization.FullTokenizer(
        FLAGS.vocab_file, FLAGS.do_lower_case
    )
    tokenization.check_vocab(tokenizer.vocab, None, FLAGS.vocab_file)
    return Tools(tokenizer, options)


def report(summary, options: Options, output_files, input_files):
    """Writes OUTPUT.summary.json and logs what it says."""
    content = {
        **dataclasses.asdict(summary),
        **summary.shares(options),
        "warnings": summary.warnings(options),
        "options": dataclasses.asdict(options),
        "random_seed": FLAGS.random_seed,
        "do_lower_case": FLAGS.do_lower_case,
        "input_files": list(input_files),
        "output_files": list(output_files),
    }
    path = f"{FLAGS.output_file.split(',')[0]}.summary.json"
    text = json.dumps(content, indent=2, ensure_ascii=False)
    common_flags.write_whole(path, text + "\n")
    for name, value in dataclasses.asdict(summary).items():
        logging.info("%s = %d", name, value)
    for name, value in summary.shares(options).items():
        logging.info("%s = %.4f", name, value)
    for warning in content["warnings"]:
        logging.warning("%s", warning)


def main(_):
    """Reads the text, writes the records and says what they hold."""
    options = read_options()
    logging.set_verbosity(logging.INFO)
    tools = load_tools(options)
    if FLAGS.runner is not None:
        input_files, outputs, summary = _load_beam().run(
            FLAGS, options, FLAGS.vocab_file, _BEAM_OPTIONS
        )
    else:
        input_files = records.expand_patterns(FLAGS.input_file)
        outputs = _output_files()
        for path in [] if FLAGS.streaming else outputs:
            text_files.check_output(
                "output_file", path, [*input_files, FLAGS.vocab_file]
            )
        for directory in {os.path.dirname(path) for path in outputs}:
            os.makedirs(directory or ".", exist_ok=True)
        for path in input_files:
            logging.info("reading %s", path)
        with Workers(tools, FLAGS.num_workers) as workers:
            if FLAGS.streaming:
                summary, outputs = create_shards(
                    input_files,
                    FLAGS.output_file,
                    FLAGS.random_seed,
                    workers,
                    FLAGS.num_shards,
                )
            else:
                summary = create_training_data(
                    input_files, outputs, FLAGS.random_seed, workers
                )
    report(summary, options, outputs, input_files)


def _output_files():
    """The names in --output_file. Raises ValueError for none or two alike."""
    outputs = FLAGS.output_file.split(",")
    if not all(outputs):
        raise ValueError(
            f"--output_file={FLAGS.output_file!r} holds an empty name. Name "
            "a file"
        )
    if len(set(map(os.path.realpath, outputs))) < len(outputs):
        raise ValueError(
            f"--output_file={FLAGS.output_file} names a file twice, which "
            "would lose records. Name each once"
        )
    return outputs


def _load_beam():
    """The pipeline's module. Raises ValueError where Beam is not installed."""
    try:
        import pretraining_data_beam
    except ImportError as error:
        raise ValueError(
            f"--runner={FLAGS.runner} needs Apache Beam ({error}). Install it "
            "into an environment of its own with `pip install -r "
            "requirements-beam.txt` and run the script with its python"
        ) from None
    return pretraining_data_beam


_BEAM_OPTIONS = []  # what follows --


def _take_beam_options():
    """Keeps what follows `--` for Beam; absl would call it no flag."""
    if "--" in sys.argv:
        place = sys.argv.index("--")
        _BEAM_OPTIONS.extend(sys.argv[place + 1 :])
        del sys.argv[place:]


if __name__ == "__main__":
    define_flags()
    _take_beam_options()
    common_flags.run(main)
