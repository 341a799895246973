"""Pre-trains BERT on masked words and next sentences, and fills masks.

    python run_pretraining.py --input_file='data/pretrain.tfrecord*' \\
        --vocab_file=vocab.txt --model_preset=bert_L-2_H-128 \\
        --output_dir=pretrained --do_train --do_eval \\
        --train_batch_size=32 --num_train_epochs=10 --learning_rate=1e-4

Reads what create_pretraining_data.py wrote. Writes checkpoints with the names
of 2018, config and vocabulary into the output directory, which is then the
--init_checkpoint of run_classifier.py and the others, and eval_results.txt.
A run that was stopped goes on where it was. --do_predict fills each [MASK] of
a text file. On two CPU cores a model of 4 layers, H 256 makes a few steps of
32 sequences of 128 tokens a second.
"""

import os

from absl import flags

import common_flags

FLAGS = flags.FLAGS


def define_flags():
    """The original's flags with its defaults, then those that are new."""
    common_flags.define_model_flags()
    common_flags.define_device_flags()
    common_flags.define_output_flags()
    common_flags.define_optimizer_flags()
    flags.adopt_module_key_flags(common_flags)
    flags.DEFINE_list(
        "input_file",
        None,
        "The TFRecord files: names or patterns, separated by commas; .gz is "
        "unpacked.",
    )
    common_flags.define_phase_flags(
        "Whether to score the records.",
        "Whether to fill the [MASK]s of --predict_file into "
        "OUTPUT_DIR/predictions.jsonl.",
    )
    common_flags.define_masking_flags()
    flags.DEFINE_integer(
        "num_train_steps", 100000, "Training steps.", lower_bound=1
    )
    flags.DEFINE_integer(
        "num_warmup_steps",
        10000,
        "The steps over which the learning rate rises. With "
        "--num_train_epochs, a tenth of the steps unless given.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "max_eval_steps",
        100,
        "The most batches to evaluate. Every record counts once.",
        lower_bound=1,
    )
    _define_new_flags()


def _define_new_flags():
    common_flags.define_float(
        "num_train_epochs",
        None,
        "How often to go through the records, instead of --num_train_steps.",
        lower_bound=0.0,
    )
    flags.DEFINE_list(
        "eval_input_file",
        None,
        "Other records to score than those of --input_file.",
    )
    flags.DEFINE_string(
        "model_preset",
        None,
        "The size of a new model instead of --bert_config_file: bert_base, "
        "bert_large, or bert_L-2_H-128 and the like.",
    )
    flags.DEFINE_bool(
        "dynamic_masking",
        False,
        "Draws the masks anew in every epoch, from records written with "
        "--unmasked, as --masked_lm_prob, --do_whole_word_mask and "
        "--draw_per_word say.",
    )
    flags.DEFINE_string(
        "predict_file",
        None,
        "Plain text with [MASK]s, one text or pair `first ||| second` a line.",
    )
    flags.DEFINE_integer(
        "top_k", 5, "How many pieces to name for each mask.", lower_bound=1
    )


def check_flags():
    """Raises ValueError for flags that cannot work. Reads no record."""
    common_flags.check_phases("do_train", "do_eval", "do_predict")
    common_flags.check_embedding_clip()
    needs = [("do_train", "input_file"), ("do_predict", "predict_file")]
    if not FLAGS.eval_input_file:
        needs.append(("do_eval", "input_file"))
    for phase, name in needs:
        if FLAGS[phase].value and not FLAGS[name].value:
            raise ValueError(f"--{phase} needs --{name}.")
    if FLAGS.do_predict and not os.path.isfile(FLAGS.predict_file):
        raise ValueError(f"--predict_file={FLAGS.predict_file} does not exist.")
    if FLAGS.num_train_epochs is not None and FLAGS["num_train_steps"].present:
        raise ValueError(
            f"--num_train_epochs={FLAGS.num_train_epochs} and "
            f"--num_train_steps={FLAGS.num_train_steps} are both given. Leave "
            "one of them out."
        )
    if not FLAGS.dynamic_masking:
        for name in ("masked_lm_prob", "do_whole_word_mask", "draw_per_word"):
            if FLAGS[name].present:
                raise ValueError(
                    f"--{name} goes with --dynamic_masking; otherwise it is a "
                    "flag of create_pretraining_data.py."
                )
    if FLAGS.max_seq_length < 5:
        raise ValueError(
            f"--max_seq_length={FLAGS.max_seq_length} must be at least 5 for "
            "[CLS] x [SEP] y [SEP]."
        )


def main(_):
    """Checks the flags, then does what they ask for."""
    check_flags()
    import pretraining

    pretraining.run()


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
