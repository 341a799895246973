"""Measures the vocabulary learner, beside the Rust trainer where there is one.

    python benchmarks/vocabulary.py [--input_file=TEXT,TEXT] \
        [--vocab_size=30522] [--num_workers=2]

Learns from nine of ten lines of the texts; counts the pieces per word on the
others. Prints CPU seconds of everything that runs (`python tokenization.py`
with its workers and imports; training alone for the Rust trainer, which
PEER_PYTHON makes available), peak memory, rows and pieces per word, both from
one run. Takes less than a minute.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))  # instead of this directory's namesakes
sys.path.remove(str(HERE))


def default_texts():
    """Real UTF-8 text beside the checkout, else the project's sample."""
    data = ROOT.parent / "shared" / "data"
    names = (
        "raw_en/tinyshakespeare.txt",
        "wikitext-2/valid.txt",
        "raw_genesis/english-kjv.txt",
        "raw_genesis/portuguese.txt",
        "SST2/train.tsv",
        "MRPC/train.tsv",
        "ag_news_csv/test.csv",
        "SQuAD1.1/dev-v1.1.json",
        "SQuAD2.0/dev-v2.0.json",
    )
    found = [data / name for name in names if (data / name).exists()]
    return ",".join(map(str, found or [ROOT / "sample_text.txt"]))


def read_texts(paths):
    """The distinct lines of all texts; JSON gives its strings."""
    lines = {}
    for path in paths:
        text = pathlib.Path(path).read_text(encoding="utf-8-sig")
        if path.endswith(".json"):
            # Strings only, so that keys and numbers do not count as text.
            values = [json.loads(text)]
            while values:
                value = values.pop()
                if isinstance(value, dict):
                    values += value.values()
                elif isinstance(value, list):
                    values += value
                elif isinstance(value, str):
                    lines[value.replace("\n", " ")] = None
        else:
            lines.update(dict.fromkeys(text.split("\n")))
    return [line for line in lines if line.strip()]


def pieces_per_word(vocab_file, lines):
    """How many pieces a word of unseen text needs, and [UNK] per 10,000."""
    import tokenization

    tokenizer = tokenization.FullTokenizer(vocab_file)
    words = sum(len(tokenizer.basic_tokenizer.tokenize(x)) for x in lines)
    ids = [piece for line in lines for piece in tokenizer.encode(line)]
    unknown = ids.count(tokenizer.vocab["[UNK]"])
    return len(ids) / words, 10000 * unknown / words


def learn_ours(text, vocab_file, options):
    """CPU seconds and peak MB of the command line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "tokenization.py"),
            f"--input_file={text}",
            f"--vocab_file={vocab_file}",
            f"--vocab_size={options.vocab_size}",
            f"--num_workers={options.num_workers}",
        ],
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime
    seconds -= before.ru_utime + before.ru_stime
    return seconds, f"{after.ru_maxrss / 1024:.0f} MB peak"


def learn_peer(text, vocab_file, options):
    """CPU seconds of the Rust trainer on one core."""
    job = {
        "job": "train",
        "input_file": str(text),
        "vocab_file": str(vocab_file),
        "vocab_size": options.vocab_size,
        "lower": True,
    }
    done = subprocess.run(
        [os.environ["PEER_PYTHON"], str(HERE / "peer_tokenizers.py")],
        input=json.dumps(job) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["seconds"], "training alone"


def main():
    """Prints one line for each learner."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input_file", default=default_texts())
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--num_workers", type=int, default=2)
    options = parser.parse_args()
    lines = read_texts(options.input_file.split(","))
    unseen = lines[::10]
    seen = [line for place, line in enumerate(lines) if place % 10]
    learners = {"ours": learn_ours}
    if os.environ.get("PEER_PYTHON"):
        learners["rust trainer"] = learn_peer
    with tempfile.TemporaryDirectory() as directory:
        text = pathlib.Path(directory) / "text.txt"
        text.write_text("\n".join(seen) + "\n", encoding="utf-8")
        print(f"{text.stat().st_size / 1e6:.1f} MB of text")
        for name, learn in learners.items():
            vocab_file = pathlib.Path(directory) / "vocab.txt"
            seconds, note = learn(text, vocab_file, options)
            rows = vocab_file.read_bytes().count(b"\n")
            pieces, unknown = pieces_per_word(vocab_file, unseen)
            print(
                f"  {name:12} {seconds:6.1f} CPU-seconds ({note}); {rows} "
                f"rows; {pieces:.4f} pieces per unseen word, "
                f"{unknown:.2f} [UNK] in 10,000"
            )


if __name__ == "__main__":
    main()
