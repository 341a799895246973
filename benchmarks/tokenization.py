"""Measures the tokenizer against the original's method, in one process.

    python benchmarks/tokenization.py --input_file=TEXT[,TEXT] \
        --vocab_file=vocab.txt [--do_lower_case=true] [--rounds=5]

Tokenizes the lines of the texts to ids, ours and the 2018 algorithm as
tf-models-official still ships it, and the Rust `tokenizers` where installed,
alternating, and prints MB of text per CPU-second (best round) and the ratios.
`cold` counts a new tokenizer with nothing remembered; a round of `warm`
reuses it. Takes about a minute per 5 MB; the load of the machine matters
little, since CPU time is counted and the sides alternate.
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def peers(vocab_file, do_lower_case):
    """The sides to measure: name -> function that makes an encoder."""
    import tokenization

    def ours():
        return tokenization.FullTokenizer(vocab_file, do_lower_case).encode

    def ours_with_offsets():
        tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case)
        return lambda line: tokenizer.convert_tokens_to_ids(
            tokenizer.tokenize_with_offsets(line)[0]
        )

    sides = {"ours": ours, "ours with offsets": ours_with_offsets}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from official.nlp.tools import tokenization as original

    def original_side():
        tokenizer = original.FullTokenizer(vocab_file, do_lower_case)
        # The fork allows 400 characters per word, the original 200.
        tokenizer.wordpiece_tokenizer.max_input_chars_per_word = 200
        return lambda line: tokenizer.convert_tokens_to_ids(
            tokenizer.tokenize(line)
        )

    sides["original"] = original_side
    try:
        import tokenizers
    except ImportError:
        return sides

    def rust():
        tokenizer = tokenizers.BertWordPieceTokenizer(
            vocab_file, lowercase=do_lower_case
        )
        return lambda line: tokenizer.encode(line, add_special_tokens=False).ids

    sides["rust tokenizers"] = rust
    return sides


def measure(sides, lines, rounds):
    """CPU seconds per side: name -> (best cold, best warm, ids)."""
    best = {name: [float("inf"), float("inf"), None] for name in sides}
    for _ in range(rounds):
        for name, make in sides.items():
            encode = make()
            for turn in (0, 1):
                start = time.process_time()
                ids = [encode(line) for line in lines]
                seconds = time.process_time() - start
                best[name][turn] = min(best[name][turn], seconds)
            best[name][2] = ids
    return best


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--vocab_file", required=True)
    parser.add_argument("--do_lower_case", default="true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lower = options.do_lower_case.lower() in ("true", "1", "yes")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sides = peers(options.vocab_file, lower)
    for path in options.input_file.split(","):
        with open(path, "rb") as reader:
            data = reader.read()
        lines = [line.decode("utf-8", "ignore") for line in data.split(b"\n")]
        megabytes = sum(len(line.encode()) + 1 for line in lines) / 1e6
        result = measure(sides, lines, options.rounds)
        base = result["original"]
        print(f"{os.path.basename(path)}: {megabytes:.2f} MB")
        for name, (cold, warm, ids) in result.items():
            same = sum(a == b for a, b in zip(ids, base[2], strict=True))
            print(
                f"  {name:18} cold {megabytes / cold:6.2f} "
                f"warm {megabytes / warm:6.2f} MB/CPU-s; ratio to the "
                f"original {base[0] / cold:5.1f} cold {base[1] / warm:5.1f} "
                f"warm; {same} of {len(lines)} lines equal"
            )


if __name__ == "__main__":
    main()
