"""Many runs of run_classifier.py in one process, and rows to run on.

As a script (see `run_all`) it takes a file of commands and a file for their
results; TensorFlow is loaded once for all of them."""

import contextlib
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import traceback
from typing import NamedTuple

from conftest import GOLDEN, ROOT

TINY = (
    f"--vocab_file={GOLDEN}/tiny/vocab.txt",
    f"--bert_config_file={GOLDEN}/tiny/bert_config.json",
    f"--init_checkpoint={GOLDEN}/tiny/bert_model.ckpt",
    "--max_seq_length=16",
    "--train_batch_size=4",
    "--tensorboard=false",
)
WORDS = "the and of to in that it was he un want able is a b 中 国 . !".split()


class Run(NamedTuple):
    """What became of a run: exit code, stderr, log lines."""

    code: int
    stderr: str
    log: list


def text(number, length=8):
    """A text that depends on its number only."""
    return " ".join(
        WORDS[(number * 7 + place * (3 + number % 5)) % len(WORDS)]
        for place in range(1 + (number * 5) % length)
    )


def write_rows(path, rows):
    """Writes a TSV file and the directories above it; gives the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ("\t".join(map(str, row)) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_set(directory, labels=("no", "yes"), pair=False, sizes=(16, 9, 7)):
    """Writes train.tsv, dev.tsv, test.tsv of own data; gives the directory."""
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        rows = [("label", "text_a", "text_b")[: 2 + pair]]
        for number in range(size):
            label = labels[number % len(labels)]
            rows.append((label, text(number), text(number + 3))[: 2 + pair])
        write_rows(directory / f"{split}.tsv", rows)
    return directory


def read_table(path):
    """The rows of a file of numbers divided by tabs."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [[float(cell) for cell in line.split("\t")] for line in lines]


def read_results(path):
    """The numbers of an eval_results.txt by name."""
    lines = pathlib.Path(path).read_text().splitlines()
    pairs = (line.split(" = ") for line in lines)
    return {key: float(value) for key, value in pairs}


def run_python(code, *arguments, check=True):
    """Runs Python code in a fresh process that finds modules and tests."""
    places = [str(ROOT), str(ROOT / "tests")]
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(places), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert not check or result.returncode == 0, result.stderr
    return result


def run_all(commands, directory):
    """Runs lists of flags one after the other in one process: list of Run."""
    asked, told = directory / "commands.json", directory / "results.json"
    asked.write_text(json.dumps([list(map(str, c)) for c in commands]))
    code = "import sys, classifier_runs; classifier_runs.main(*sys.argv[1:])"
    run_python(code, asked, told)
    return [Run(*result) for result in json.loads(told.read_text())]


def succeed(commands, directory):
    """run_all, where every run has to end with 0."""
    runs = run_all(commands, directory)
    for command, run in zip(commands, runs, strict=True):
        assert run.code == 0, f"{command}: {run.stderr}"
    return runs


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname}: {record.getMessage()}")


def main(asked, told):
    """Runs the commands of a file, writes their results to another."""
    from absl import flags
    from absl import logging as absl_logging

    import common_flags
    import run_classifier

    run_classifier.define_flags()
    flags.FLAGS.mark_as_parsed()
    results = []
    for command in json.loads(pathlib.Path(asked).read_text()):
        flags.FLAGS.unparse_flags()
        for name in flags.FLAGS:
            flags.FLAGS[name].unparse()
        lines, errors, code = _Lines(), io.StringIO(), 0
        logging.getLogger().addHandler(lines)
        logging.getLogger().setLevel(logging.INFO)
        with contextlib.redirect_stderr(errors):
            try:
                rest = flags.FLAGS(["run_classifier.py", *command])
                absl_logging.set_verbosity(absl_logging.INFO)
                common_flags.guard(run_classifier.main)(rest)
            except SystemExit as end:
                code = end.code
            except BaseException:
                traceback.print_exc()
                code = 99
        logging.getLogger().removeHandler(lines)
        results.append([code, errors.getvalue(), lines.lines])
    pathlib.Path(told).write_text(json.dumps(results))
