"""Chooses which tokens a masked language model has to predict.

Four things can be asked for: single pieces (as BERT was trained), whole words,
whole words of Chinese text by a segmenter, and spans of up to a few words,
shorter ones more often. Of the chosen tokens 80 % become [MASK], 10 % a random
entry of the vocabulary, and 10 % stay as they are.

Pieces and whole words are drawn exactly as google-research/bert drew them: the
same seed gives the same masks. `Draws` makes that affordable.

Records without masks (`create_pretraining_data --unmasked`) are masked while
they are read, anew in every epoch; see `records.unmasked_spec` for what they
hold. Their `word_pieces` give 1 for the first piece of a word, 2 for its other
pieces and 0 for what is never chosen, so that `cumsum(word_pieces == 1)`
numbers the words and `word_pieces > 0` tells the candidates.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import numpy as np

import tokenization

# What the tokenizer surrounds with blanks: one piece per character.
_CJK_RUN = re.compile(f"([{tokenization.CJK}]+)")
_FOUR_FIFTHS = int(0.8 * 2**53)  # exact: random() counts in 2 ** -53


def _float(first, second) -> float:
    """What random() makes of two words: 27 bits of one, 26 of the other."""
    return ((int(first) >> 5) * 67108864 + (int(second) >> 6)) / 2**53


class Draws:
    """The draws of a `random.Random`, many times faster than its methods.

    Every method takes the same 32-bit words from the generator, in the same
    order, as the method of `random.Random` that it is named after, and so
    gives the same value; but the words are fetched in blocks, and numpy
    prepares for each what is asked most often. `close()` leaves the generator
    where its own methods would have left it; until then it must not be
    used."""

    BLOCK = 1 << 14  # words; stays in the processor's cache

    def __init__(self, rng):
        self._rng = rng
        self._states = []  # (number of the first word, state), oldest first
        self._first = 0  # number of the word at place 0
        self._fetched = 0
        self._position = 0
        self._words = np.zeros([0], np.uint32)
        self._size = 0
        self.reserve(1)

    def reserve(self, count: int) -> int:
        """Makes sure that `count` words lie ahead; gives the present place."""
        if self._position + count <= self._size:
            return self._position
        self._states.append((self._fetched, self._rng.getstate()))
        fresh = max(count, self.BLOCK)
        raw = self._rng.getrandbits(32 * fresh).to_bytes(4 * fresh, "little")
        self._fetched += fresh
        self._first += self._position
        while len(self._states) > 1 and self._states[1][0] <= self._first:
            self._states.pop(0)
        words = np.concatenate(
            [self._words[self._position :], np.frombuffer(raw, "<u4")]
        )
        self._position, self._size, self._words = 0, len(words), words
        self.words = memoryview(words)
        # For each place, whether random() < 0.5 and random() < 0.8 there.
        self.halves = (words < 1 << 31).view(np.uint8).tobytes()
        high = words >> 5
        below = high < _FOUR_FIFTHS >> 26
        for place in np.flatnonzero(high == _FOUR_FIFTHS >> 26):
            if place + 1 < len(words):  # one in 134 million
                below[place] = _float(words[place], words[place + 1]) < 0.8
        self.four_fifths = below.view(np.uint8).tobytes()
        bytes_ = (words >> 24).astype(np.uint8)
        self._leading = {
            bits: (bytes_ >> (8 - bits)).tobytes() for bits in range(1, 9)
        }
        return 0

    def close(self):
        """Hands the generator back in the state that the draws have led to."""
        number, state = next(
            item
            for item in reversed(self._states)
            if item[0] <= self._first + self._position
        )
        self._rng.setstate(state)
        rest = self._first + self._position - number
        if rest:
            self._rng.getrandbits(32 * rest)

    def skip_to(self, position: int):
        """Notes that the words before this place have been used."""
        self._position = position

    def random(self) -> float:
        """A float in [0, 1)."""
        position = self._position
        if position + 2 > self._size:
            position = self.reserve(2)
        self._position = position + 2
        return _float(self.words[position], self.words[position + 1])

    def coin(self) -> bool:
        """Whether random() < 0.5."""
        position = self._position
        if position + 2 > self._size:
            position = self.reserve(2)
        self._position = position + 2
        return self.halves[position] == 1

    def below(self, limit: int) -> int:
        """An integer in [0, limit), where limit < 2 ** 32.

        Raises ValueError if there is none."""
        if limit < 1:
            raise ValueError(f"cannot draw a number below {limit}")
        shift = 32 - limit.bit_length()
        while True:
            position = self._position
            if position >= self._size:
                position = self.reserve(1)
            self._position = position + 1
            value = self.words[position] >> shift
            if value < limit:
                return value

    def randint(self, first: int, last: int) -> int:
        """An integer in [first, last]; ValueError if there is none."""
        return first + self.below(last - first + 1)

    def heads(self, count: int) -> bytes:
        """One byte for each of `count` draws: 1 where random() < 0.5."""
        position = self.reserve(2 * count)
        self._position = position + 2 * count
        return self.halves[position : position + 2 * count : 2]

    def choose(self, items: list, count: int) -> list:
        """`count` of the items in random order, or all if there are fewer.

        Uses `items` up. Not a method of `random.Random`; takes a draw for each
        item that is chosen, where `pick` takes one for each that there is."""
        size = len(items)
        position = self.reserve(count)
        words = self.words
        for place in range(min(count, size)):
            j = place + (words[position] * (size - place) >> 32)
            position += 1
            items[place], items[j] = items[j], items[place]
        self._position = position
        return items[:count]

    def pick(self, items: list, count: int | None = None) -> list:
        """The first `count` items (all if None) of the shuffled list.

        Uses `items` up. What it gives and takes is exactly
        `rng.shuffle(items); items[:count]`."""
        count = len(items) if count is None else count
        i = len(items) - 1
        position = self.reserve(3 * i + 64)  # nearly always enough
        leading = self._leading
        while i > 0:
            bits = (i + 1).bit_length()
            lowest = (1 << bits - 1) - 1  # the last i of as many bits
            if bits not in leading:
                leading[bits] = (self._words >> (32 - bits)).tolist()
            draws = leading[bits][position : position + 2 * (i - lowest) + 32]
            start, refused = i, 0
            if lowest >= count:  # what comes to place i is never looked at
                for j in draws:
                    if j <= i:
                        items[j] = items[i]
                        i -= 1
                        if i < lowest:
                            break
                    else:
                        refused += 1
            else:
                for j in draws:
                    if j <= i:
                        items[i], items[j] = items[j], items[i]
                        i -= 1
                        if i < lowest:
                            break
                    else:
                        refused += 1
            position += start - i + refused
            if not draws:
                self._position = position
                position = self.reserve(3 * i + 64)
                leading = self._leading
        self._position = position
        return items[:count]


@dataclasses.dataclass(eq=False)
class Masker:
    """Chooses the positions to predict and replaces the tokens there.

    vocab: token -> id, in the order of its file.
    whole_word: units are words: a piece and the `##` pieces after it, or what
      `continues` says; otherwise every piece is a unit.
    max_ngram: spans of 1 to this many units, n with weight 1 / n (ALBERT).
    draw_per_word: one draw decides between [MASK], random and unchanged for
      all pieces of a unit. By default each piece has its own, so that a word
      can become `[MASK] ##aff house`, as in the original.
    original_draws: choose pieces by the original's draws, not by fewer.

    Raises ValueError for a vocabulary without [MASK], [CLS] or [SEP]."""

    vocab: dict[str, int]
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    whole_word: bool = False
    max_ngram: int = 1
    draw_per_word: bool = False
    original_draws: bool = True

    def __post_init__(self):
        vocab = self.vocab
        absent = [x for x in ("[MASK]", "[CLS]", "[SEP]") if x not in vocab]
        if absent:
            raise ValueError(f"the vocabulary lacks {', '.join(absent)}")
        self._mask_id = vocab["[MASK]"]
        self._vocab_ids = list(vocab.values())
        self._is_later = later_pieces(vocab)
        weights = [1 / n for n in range(1, self.max_ngram + 1)]
        self._ngram_bounds = [
            bound / sum(weights) for bound in accumulate(weights)
        ]

    def num_to_predict(self, length: int) -> int:
        """How many tokens of a sequence are to be predicted.

        The length counts [CLS] and [SEP]; a half is rounded to even, at least
        one is chosen, and never more than max_predictions_per_seq."""
        wanted = max(1, int(round(length * self.masked_lm_prob)))
        return min(self.max_predictions_per_seq, wanted)

    def create_masked_lm_predictions(
        self,
        ids: list[int],
        separator: int,
        draws: Draws,
        continues: Sequence[int] | None = None,
    ) -> tuple[list[int], list[int]]:
        """Masks one sequence in place; gives positions and labels.

        ids: [CLS] A [SEP] B [SEP] or [CLS] A [SEP]. separator: the place of
        the first [SEP]. continues: where given, 1 for every token that belongs
        to the word of the token before it, in place of the `##` rule.
        The positions are sorted; the labels are the ids that stood there."""
        count = self.num_to_predict(len(ids))
        if not self.whole_word and self.max_ngram == 1:
            candidates = list(range(1, len(ids) - 1))
            if separator < len(ids) - 1:
                del candidates[separator - 1]
            pick = draws.pick if self.original_draws else draws.choose
            chosen = pick(candidates, count)
            positions = sorted(chosen)
            labels = [ids[i] for i in positions]
            self._replace(ids, chosen, draws)
            return positions, labels
        units = self._units(ids, separator, continues)
        if self.max_ngram == 1:
            units = self._pick_units(units, count, draws)
        else:
            units = self._pick_spans(units, count, draws)
        positions = sorted([i for unit in units for i in unit])
        labels = [ids[i] for i in positions]
        if self.draw_per_word:
            for unit in units:
                self._replace_word(ids, unit, draws)
        else:
            self._replace(ids, [i for unit in units for i in unit], draws)
        return positions, labels

    def word_pieces(
        self,
        ids: Sequence[int],
        separator: int,
        continues: Sequence[int] | None = None,
    ) -> bytes:
        """What an unmasked record stores: one byte per token, see above."""
        later = continues
        if later is None:
            later = [self._is_later[i] for i in ids]
        pieces = bytearray(2 if is_later else 1 for is_later in later)
        for place in (0, separator, len(ids) - 1):
            pieces[place] = 0
        for place in (1, separator + 1):  # no word reaches over a marker
            if place < len(ids) - 1 and pieces[place]:
                pieces[place] = 1
        return bytes(pieces)

    def _units(self, ids, separator, continues):
        """The positions of each unit, as lists.

        Without `continues` a `##` piece that comes first in B, its beginning
        cut off, joins the last word of A, as in the original."""
        if not self.whole_word:
            continues = bytes(len(ids))
        strict = continues is not None
        if not strict:
            is_later = self._is_later
            continues = [is_later[i] for i in ids]
        units = []
        for start, end in ((1, separator), (separator + 1, len(ids) - 1)):
            fresh = strict
            for i in range(start, end):
                if continues[i] and units and not fresh:
                    units[-1].append(i)
                else:
                    units.append([i])
                    fresh = False
        return units

    def _pick_units(self, units, count, draws):
        """Whole units in random order, as many as there is room for."""
        picked, room = [], count
        for unit in draws.pick(units):
            if room <= 0:
                break
            if len(unit) <= room:
                picked.append(unit)
                room -= len(unit)
        return picked

    def _pick_spans(self, units, count, draws):
        """Spans of units that stand side by side, without overlap.

        Where a span finds no room, shorter ones at the same place are tried."""
        free = [True] * len(units)
        picked, room = [], count
        for start in draws.pick(list(range(len(units)))):
            if room <= 0:
                break
            value = draws.random()
            size = 1
            while value >= self._ngram_bounds[size - 1]:
                size += 1
            end = start
            used = 0
            while end < min(start + size, len(units)) and free[end]:
                if end > start and units[end][0] != units[end - 1][-1] + 1:
                    break  # [SEP] stands between
                if used + len(units[end]) > room:
                    break
                used += len(units[end])
                free[end] = False
                picked.append(units[end])
                end += 1
            room -= used
        return picked

    def _replace(self, ids, chosen, draws):
        """One draw for each token: [MASK], unchanged, or a random entry."""
        mask_id, vocab_ids = self._mask_id, self._vocab_ids
        reach = 4 * len(chosen)
        position = draws.reserve(reach)
        four_fifths, halves = draws.four_fifths, draws.halves
        for index in chosen:
            if four_fifths[position]:
                ids[index] = mask_id
                position += 2
            elif halves[position + 2]:
                position += 4
            else:
                draws.skip_to(position + 4)
                ids[index] = vocab_ids[draws.below(len(vocab_ids))]
                position = draws.reserve(reach)
                four_fifths, halves = draws.four_fifths, draws.halves
        draws.skip_to(position)

    def _replace_word(self, ids, unit, draws):
        """One draw for all tokens of a word."""
        if draws.random() < 0.8:
            for index in unit:
                ids[index] = self._mask_id
        elif not draws.coin():
            for index in unit:
                ids[index] = self._vocab_ids[draws.below(len(self._vocab_ids))]


# --- words of Chinese text --------------------------------------------------


def load_segmenter(name: str) -> Callable[[str], Iterable[str]] | None:
    """A function that cuts a run of Chinese characters into words.

    'none' gives None; 'blank' takes runs as they stand, for text whose words
    are separated by blanks already; 'jieba' needs requirements-zh.txt.

    Raises ValueError for another name, or where jieba is not installed."""
    if name == "none":
        return None
    if name == "blank":
        return lambda run: (run,)
    if name != "jieba":
        raise ValueError(
            f"--segmenter={name} is not one of: none, blank, jieba"
        )
    try:
        import jieba
    except ImportError:
        raise ValueError(
            "--segmenter=jieba needs the package jieba. Run "
            "`pip install -r requirements-zh.txt`, or separate the words of "
            "the input by blanks and take --segmenter=blank"
        ) from None
    jieba.setLogLevel(60)
    return jieba.lcut


def encode_words(
    text: str,
    encode: Callable[[str], list[int]],
    segment: Callable[[str], Iterable[str]],
    is_later: Sequence[int],
) -> tuple[list[int], bytes]:
    """The ids of a text, and for each whether it continues a word.

    The ids are those of `encode(text)`: the segmenter never changes a piece,
    it only joins Chinese characters into units. `is_later[id]` is 1 for the
    `##` pieces, which continue a word anyway."""
    ids, continues = [], bytearray()
    for number, part in enumerate(_CJK_RUN.split(text)):
        if not part:
            continue
        pieces = encode(part)
        ids += pieces
        if number % 2 and len(pieces) == len(part):
            for word in segment(part):
                continues += b"\0" + b"\1" * (len(word) - 1)
        else:
            continues += bytes([is_later[i] for i in pieces])
    return ids, bytes(continues)


def later_pieces(vocab: dict[str, int]) -> bytes:
    """For each id 1 where the token is a `##` piece, else 0."""
    flags = bytearray(max(vocab.values()) + 1)
    for token, index in vocab.items():
        flags[index] = token.startswith("##")
    return bytes(flags)


def chinese_pieces(vocab: dict[str, int]) -> bytes:
    """For each id 1 where the token is a single Chinese character, else 0."""
    flags = bytearray(max(vocab.values()) + 1)
    for token, index in vocab.items():
        flags[index] = len(token) == 1 and bool(_CJK_RUN.match(token))
    return bytes(flags)
