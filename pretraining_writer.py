"""Writes pre-training instances to TFRecord files, in one piece or in shards.

`create_training_data` does what the original does: all documents in one
shuffle, all instances in another. The text must fit into memory, as numbers of
four bytes; the instances are kept on disk. For any amount of text see
`pretraining_shards.py`, which uses the writer and the workers of this module.
"""

import contextlib
import dataclasses
import glob
import os
import random
import tempfile
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import accumulate, islice
from operator import itemgetter

import numpy as np

import masking
import records
from pretraining_data import (
    Corpus,
    Options,
    TextEncoder,
    TrainingInstance,
    read_corpus,
    sample_instances,
)

_BATCH = 500  # instances that a worker encodes at a time


class InstanceEncoder:
    """Turns a `TrainingInstance` into the bytes of its record.

    The same bytes as `options.spec.encode` of its features; whatever comes
    back in many records is made once."""

    def __init__(self, options: Options, vocab_size: int):
        spec = options.spec
        self._spec = spec
        self._unmasked = options.unmasked
        self._length = length = options.max_seq_length
        self._count = count = options.max_predictions_per_seq
        self._ones = b"\1" * length
        self._zeros = bytes(max(length, count))
        self._small = length <= 128  # a position fits a byte
        self._varints = [records.VARINTS[i] for i in range(vocab_size)]
        self._ids = [spec.prefix("input_ids", n) for n in range(5 * length + 1)]
        self._segments = spec.prefix("segment_ids", length)
        self._masks = [
            spec.entry("input_mask", self._ones[:n]) for n in range(length + 1)
        ]
        self._random = [
            spec.entry("next_sentence_labels", x) for x in (b"\0", b"\1")
        ]
        if self._unmasked:
            return
        self._positions = spec.prefix("masked_lm_positions", count)
        self._labels = [
            spec.prefix("masked_lm_ids", n) for n in range(5 * count + 1)
        ]
        self._weights = [
            spec.entry("masked_lm_weights", [1.0] * n) for n in range(count + 1)
        ]

    def __call__(self, instance: TrainingInstance) -> bytes:
        """A serialized tf.train.Example with the features of the options."""
        ids, separator, is_random, positions, labels, _, pieces = instance
        varints = self._varints
        ones, zeros = self._ones, self._zeros
        length, first = len(ids), separator + 1
        padding = zeros[: self._length - length]
        packed = b"".join(itemgetter(*ids)(varints))
        parts = [
            self._ids[len(packed) + len(padding)],
            packed,
            padding,
            self._masks[length],
            self._segments,
            zeros[:first],
            ones[: length - first],
            padding,
        ]
        if self._unmasked:
            parts.append(self._spec.entry("word_pieces", pieces))
        else:
            unused = zeros[: self._count - len(labels)]
            packed = b"".join(map(varints.__getitem__, labels))
            if self._small:
                parts += (self._positions, bytes(positions), unused)
            else:
                entry = self._spec.entry("masked_lm_positions", positions)
                parts.append(entry)
            parts += (
                self._labels[len(packed) + len(unused)],
                packed,
                unused,
                self._weights[len(labels)],
            )
        parts.append(self._random[is_random])
        return self._spec.join(parts)


@dataclasses.dataclass
class Summary:
    """Counts of what was written; they add up over shards."""

    documents: int = 0
    sentences: int = 0
    instances: int = 0
    random_next_instances: int = 0
    truncated_instances: int = 0
    tokens: int = 0
    masked_tokens: int = 0
    text_tokens: int = 0
    chinese_text_tokens: int = 0

    def __add__(self, other: "Summary") -> "Summary":
        ours, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Summary(*(a + b for a, b in zip(ours, theirs, strict=True)))

    def add_corpus(self, corpus: Corpus, is_chinese: bytes):
        """Counts the text, once however often it is used."""
        ids = np.frombuffer(corpus.ids, np.int32)
        self.documents += corpus.num_documents
        self.sentences += corpus.num_sentences
        self.text_tokens += len(ids)
        flags = np.frombuffer(is_chinese, np.uint8)
        for start in range(0, len(ids), 1 << 20):  # little memory at a time
            part = flags[ids[start : start + (1 << 20)]]
            self.chinese_text_tokens += int(np.count_nonzero(part))

    def add(self, instance: TrainingInstance):
        """Counts an instance."""
        self.instances += 1
        self.tokens += len(instance.input_ids)
        self.masked_tokens += len(instance.masked_lm_ids)
        self.truncated_instances += instance.truncated
        self.random_next_instances += instance.is_random_next

    def shares(self, options: Options) -> dict[str, float]:
        """The shares that tell whether the data is what was wanted.

        random_next: instances with label 1. masked: predicted tokens among
        all, [CLS] and [SEP] counted, as masked_lm_prob counts them. truncated:
        instances whose text was cut. filled: places that are not padding."""
        instances = max(1, self.instances)
        places = instances * options.max_seq_length
        return {
            "random_next_share": self.random_next_instances / instances,
            "masked_share": self.masked_tokens / max(1, self.tokens),
            "truncated_share": self.truncated_instances / instances,
            "filled_share": self.tokens / places,
        }

    def warnings(self, options: Options) -> list[str]:
        """What the user should know before training on the data."""
        found = []
        share = self.shares(options)["random_next_share"]
        if options.nsp == "next" and self.documents == 1:
            found.append(
                "The input is a single document, so 'random' sentences come "
                "from the same one. Separate documents by blank lines."
            )
        if options.nsp != "none" and not 0.05 <= share <= 0.95:
            found.append(
                f"{share:.1%} of the instances have next-sentence label 1: "
                "nothing can be learned from the labels. Put one sentence on "
                "each line and several lines in a document, or take --nsp=none."
            )
        chinese = self.chinese_text_tokens / max(1, self.text_tokens)
        if (
            options.do_whole_word_mask
            and options.segmenter == "none"
            and chinese > 0.2
        ):
            found.append(
                f"{chinese:.0%} of the tokens are Chinese characters, of which "
                "each is a word of its own: whole-word masking has no effect "
                "on them. Take --segmenter=jieba, or separate words by blanks "
                "and take --segmenter=blank."
            )
        return found


# --- workers ----------------------------------------------------------------


class Tools:
    """What a worker needs, built once in each process."""

    def __init__(self, tokenizer, options: Options):
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab
        self.options = options
        self.encode_text = TextEncoder(tokenizer, options.segmenter)
        self.encode_instance = InstanceEncoder(
            options, max(tokenizer.vocab.values()) + 1
        )
        self.is_chinese = masking.chinese_pieces(tokenizer.vocab)


_tools = None  # of a worker process


def _start_worker(parent, tokenizer, options):
    global _tools
    _tools = Tools(tokenizer, options)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent):
    """Ends this worker when its parent was killed; it would wait for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _run_in_worker(job, item):
    return job(_tools, item)


class Workers:
    """Runs jobs in processes of their own, or in this one if it is only one.

    A job is a function of a module that takes `Tools` and one item. The
    results come in the order of the items, so that nothing depends on the
    number of workers. Use it in a `with` block."""

    def __init__(self, tools: Tools, count: int = 1):
        self.tools = tools
        self.count = count
        self._pool = None
        if count > 1:
            arguments = (os.getpid(), tools.tokenizer, tools.options)
            self._pool = ProcessPoolExecutor(
                count, None, _start_worker, arguments
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, job: Callable, items: Iterable) -> Iterator:
        """The results of `job(tools, item)`, few of them at a time.

        Raises the ValueError of a job, and OSError if a process died."""
        if self._pool is None:
            for item in items:
                yield job(self.tools, item)
            return
        waiting = deque()
        for item in items:
            waiting.append(self._pool.submit(_run_in_worker, job, item))
            if len(waiting) > 2 * self.count:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())


def _result(future):
    """The result of a job; its errors become errors of this process."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise OSError(
            "a worker process died, perhaps for want of memory. Take fewer "
            "--num_workers, or --streaming with more --num_shards"
        ) from None
    except ValueError as error:
        raise ValueError(str(error)) from error


def encode_text_block(tools: Tools, block: tuple[bytes, str, int]):
    """The job that turns a block of text into ids."""
    return tools.encode_text(*block)


def encode_batch(tools: Tools, batch: list[tuple]) -> list[bytes]:
    """The job that turns instances into the bytes of a TFRecord file."""
    encode, frame = tools.encode_instance, records.frame
    return [frame(encode(instance)) for instance in batch]


# --- writing ----------------------------------------------------------------


class _Spool:
    """Records on disk that can be read back in any order; leaves no file."""

    def __init__(self, directory: str):
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self._starts = array("Q", [0])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def extend(self, framed: list[bytes]):
        """Appends records, framed as TFRecord files have them."""
        content = memoryview(b"".join(framed))
        while content:  # a raw file may take less than it is given
            content = content[self._file.write(content) :]
        starts = self._starts
        starts.extend(
            islice(accumulate(map(len, framed), initial=starts[-1]), 1, None)
        )

    def read_in(self, order: Iterable[int]) -> Iterator[bytes]:
        """Yields records by their numbers, in that order."""
        handle, starts = self._file.fileno(), self._starts
        for number in order:
            start = starts[number]
            yield os.pread(handle, starts[number + 1] - start, start)

    def __len__(self):
        return len(self._starts) - 1


def write_instance_to_example_files(
    instances: Iterable[TrainingInstance],
    output_files: list[str],
    rng,
    workers: Workers,
    summary: Summary,
):
    """Writes instances in an order that `rng` shuffles, and counts them.

    Several files get the records in turn. All appear whole or not at all."""
    directory = os.path.dirname(output_files[0]) or "."
    with _Spool(directory) as spool:
        for batch in workers.map(encode_batch, _batches(instances, summary)):
            spool.extend(batch)
        order = array("I", range(len(spool)))
        rng.shuffle(order)
        if not len(spool):
            return
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(records.RecordWriter(path))
                for path in output_files
            ]
            for place, framed in enumerate(spool.read_in(order)):
                writers[place % len(writers)].write_framed(framed)


def _batches(instances, summary):
    """Lists of instances as plain tuples, which are cheap to send."""
    batch = []
    for instance in instances:
        summary.add(instance)
        batch.append(tuple(instance))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


def create_training_data(
    input_files: list[str],
    output_files: list[str],
    seed: int,
    workers: Workers,
) -> Summary:
    """Writes the instances of all files, equal to the original's.

    The same seed gives the same bytes for any number of workers.
    Raises ValueError where the text gives no instance."""
    remove_leftovers(output_files)
    rng = random.Random(seed)
    tools, options = workers.tools, workers.tools.options
    corpus = read_corpus(
        input_files, lambda blocks: workers.map(encode_text_block, blocks)
    )
    check_corpus(corpus, options, ", ".join(input_files))
    summary = Summary()
    summary.add_corpus(corpus, tools.is_chinese)
    write_instance_to_example_files(
        sample_instances(corpus, options, tools.vocab, rng),
        output_files,
        rng,
        workers,
        summary,
    )
    check_instances(summary, ", ".join(input_files), options)
    return summary


def check_corpus(corpus: Corpus, options: Options, source: str):
    """Raises ValueError where nothing sensible can be made of the text."""
    if not corpus.num_documents:
        raise ValueError(f"no text in {source}")
    if options.nsp == "next" and corpus.num_sentences == 1:
        raise ValueError(
            f"{source} has a single sentence, so A and B would be the same "
            "one. Give more text, one sentence per line, or take --nsp=none"
        )


def check_instances(summary: Summary, source: str, options: Options):
    """Raises ValueError where nothing came out."""
    if not summary.instances:
        raise ValueError(
            f"{source} gives no instance with --dupe_factor="
            f"{options.dupe_factor} and --nsp={options.nsp}. Give more text"
            + (", or lower --num_shards" if source.startswith("shard") else "")
        )


def remove_leftovers(output_files: Iterable[str]):
    """Removes what a killed run has left of files of these names."""
    for path in output_files:
        directory, name = os.path.split(os.path.realpath(path))
        pattern = os.path.join(
            glob.escape(directory), f".{glob.escape(name)}.*.part"
        )
        for leftover in glob.glob(pattern):
            os.remove(leftover)
