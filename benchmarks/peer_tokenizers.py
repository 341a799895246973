"""The Rust tokenizers as a process that answers jobs, one JSON a line.

Started by tokenization.py and vocabulary.py here with the interpreter that
PEER_PYTHON names; imports nothing of this project. Jobs: {"job": "encode",
"input_file", "vocab_file", "lower"} and {"job": "train", "input_file",
"vocab_file", "vocab_size", "lower"}. Answers hold CPU seconds, on one core.
"""

import hashlib
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def encode(job):
    """CPU seconds to turn the lines of a text into ids, cold and warm."""
    from tokenizers import BertWordPieceTokenizer

    with open(job["input_file"], "rb") as file:
        lines = file.read().decode("utf-8", "ignore").split("\n")
    tokenizer = BertWordPieceTokenizer(
        job["vocab_file"], lowercase=job["lower"]
    )
    seconds = []
    for _ in range(2):
        start = time.process_time()
        ids = [
            tokenizer.encode(line, add_special_tokens=False).ids
            for line in lines
        ]
        seconds.append(time.process_time() - start)
    digests = [hashlib.md5(str(row).encode()).hexdigest()[:8] for row in ids]
    return {"seconds": seconds, "digests": digests}


def train(job):
    """CPU seconds to learn a vocabulary; writes it."""
    from tokenizers import BertWordPieceTokenizer

    start = time.process_time()
    tokenizer = BertWordPieceTokenizer(lowercase=job["lower"])
    tokenizer.train(
        [job["input_file"]],
        vocab_size=job["vocab_size"],
        min_frequency=1,
        show_progress=False,
    )
    seconds = time.process_time() - start
    rows = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    with open(job["vocab_file"], "w", encoding="utf-8") as file:
        file.writelines(f"{token}\n" for token, _ in rows)
    return {"seconds": seconds, "rows": len(rows)}


def main():
    """Answers until standard input ends."""
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"encode": encode, "train": train}[job["job"]](job)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
