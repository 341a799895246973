"""The flags that several scripts share, each defined and checked once.

A script calls the `define_*` functions it needs, adds its own flags, and ends
with `common_flags.run(main)`. Nothing here imports TensorFlow: a wrong flag is
refused in a fraction of a second.
"""

import logging
import math
import os
import pathlib
import sys

from absl import app, flags
from absl import logging as absl_logging

import directories
import text_files

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # they are the calling script's, so --help has them

HERE = pathlib.Path(__file__).resolve().parent

_recalled = set()
LENGTH_FLAGS = ("max_seq_length", "max_query_length", "doc_stride", "long_text")
UNUSED_FLAGS = ("master", "tpu_zone", "gcp_project")

# What a run that is continued should not change unnoticed.
TRAINING_FLAGS = (
    "learning_rate",
    "train_batch_size",
    "num_train_epochs",
    "num_warmup_steps",
    "warmup_proportion",
    "optimizer",
    "schedule",
    "max_seq_length",
    "precision",
    "eval_steps",
    "best_metric",
    "early_stopping_patience",
    "layer_decay",
    "freeze_layers",
    "warmup_schedule",
    "label_smoothing",
    "class_weights",
    "crf_rate_multiplier",
    "original_embedding_clip",
)

SPLIT_FLAGS = {
    "train": "train_file",
    "eval": "dev_file",
    "predict": "test_file",
}
LONG_TEXTS = ("truncate_tail", "truncate_head", "head_tail", "windows")

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu")


def define_float(name, default, help_text, **bounds):
    """A number that is neither NaN nor infinite, which bounds let pass."""
    flags.DEFINE_float(name, default, help_text, **bounds)
    flags.register_validator(
        name,
        lambda value: value is None or math.isfinite(value),
        "must be a finite number.",
    )


def define_model_flags(max_seq_length=128):
    """Checkpoint, vocabulary, config, casing, length, precision."""
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "The pre-trained model: a checkpoint prefix such as "
        ".../bert_model.ckpt, a directory that holds one, or a Hugging Face "
        "directory (config.json, model.safetensors, vocab.txt).",
    )
    flags.DEFINE_string(
        "bert_config_file",
        None,
        "The model's sizes (bert_config.json). By default the file beside "
        "--init_checkpoint.",
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "The vocabulary the model was trained with (vocab.txt). By default "
        "the file beside --init_checkpoint.",
    )
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Whether to lower-case the text: true for uncased models, false for "
        "cased ones. Not given, it is read from the model's directory.",
    )
    flags.DEFINE_integer(
        "max_seq_length",
        max_seq_length,
        "The longest input in pieces, [CLS] and [SEP] included; longer ones "
        "are cut.",
        lower_bound=1,
    )


def define_device_flags():
    """Where and in which precision to compute."""
    flags.DEFINE_enum(
        "distribution_strategy",
        "auto",
        STRATEGIES,
        "Where to compute. auto: all GPUs of this machine, else its CPU. "
        "multi_worker_mirrored reads TF_CONFIG. Batch sizes are global.",
    )
    flags.DEFINE_enum(
        "precision",
        "float32",
        ("float32", "bfloat16"),
        "bfloat16 computes products in 16 bits; weights, softmax, layer "
        "norm, logits and losses stay float32.",
    )
    flags.DEFINE_bool(
        "run_eagerly",
        False,
        "Runs step by step in Python, for a debugger. Slow.",
    )
    flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
    flags.DEFINE_string("tpu_name", None, "The TPU's name or grpc address.")
    flags.DEFINE_integer(
        "num_tpu_cores", 8, "With --use_tpu: how many cores.", lower_bound=1
    )
    flags.DEFINE_integer(
        "iterations_per_loop",
        1000,
        "With --use_tpu: how many training steps to make in one call.",
        lower_bound=1,
    )
    for name in UNUSED_FLAGS:
        flags.DEFINE_string(
            name, None, "Not used any more; accepted for old commands."
        )


def on_tpu():
    """Whether shapes must be static: padding is computed then."""
    return FLAGS.use_tpu or FLAGS.distribution_strategy == "tpu"


def define_output_flags():
    """What every training script writes and how often."""
    flags.DEFINE_string(
        "output_dir",
        None,
        "Where checkpoints and results are written.",
        required=True,
    )
    flags.DEFINE_integer(
        "save_checkpoints_steps",
        1000,
        "How many steps lie between two checkpoints.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "log_steps", 20, "Steps between two lines of the log.", lower_bound=1
    )
    flags.DEFINE_bool(
        "tensorboard", True, "Whether to write event files for TensorBoard."
    )
    flags.DEFINE_integer(
        "seed",
        12345,
        "Fixes new weights, dropout and the order of the data. Two runs on "
        "CPU with one seed are equal to the bit.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )


def define_optimizer_flags():
    """How weights move."""
    define_float(
        "learning_rate", 5e-5, "The highest learning rate.", lower_bound=0.0
    )
    flags.DEFINE_integer(
        "train_batch_size",
        32,
        "Rows per training step, over all devices.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "optimizer", "adamw", ("adamw", "lamb"), "Which optimizer to use."
    )
    flags.DEFINE_enum(
        "schedule",
        "linear",
        ("linear", "constant", "cosine"),
        "How the learning rate falls after the warm-up.",
    )
    flags.DEFINE_enum(
        "warmup_schedule",
        "original",
        ("original", "peak"),
        "original: the decay counts from step 0, so the rate drops where the "
        "warm-up ends; peak: it counts from there.",
    )
    flags.DEFINE_integer(
        "gradient_accumulation_steps",
        1,
        "Into how many parts a device's share of the batch is cut to save "
        "memory. Changes no result.",
        lower_bound=1,
    )
    define_float(
        "layer_decay",
        1.0,
        "Each layer learns at this share of the rate of the one above it.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_integer(
        "freeze_layers",
        0,
        "Keeps the embeddings and this many lowest layers as they are; -1 "
        "keeps the embeddings only; 0 trains everything.",
        lower_bound=-1,
    )
    flags.DEFINE_bool(
        "original_embedding_clip",
        False,
        "Clips as the original did on CPU and GPU: repeated words are not "
        "summed before the norm is taken. One device, no accumulation.",
    )
    _define_evaluation_flags()


def _define_evaluation_flags():
    """Scores during training and what follows from them."""
    flags.DEFINE_integer(
        "eval_steps",
        None,
        "Evaluates during training, every so many steps.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "early_stopping_patience",
        None,
        "Stops after so many evaluations without a better score.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "best_metric",
        None,
        "The score by which the best checkpoint is kept, such as "
        "eval_accuracy or eval_loss. By default the task's own.",
    )


def define_phase_flags(eval_help, predict_help):
    """What a training script does, and in which batches it evaluates."""
    flags.DEFINE_bool("do_train", False, "Whether to train.")
    flags.DEFINE_bool("do_eval", False, eval_help)
    flags.DEFINE_bool("do_predict", False, predict_help)
    flags.DEFINE_integer(
        "eval_batch_size", 8, "Rows per batch in evaluation.", lower_bound=1
    )


def define_finetuning_flags():
    """What the fine-tuning scripts do, in which batches, and how long."""
    define_phase_flags(
        "Whether to score the dev set.", "Whether to answer the test set."
    )
    flags.DEFINE_bool(
        "do_export",
        False,
        "Whether to write a SavedModel to OUTPUT_DIR/saved_model/1.",
    )
    flags.DEFINE_bool(
        "report",
        False,
        "Whether to write OUTPUT_DIR/report.html about the dev set.",
    )
    flags.DEFINE_integer(
        "predict_batch_size", 8, "Rows per batch in prediction.", lower_bound=1
    )
    flags.DEFINE_bool(
        "write_records",
        False,
        "Whether to keep the features as OUTPUT_DIR/train.tf_record, "
        "eval.tf_record and predict.tf_record, as the original did.",
    )
    _define_length_flags()


def _define_length_flags():
    """How long and how often to train."""
    define_float(
        "num_train_epochs",
        3.0,
        "How often to go through the training set.",
        lower_bound=0.0,
    )
    define_float(
        "warmup_proportion",
        0.1,
        "The share of the steps over which the learning rate rises.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_integer(
        "num_warmup_steps",
        None,
        "The steps over which the learning rate rises, instead of "
        "--warmup_proportion.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "num_seeds",
        1,
        "Trains so often, with seeds that follow --seed, in "
        "OUTPUT_DIR/seed-N; the results hold mean and standard deviation.",
        lower_bound=1,
    )
    define_float(
        "label_smoothing",
        0.0,
        "The share of each target that is spread over all labels.",
        lower_bound=0.0,
        upper_bound=1.0,
    )


def define_all_finetuning_flags(max_seq_length=128):
    """Every shared flag of a fine-tuning script."""
    define_model_flags(max_seq_length)
    define_device_flags()
    define_output_flags()
    define_optimizer_flags()
    define_finetuning_flags()


def define_split_flags(data_dir_help):
    """Where the rows to learn from, to score and to answer are."""
    flags.DEFINE_string("data_dir", None, data_dir_help)
    for split in SPLIT_FLAGS.values():
        name = split.removesuffix("_file")
        flags.DEFINE_string(
            split, None, f"The {name} set, not the usual file of --data_dir."
        )


def find_split(split, names, endings):
    """The path of "train", "eval" or "predict": as a flag says, or found.

    In --data_dir the first of names x endings that exists. Raises ValueError
    where there is none."""
    flag = SPLIT_FLAGS[split]
    if FLAGS[flag].value:
        return FLAGS[flag].value
    if not FLAGS.data_dir:
        raise ValueError(
            f"--do_{split} needs --data_dir or --{flag}. Give one."
        )
    if not os.path.isdir(FLAGS.data_dir):
        raise ValueError(f"--data_dir={FLAGS.data_dir} is no directory.")
    wanted = [name + ending for name in names for ending in endings]
    for name in wanted:
        path = os.path.join(FLAGS.data_dir, name)
        if os.path.exists(path):
            return path
    raise ValueError(
        f"--data_dir={FLAGS.data_dir} has no {', '.join(wanted[:2])} or "
        f"{wanted[2]}. Name the file by --{flag}."
    )


def define_long_text_flags(windows_help):
    """What is done to a text beyond --max_seq_length."""
    flags.DEFINE_enum(
        "long_text",
        "truncate_tail",
        LONG_TEXTS,
        "What is done to a text beyond --max_seq_length: its tail, its head "
        f"or its middle (head_tail) is cut, or it is {windows_help}.",
    )
    flags.DEFINE_integer(
        "doc_stride",
        None,
        "With --long_text=windows, the step from one window to the next; by "
        "default half a window.",
        lower_bound=1,
    )


def define_masking_flags():
    """Which tokens a masked language model guesses, and the second task."""
    flags.DEFINE_integer(
        "max_predictions_per_seq",
        20,
        "The most masked tokens of a sequence, about max_seq_length * "
        "masked_lm_prob; the same for the data and the training.",
        lower_bound=0,
    )
    define_float(
        "masked_lm_prob",
        0.15,
        "The share of masked tokens.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_bool(
        "do_whole_word_mask",
        False,
        "Masks whole words instead of single pieces.",
    )
    flags.DEFINE_bool(
        "draw_per_word",
        False,
        "With --do_whole_word_mask: one draw decides for all pieces of a word "
        "between [MASK], random and unchanged; not given, each piece has its "
        "own, as in the original.",
    )
    flags.DEFINE_enum(
        "nsp",
        "next",
        ("next", "sop", "none"),
        "The second task. next: does B follow A? sop: are A and B in order? "
        "none: one segment, and no loss.",
    )


def given(name):
    """The flag's value if the user set it, else None."""
    return FLAGS[name].value if FLAGS[name].present else None


def is_recalled(name):
    """Whether a flag has its value from an earlier run, not from the user."""
    return name in _recalled


def contradiction(name, theirs):
    """The ValueError for a flag that the trained model contradicts."""
    return ValueError(
        f"--{name}={FLAGS[name].value} contradicts the trained model: "
        f"{theirs}. Leave the flag out, or choose another --output_dir."
    )


def all_given():
    """{name: value} of every flag that the user set."""
    return {name: FLAGS[name].value for name in FLAGS if FLAGS[name].present}


def check_phases(*phases):
    """Raises ValueError unless one of the named do_* flags is set."""
    if not any(FLAGS[name].value for name in phases):
        names = ", ".join(f"--{name}" for name in phases)
        raise ValueError(f"Nothing to do: set at least one of {names}.")


def check_finetuning():
    """Raises ValueError for shared flags that contradict each other.

    Reads no file but looks whether the output directory can be made."""
    check_phases("do_train", "do_eval", "do_predict", "do_export")
    check_embedding_clip()
    if FLAGS.do_train and not FLAGS.num_train_epochs:
        raise ValueError(
            "--num_train_epochs=0 gives nothing to train. Raise it, or leave "
            "out --do_train."
        )
    if not FLAGS.layer_decay:
        raise ValueError(
            "--layer_decay=0 stops all layers but the last; 1 means no decay. "
            "To keep layers as they are, use --freeze_layers."
        )
    if FLAGS.num_seeds > 1 and not (FLAGS.do_train and FLAGS.do_eval):
        raise ValueError("--num_seeds needs --do_train and --do_eval.")
    if FLAGS.report and not FLAGS.do_eval:
        raise ValueError("--report shows the dev set, so it needs --do_eval.")
    wanted = ("eval_steps", "best_metric", "early_stopping_patience")
    for name in wanted:
        if FLAGS[name].value and not (FLAGS.do_train and FLAGS.do_eval):
            raise ValueError(
                f"--{name} evaluates during training, so it needs --do_train "
                "and --do_eval."
            )
    directories.find_output_parent(FLAGS.output_dir)


def recall(output_dir, task, names, of_rows=()):
    """Takes flags that were not given from the run in an output directory.

    Where it holds none and nothing is trained, from that of --init_checkpoint;
    where a training begins, from none.
    `names`: those that must be as they were in training; those of them that
    are `of_rows` only where --task_name is the same. A run of another task
    than `task` (the word before a / in its name) tells nothing. Raises
    ValueError if the directory's run.json is no JSON object."""
    path = os.path.join(output_dir, "run.json")
    if not directories.is_trained(output_dir):
        if FLAGS.do_train:
            return
        if FLAGS.init_checkpoint:
            output_dir = directories.run_directory(FLAGS.init_checkpoint)
            path = os.path.join(output_dir, "run.json")
    if not os.path.isfile(path):
        return
    run = read_json(path)
    if not isinstance(run, dict):
        raise ValueError(f"{path}: is no JSON object. Remove the directory.")
    word, _, name = str(run.get("task")).partition("/")
    if word != task:
        return
    if name and _letters(name) != _letters(FLAGS.task_name):
        names = [name for name in names if name not in of_rows]
    flags_then = run.get("flags") or {}
    for name in LENGTH_FLAGS:
        if FLAGS.do_train or name not in names or not FLAGS[name].present:
            continue
        then = flags_then.get(name, FLAGS[name].default)
        if FLAGS[name].value != then:
            absl_logging.warning(
                "--%s=%s, but the model was trained with %s (%s).",
                name,
                FLAGS[name].value,
                then,
                path,
            )
    for name, value in flags_then.items():
        if name in names and not FLAGS[name].present:
            FLAGS[name].value = value
            FLAGS[name].present += 1
            _recalled.add(name)


def _letters(name):
    return "".join(filter(str.isalnum, name or "")).lower()


def check_embedding_clip():
    """Raises ValueError where --original_embedding_clip cannot be had."""
    if not FLAGS.original_embedding_clip:
        return
    if FLAGS.gradient_accumulation_steps > 1:
        raise ValueError(
            "--original_embedding_clip goes with no "
            "--gradient_accumulation_steps above 1."
        )


def warn_of_unused_flags(warn):
    """Calls `warn` once if flags of a dead platform were given."""
    names = [
        f"--{name}" for name in UNUSED_FLAGS if FLAGS[name].value is not None
    ]
    if names:
        warn(f"{', '.join(names)} has no effect any more.")


def write_whole(path, text):
    """Writes a text file that appears whole or not at all."""
    with text_files.whole_file(path) as file:
        file.write(text)


def read_json(path):
    """Reads a JSON file. Raises ValueError naming file and place."""
    text = "\n".join(text for _, text in text_files.read_lines(path))
    return text_files.parse_json(
        path,
        text,
        1,
        "Restore the file, or remove it if this program wrote it.",
    )


def _raised_by_us(error):
    """Whether an error was raised by this project's own code."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    raiser = pathlib.Path(trace.tb_frame.f_code.co_filename).resolve()
    return raiser.parent == HERE


def guard(main):
    """`main`, ending in one sentence and exit code 1 for bad input.

    Any other error keeps its traceback."""

    def guarded(argv):
        """Runs `main`; a mistake of the user ends in one sentence."""
        script = os.path.basename(argv[0])
        try:
            if len(argv) > 1:
                raise ValueError(
                    f"{argv[1]!r} is not a flag. Write --flag=value; "
                    "booleans are --flag, --noflag or --flag=false."
                )
            main(argv)
        except (ValueError, OSError) as error:
            if not isinstance(error, OSError) and not _raised_by_us(error):
                raise
            print(f"{script}: {error}", file=sys.stderr)
            sys.exit(1)

    return guarded


def _is_worth_showing(record):
    """Whether a log record is ours, or a warning of anybody."""
    if record.levelno >= logging.WARNING:
        return True
    return pathlib.Path(record.pathname).resolve().parent == HERE


def show_our_log():
    """Logs what this project says from INFO up, of others the warnings."""
    if not FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.INFO)
    absl_logging.get_absl_handler().addFilter(_is_worth_showing)


def run(main):
    """Parses the flags and runs `main`.

    What is wrong with the input ends in one sentence on stderr and exit code
    1; any other error keeps its traceback."""

    def logged(argv):
        show_our_log()
        guard(main)(argv)

    # What TensorFlow's C++ side prints is no help to anybody without a GPU.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(logged)
