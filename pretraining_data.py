"""Turns plain text into the training instances of BERT's pre-training.

The input has one sentence per line and a blank line between documents. What is
kept of it are numbers only: one array of token ids and the places where its
sentences and documents begin (`Corpus`). An instance is two ranges of that
array, so making one costs about as much as writing it down.

For the same seed and settings the instances are those of google-research/bert,
in the same order; `Draws` takes the same random numbers.
"""

import dataclasses
import gzip
import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import masking
import records
import text_files
from masking import Draws, Masker

_BLOCK_BYTES = 1 << 20  # of text that a worker takes at a time


@dataclasses.dataclass(frozen=True)
class Options:
    """What decides on the instances, apart from text, vocabulary and seed.

    nsp: 'next' (is B the continuation?), 'sop' (are A and B in order?) or
      'none' (one segment).
    segmenter: 'none', 'blank' or 'jieba', see masking.load_segmenter.
    unmasked: keep the tokens, for masking while training.
    original_labels: call B random even where it does follow A, as the
      original does when the corpus is a single document.
    original_draws: take the original's draws in its order. Otherwise fewer
      are taken, and continuations are as frequent as random sentences where
      the text allows it.

    Raises ValueError for settings that cannot work."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = False
    max_ngram: int = 1
    draw_per_word: bool = False
    segmenter: str = "none"
    nsp: str = "next"
    unmasked: bool = False
    original_labels: bool = False
    original_draws: bool = True

    def __post_init__(self):
        if self.nsp not in ("next", "sop", "none"):
            raise ValueError(f"--nsp={self.nsp} is not one of: next, sop, none")
        pair = "a pair, [CLS] x [SEP] y [SEP]"
        least = 3 if self.nsp == "none" else 5
        if self.max_seq_length < least:
            raise ValueError(
                f"--max_seq_length={self.max_seq_length} must be at least "
                f"{least} for " + ("[CLS] x [SEP]" if least == 3 else pair)
            )
        for name in ("short_seq_prob", "masked_lm_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"--{name}={getattr(self, name)} must lie between 0 and 1"
                )
        for name, limit in (
            ("max_predictions_per_seq", 0),
            ("dupe_factor", 0),
            ("max_ngram", 1),
        ):
            if getattr(self, name) < limit:
                raise ValueError(
                    f"--{name}={getattr(self, name)} must be at least {limit}"
                )
        if self.draw_per_word and not self.do_whole_word_mask:
            raise ValueError(
                "--draw_per_word needs words: add --do_whole_word_mask"
            )
        if self.segmenter != "none" and not self.do_whole_word_mask:
            raise ValueError(
                f"--segmenter={self.segmenter} has no effect on single "
                "pieces: add --do_whole_word_mask"
            )

    @property
    def spec(self) -> records.FeatureSpec:
        """The features of the records."""
        if self.unmasked:
            return records.unmasked_spec(self.max_seq_length)
        return records.pretraining_spec(
            self.max_seq_length, self.max_predictions_per_seq
        )


class TrainingInstance(NamedTuple):
    """One sequence: [CLS] A [SEP] B [SEP], or [CLS] A [SEP].

    `separator` is the place of the first [SEP]. `is_random_next` is the label:
    B is a random sentence, or (sop) A and B are swapped. `word_pieces` is set
    for unmasked instances only."""

    input_ids: list[int]
    separator: int
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    truncated: bool
    word_pieces: bytes = b""

    @property
    def segment_ids(self) -> list[int]:
        """0 up to the first [SEP], 1 behind it."""
        first = self.separator + 1
        return [0] * first + [1] * (len(self.input_ids) - first)


# --- reading ----------------------------------------------------------------


class TextEncoder:
    """Turns blocks of text into ids, with the words where a segmenter is set.

    Called with bytes of whole lines, the name of their file and the number of
    the first line. Gives ids (array of int32), the number of ids of each
    sentence, 0 standing for the end of a document, and the flags of
    `masking.encode_words` (empty without a segmenter).

    Raises ValueError with file and line where the text is not UTF-8."""

    def __init__(self, tokenizer, segmenter: str = "none"):
        self._encode = tokenizer.encode
        self._segment = masking.load_segmenter(segmenter)
        self._is_later = masking.later_pieces(tokenizer.vocab)

    def __call__(self, data: bytes, path: str, line_number: int = 1):
        encode, segment = self._encode, self._segment
        ids, lengths, flags = array("i"), array("i"), bytearray()
        for line in decode_lines(data, path, line_number):
            if segment is None:
                pieces = encode(line)
            else:
                pieces, continues = masking.encode_words(
                    line, encode, segment, self._is_later
                )
                flags += continues
            if pieces:
                ids.extend(pieces)
                lengths.append(len(pieces))
            elif not line.strip():
                lengths.append(0)
        return ids, lengths, bytes(flags)


def decode_lines(data: bytes, path: str, line_number: int = 1) -> list[str]:
    """The lines of a block of text; they end at \\n only and lose every \\r.

    The line after the last \\n is left out if it is empty.
    Raises ValueError with file and line where the text is not UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = line_number + data.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}:{line}: the text is not UTF-8 (byte "
            f"{data[error.start]:#04x}). Convert the file, for example with "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None
    if "\r" in text:
        text = text.replace("\r", "")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def read_blocks(path: str) -> Iterator[tuple[bytes, str, int]]:
    """Cuts a file into blocks of whole lines: (bytes, path, first line).

    A name that ends in .gz is read uncompressed.
    Raises ValueError naming a compressed file that is damaged."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        line = 1
        while True:
            try:
                block = file.read(_BLOCK_BYTES)
                block += file.readline()
            except text_files.GZIP_ERRORS as error:
                raise text_files.damaged_gzip(path, error) from None
            if not block:
                return
            yield block, path, line
            line += block.count(b"\n")


class Corpus:
    """Documents as numbers.

    ids: int32 array of all tokens. starts: where each sentence begins in it,
    and the end. documents: which sentence each document begins with, and the
    end. flags: with a segmenter, 1 for each token that continues a word."""

    def __init__(self):
        self.ids = array("i")
        self.starts = array("q", [0])
        self.documents = array("q", [0])
        self.flags = bytearray()

    def add(self, ids: array, lengths: array, flags: bytes = b""):
        """Appends what a `TextEncoder` gives."""
        end = len(self.ids)
        self.ids.extend(ids)
        self.flags += flags
        starts = self.starts
        for length in lengths:
            if length:
                end += length
                starts.append(end)
            else:
                self.end_document()

    def end_document(self):
        """What is added next begins a document; an empty one vanishes."""
        if self.documents[-1] < self.num_sentences:
            self.documents.append(self.num_sentences)

    @property
    def num_sentences(self) -> int:
        """How many sentences there are."""
        return len(self.starts) - 1

    @property
    def num_documents(self) -> int:
        """How many documents there are, after `end_document`."""
        return len(self.documents) - 1


def read_corpus(
    input_files: Iterable[str], encode_blocks: Callable[[Iterable], Iterable]
) -> Corpus:
    """Reads whole files into a `Corpus`.

    `encode_blocks` maps the blocks of `read_blocks` to what a `TextEncoder`
    gives for them, in order; it may do so in other processes. A file without
    a blank line at its end goes on in the next file, as in the original."""
    corpus = Corpus()
    blocks = itertools.chain.from_iterable(map(read_blocks, input_files))
    for encoded in encode_blocks(blocks):
        corpus.add(*encoded)
    corpus.end_document()
    return corpus


# --- pairs ------------------------------------------------------------------


class _Pair(NamedTuple):
    """Two ranges of `Corpus.ids`, before truncation, and the label."""

    a: int
    a_end: int
    b: int
    b_end: int
    is_random: bool


def truncate_seq_pair(
    length_a: int, length_b: int, max_num_tokens: int, draws: Draws
) -> tuple[int, int, int, int]:
    """How many tokens A and B lose: (front of A, back of A, front, back of B).

    The longer one loses a token until both fit, B where they are equally long;
    a draw for each token decides between front and back."""
    surplus = length_a + length_b - max_num_tokens
    if surplus <= 0:
        return 0, 0, 0, 0
    heads = draws.heads(surplus)
    # The longer one loses alone at first, then they take turns.
    if length_a > length_b:
        alone = min(surplus, length_a - length_b)
        of_a = heads[:alone] + heads[alone + 1 :: 2]
        of_b = heads[alone::2]
    else:
        alone = min(surplus, length_b - length_a + 1)
        of_b = heads[:alone] + heads[alone + 1 :: 2]
        of_a = heads[alone::2]
    front_a, front_b = of_a.count(1), of_b.count(1)
    return front_a, len(of_a) - front_a, front_b, len(of_b) - front_b


class InstanceSampler:
    """Makes the instances of one document after the other.

    It owns the order of the documents and the draws; `order` and `draws` are
    those of one seed."""

    def __init__(
        self,
        corpus: Corpus,
        order: list[int],
        options: Options,
        vocab: dict[str, int],
        draws: Draws,
    ):
        self._corpus = corpus
        self._order = order
        self._options = options
        self._draws = draws
        self._masker = Masker(
            vocab,
            options.masked_lm_prob,
            options.max_predictions_per_seq,
            options.do_whole_word_mask,
            options.max_ngram,
            options.draw_per_word,
            options.original_draws,
        )
        self._cls, self._sep = vocab["[CLS]"], vocab["[SEP]"]
        markers = 2 if options.nsp == "none" else 3
        self._max_num_tokens = options.max_seq_length - markers
        self._surplus_random = 0  # random labels minus the others
        self._pairs = {
            "next": self._next_sentence_pairs
            if options.original_draws
            else self._balanced_pairs,
            "sop": self._order_pairs,
            "none": self._single_segments,
        }[options.nsp]

    def create_instances_from_document(
        self, document_index: int
    ) -> Iterator[TrainingInstance]:
        """The instances of one document, in the order of its text."""
        ids, draws, masker = self._corpus.ids, self._draws, self._masker
        limit, cls, sep = self._max_num_tokens, self._cls, self._sep
        single = self._options.nsp == "none"
        flags = self._corpus.flags
        unmasked = self._options.unmasked
        for a, a_end, b, b_end, is_random in self._pairs(document_index):
            truncated = a_end - a + b_end - b > limit
            if truncated:
                front_a, back_a, front_b, back_b = truncate_seq_pair(
                    a_end - a, b_end - b, limit, draws
                )
                a, a_end = a + front_a, a_end - back_a
                b, b_end = b + front_b, b_end - back_b
            separator = a_end - a + 1
            if single:
                tokens = [cls, *ids[a:a_end], sep]
            else:
                tokens = [cls, *ids[a:a_end], sep, *ids[b:b_end], sep]
            continues = None
            if flags:
                continues = b"\0%b\0" % flags[a:a_end]
                if not single:
                    continues += b"%b\0" % flags[b:b_end]
            if unmasked:
                pieces = masker.word_pieces(tokens, separator, continues)
                yield TrainingInstance(
                    tokens, separator, is_random, [], [], truncated, pieces
                )
                continue
            positions, labels = masker.create_masked_lm_predictions(
                tokens, separator, draws, continues
            )
            yield TrainingInstance(
                tokens, separator, is_random, positions, labels, truncated
            )

    def _range(self, document_index: int) -> tuple[int, int]:
        """The first sentence of a document and the one after its last."""
        number = self._order[document_index]
        documents = self._corpus.documents
        return documents[number], documents[number + 1]

    def _target_length(self) -> int:
        """Usually full; a short one now and then, as fine-tuning has them."""
        draws = self._draws
        if draws.random() < self._options.short_seq_prob:
            return draws.randint(2, self._max_num_tokens)
        return self._max_num_tokens

    def _fill(self, sentence: int, end: int, length: int) -> int:
        """The sentence after those that fill up `length`, one at least."""
        starts = self._corpus.starts
        return bisect_left(
            starts, starts[sentence] + max(length, 1), sentence + 1, end
        )

    def _random_sentence(self, document_index: int) -> tuple[int, int, int]:
        """A sentence of another document, the end of it, and which it is."""
        below = self._draws.below
        for _ in range(10):
            other = below(len(self._order))
            if other != document_index:
                break
        first, last = self._range(other)
        return first + below(last - first), last, other

    def _next_sentence_pairs(self, document_index: int) -> Iterator[_Pair]:
        """Pairs as the original draws them, in its order of draws."""
        draws, starts = self._draws, self._corpus.starts
        fill = self._fill
        target = self._target_length()
        at, last = self._range(document_index)
        while at < last:
            end = fill(at, last, target)
            split = at + 1
            if end - at >= 2:
                split = at + draws.randint(1, end - at - 1)
            a, a_end = starts[at], starts[split]
            if end - at == 1 or draws.coin():
                b, b_last, other = self._random_sentence(document_index)
                b_end = fill(b, b_last, target - (a_end - a))
                is_random = self._options.original_labels or not (
                    other == document_index and b == split
                )
                at = split  # what was not used begins the next pair
            else:
                b, b_end, is_random = split, end, False
                at = end
            yield a, a_end, starts[b], starts[b_end], is_random

    def _balanced_pairs(self, document_index: int) -> Iterator[_Pair]:
        """Pairs of which half are continuations, wherever the text allows.

        A single sentence that fills the sequence may be continued by the next
        one, and the odds lean against the label that is ahead. Where there is
        no other document, B is random only if it neither overlaps nor follows
        A; a document that is alone and a single sentence gives nothing."""
        draws, starts = self._draws, self._corpus.starts
        target = self._target_length()
        first, last = self._range(document_index)
        at = first
        while at < last:
            end = self._fill(at, last, target)
            split = at + 1
            if end - at >= 2:
                split = at + draws.randint(1, end - at - 1)
            room = target - (starts[split] - starts[at])
            is_random = draws.random() < 0.5 - self._surplus_random / 16
            if is_random or split == last:
                b, b_last, other = self._random_sentence(document_index)
                is_random = True
                if other == document_index and b <= split:
                    if at > first:
                        b, b_last = first + draws.below(at - first), at
                    elif split < last:
                        is_random = False
                    else:
                        return
            a, a_end = starts[at], starts[split]
            if is_random:
                b_end, at = self._fill(b, b_last, room), split
            else:
                b = split
                at = b_end = end if end > b else self._fill(b, last, room)
            self._surplus_random += 1 if is_random else -1
            yield a, a_end, starts[b], starts[b_end], is_random

    def _order_pairs(self, document_index: int) -> Iterator[_Pair]:
        """Two consecutive pieces of text, in half of the pairs swapped.

        A sentence that has no neighbour is cut in two; one of a single token
        is left out."""
        draws, starts = self._draws, self._corpus.starts
        target = self._target_length()
        at, last = self._range(document_index)
        while at < last:
            end = self._fill(at, last, target)
            if end - at == 1 and end < last:
                end += 1
            a, b_end = starts[at], starts[end]
            if end - at >= 2:
                b = starts[at + draws.randint(1, end - at - 1)]
            elif b_end - a >= 2:
                b = a + draws.randint(1, b_end - a - 1)
            else:
                return
            at = end
            if draws.coin():
                yield b, b_end, a, b, True
            else:
                yield a, b, b, b_end, False

    def _single_segments(self, document_index: int) -> Iterator[_Pair]:
        """Whole sentences that fit, as many as there is room for.

        A sentence that is too long is cut into pieces."""
        starts = self._corpus.starts
        target = self._target_length() if self._max_num_tokens > 1 else 1
        at, last = self._range(document_index)
        place = starts[at]
        while at < last:
            end = bisect_right(starts, place + target, at + 1, last + 1) - 1
            if end > at:
                stop = starts[end]
            else:
                end, stop = at, place + target
            yield place, stop, stop, stop, False
            at, place = end, stop


def create_training_instances(
    input_files: Iterable[str], tokenizer, options: Options, rng
) -> list[TrainingInstance]:
    """All instances of the files, in the shuffled order, in memory.

    `rng` is a random.Random; it is left as the original would leave it."""
    encoder = TextEncoder(tokenizer, options.segmenter)
    corpus = read_corpus(
        input_files, lambda blocks: itertools.starmap(encoder, blocks)
    )
    made = list(sample_instances(corpus, options, tokenizer.vocab, rng))
    rng.shuffle(made)
    return made


def sample_instances(
    corpus: Corpus, options: Options, vocab: dict[str, int], rng
) -> Iterator[TrainingInstance]:
    """The instances of a corpus, dupe by dupe, before they are shuffled."""
    order = list(range(corpus.num_documents))
    rng.shuffle(order)
    draws = Draws(rng)
    sampler = InstanceSampler(corpus, order, options, vocab, draws)
    for _ in range(options.dupe_factor):
        for index in range(len(order)):
            yield from sampler.create_instances_from_document(index)
    draws.close()
