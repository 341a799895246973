"""Fine-tunes BERT to choose among answers: SWAG, RACE, idiom cloze, your own.

    python run_multiple_choice.py --data_dir=SWAG \\
      --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=swag_output \\
      --do_train --do_eval --do_predict --do_export

Reads train, dev (or val) and test files, .csv or .jsonl; your own are JSON
lines such as {"context": "...", "question": "...", "choices": ["...", "..."],
"label": 0}, the question optional, a test set without labels; a context with
#idiom# has the choice in that place. Writes
eval_results.txt, test_results.tsv (for each question the probability of each
of its choices) and saved_model/1 into the output directory.
"""

import os

from absl import flags

import choice_data
import common_flags
import records
import tasks

FLAGS = flags.FLAGS

ENDINGS = (".jsonl", ".json", ".csv", "")
FILE_NAMES = {
    "train": ("train", "hellaswag_train", "train_few_all"),
    "eval": ("dev", "val", "valid", "hellaswag_val", "dev_few_all"),
    "predict": ("test", "hellaswag_test", "test_public"),
}


def define_flags():
    """The flags of this script."""
    common_flags.define_all_finetuning_flags()
    common_flags.define_split_flags(
        "Where train, dev and test are: .jsonl, .json or .csv files, or of "
        "RACE the directories with its .txt files."
    )
    flags.DEFINE_enum(
        "choice_head",
        "pooled",
        ["pooled", "masked_lm"],
        "What scores a choice: a new layer on the pooled output, or the "
        "masked-LM head of pre-training, by how well the choice fills the "
        f"place of {choice_data.IDIOM_MARK} in the context. It needs few rows "
        "or none, and a checkpoint with that head.",
    )


class ChoiceTask(tasks.Task):
    """One of two or more endings fits a context."""

    name = "multiple_choice"
    best_metric = "eval_accuracy"
    text_shapes = {"choices": [None, None]}

    def __init__(self):
        self.group = 0
        self.described = None
        self.fills_blanks = FLAGS.choice_head == "masked_lm"

    def check(self):
        """Raises ValueError for flags that cannot work."""
        if FLAGS.max_seq_length < 5:
            raise ValueError(
                f"--max_seq_length={FLAGS.max_seq_length} is too small: a "
                "choice needs at least 5 tokens ([CLS] a [SEP] b [SEP]). "
                "Raise the flag."
            )

    def describe(self):
        """What a question is made of: choices, form, question or not."""
        return self.described

    def restore(self, description):
        """Takes the form of the questions that the model was trained on."""
        self.described = description
        self.group = description["choices"]
        fills_blanks = description["form"] == "blank"
        if FLAGS["choice_head"].present and self.fills_blanks != fills_blanks:
            raise common_flags.contradiction(
                "choice_head",
                f"its head is {'masked_lm' if fills_blanks else 'pooled'}",
            )
        self.fills_blanks = fills_blanks

    def check_loaded(self, fresh):
        """Raises ValueError where the head of pre-training is not there."""
        if self.fills_blanks and fresh:
            raise ValueError(
                f"--init_checkpoint={FLAGS.init_checkpoint} lacks "
                f"{', '.join(fresh)}, the masked-LM head that "
                "--choice_head=masked_lm asks. Name a pre-trained checkpoint "
                "that has it, or leave the flag out."
            )

    # ---- rows

    def examples(self, split):
        """Reads a split. Sets may differ in the number of choices."""
        examples = choice_data.read_choices(
            common_flags.find_split(split, FILE_NAMES[split], ENDINGS),
            labelled=split != "predict",
        )
        self.group = max(self.group, *(len(e.endings) for e in examples))
        if self.fills_blanks:
            self._check_blanks(examples)
        if self.described is None:
            form = "blank" if self.fills_blanks else "pair"
            if form == "pair" and all(map(choice_data.is_cloze, examples)):
                form = "cloze"
            self.described = {
                "choices": self.group,
                "form": form,
                "cut": examples[0].cut,
                "has_question": any(e.question for e in examples),
            }
        return {"": examples}

    def _check_blanks(self, examples):
        """Raises ValueError where a row has no blank to fill."""
        for example in examples:
            if not choice_data.is_cloze(example):
                raise ValueError(
                    f"{example.source}: has no {choice_data.IDIOM_MARK}, the "
                    "place that --choice_head=masked_lm fills. Leave the flag "
                    "out for other rows than idiom cloze."
                )

    def featurize(self, example):
        """Gives one row of all choices, filled up to `group` of them."""
        choices = choice_data.encode_choices(
            self.tokenizer, example, FLAGS.max_seq_length, self.fills_blanks
        )
        choices += [([], [])] * (self.group - len(choices))
        ids, segments = zip(*choices, strict=True)
        return [
            {
                "input_ids": ids,
                "segment_ids": segments,
                "label_ids": example.label or 0,
            }
        ]

    def feature_spec(self):
        """The features of every model, of all choices one after another."""
        spec = tasks.token_features(FLAGS.max_seq_length * self.group)
        spec.append(records.Feature("label_ids", "int64"))
        return records.FeatureSpec(spec)

    # ---- model

    def head(self, encoder, padded):
        """Scores each choice; a softmax over them."""
        import heads

        if self.fills_blanks:
            vocab = self.tokenizer.vocab
            if "[MASK]" not in vocab:
                raise ValueError(
                    "The vocabulary has no [MASK], which "
                    "--choice_head=masked_lm puts in the blank."
                )
            return heads.BlankHead(
                encoder, vocab["[MASK]"], padded, FLAGS.label_smoothing
            )
        return heads.ChoiceHead(
            encoder.config.hidden_size, FLAGS.label_smoothing
        )

    # ---- scores and files

    def score(self, examples, outputs, batch_size):
        """Accuracy, and the loss in the original's two ways."""
        import metrics

        logits = outputs["logits"]
        labels = [example.label for example in examples]
        scores = metrics.task_scores(
            "classification", ("accuracy",), logits, labels
        )
        losses = metrics.example_losses("classification", logits, labels)
        scores["eval_loss"] = float(losses.mean())
        scores["loss"] = metrics.mean_of_batch_means(losses, batch_size)
        return scores

    def write(self, examples, outputs, directory, suffix):
        """Writes test_results.tsv: a row per question, a number per choice."""
        path = os.path.join(directory, f"test_results{suffix}.tsv")
        lines = [
            "\t".join(map(str, row[: len(example.endings)])) + "\n"
            for example, row in zip(
                examples, outputs["probabilities"], strict=True
            )
        ]
        common_flags.write_whole(path, "".join(lines))
        return [path]

    def report(self, examples, outputs):
        """Which choice is taken for which, and the worst questions."""
        import metrics
        import reports

        logits = outputs["logits"]
        labels = [example.label for example in examples]
        found = logits.argmax(axis=1)
        matrix = metrics.confusion_matrix(labels, found, self.group)
        names = [str(number) for number in range(self.group)]
        losses = metrics.example_losses("classification", logits, labels)
        worst = [
            (
                loss if guess != example.label else 0.0,
                example.source,
                f"{example.label}: {example.endings[example.label]}",
                f"{guess}: {example.endings[guess]}",
                f"{example.context} {example.question}".strip(),
            )
            for loss, example, guess in zip(
                losses, examples, found, strict=True
            )
        ]
        return [
            reports.confusion(names, matrix, "Choices by their number"),
            reports.by_length(outputs["tokens"], found == labels, "accuracy"),
            reports.worst_examples(worst),
        ]

    # ---- serving

    def text_inputs(self):
        """`context` [B], `choices` [B, C], and `question` [B] if trained so.

        Where a question has fewer choices, "" fills up."""
        if self.described["has_question"]:
            return ("context", "question", "choices")
        return ("context", "choices")

    def serve(self, texts, tokenizer, call):
        """Makes the rows of training from raw strings and answers them."""
        import choice_ops

        features = choice_ops.pack_choices(
            tokenizer,
            texts["context"],
            texts["choices"],
            texts.get("question"),
            FLAGS.max_seq_length,
            self.described["form"],
            self.described["cut"],
        )
        return self.serving_outputs(call(features))

    def serving_outputs(self, outputs):
        """`probabilities` [B, C] and the number of the best, `choice` [B]."""
        import tensorflow as tf

        probabilities = outputs["probabilities"]
        choice = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        return {"probabilities": probabilities, "choice": choice}


def main(_):
    """Checks the flags, then makes the trip."""
    task = tasks.prepare(ChoiceTask, ("max_seq_length",))
    import finetuning

    finetuning.run(task)


if __name__ == "__main__":
    define_flags()
    common_flags.run(main)
