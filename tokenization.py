"""Text to WordPiece tokens and ids, and back to places in the raw text.

Gives token for token what google-research/bert gave in 2018, with the
Unicode tables of the running Python. Run as a script it learns a vocabulary:

    python tokenization.py --input_file='corpus/*.txt' \\
        --vocab_file=vocab.txt --vocab_size=30522 --do_lower_case=true

See vocabulary.py for that part. Nothing here imports TensorFlow.
"""

import collections
import itertools
import json
import logging
import os
import re
import unicodedata

_log = logging.getLogger(__name__)

# The eight blocks that BERT splits into single characters. Extension F and
# later, kana, hangul and U+3005/U+3007 are not among them.
CJK = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
# str.split() separates at these, but BERT deletes them as control characters
# before it splits: "one\x0btwo" is the word "onetwo".
_GLUE = "\x0b\x0c\x1c-\x1f\x85"
_GLUED = re.compile(f"[{_GLUE}]")
_CJK_OR_GLUE = re.compile(f"[{CJK}{_GLUE}]")
# The units that never influence each other: a CJK character, or what lies
# between two separators.
_UNIT = re.compile(rf"[{CJK}]|(?:[^{CJK}\s]|[{_GLUE}])+")
_ASCII_WORD = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_flatten = itertools.chain.from_iterable
_KEEP, _DROP, _PUNCTUATION = range(3)

RESERVED_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LOWER_MODELS = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = (
    "cased_L-12_H-768_A-12",
    "cased_L-24_H-1024_A-16",
    "multi_cased_L-12_H-768_A-12",
)


class UnknownTokenError(KeyError, ValueError):
    """A token or id that the vocabulary does not hold."""

    def __str__(self):
        return str(self.args[0])


class VocabularyEncodingError(UnicodeDecodeError):
    """A row of a vocabulary file that is not UTF-8; names file and line."""

    def __str__(self):
        return self.reason


def validate_case_matches_checkpoint(do_lower_case, init_checkpoint):
    """Refuses a casing that contradicts one of Google's 2018 model names.

    Knows the seven names of 2018, directly before `/bert_model.ckpt`, as the
    original did; `resolve_casing` knows more. Raises ValueError."""
    if not init_checkpoint:
        return
    match = re.match(
        "^.*?([A-Za-z0-9_-]+)/bert_model.ckpt", os.fspath(init_checkpoint)
    )
    if match is None:
        return
    name = match.group(1)
    if name in _LOWER_MODELS and not do_lower_case:
        kind, right = "lowercased", True
    elif name in _CASED_MODELS and do_lower_case:
        kind, right = "cased", False
    else:
        return
    raise ValueError(
        f"You passed in `--do_lower_case={not right}` with "
        f"`--init_checkpoint={init_checkpoint}`. However, `{name}` seems to "
        f"be a {kind} model, so you should pass in "
        f"`--do_lower_case={right}` so that the fine-tuning matches how the "
        "model was pre-training. If this error is wrong, please just comment "
        "out this check."
    )


def _casing_and_source(path):
    """What a checkpoint's directory says: (bool or None, where it says so)."""
    path = os.path.abspath(os.fspath(path))
    directory = path if os.path.isdir(path) else os.path.dirname(path)
    for name in ("run.json", "tokenizer_config.json"):
        file = os.path.join(directory, name)
        if not os.path.isfile(file):
            continue
        try:
            with open(file, encoding="utf-8-sig") as reader:
                value = json.load(reader).get("do_lower_case")
        except (ValueError, AttributeError) as error:
            raise ValueError(
                f"{file}: is not a JSON object: {error}"
            ) from error
        if isinstance(value, bool):
            return value, file
    name = os.path.basename(directory)
    if name in _LOWER_MODELS or name in _CASED_MODELS:
        return name in _LOWER_MODELS, f"the directory name '{name}'"
    match = re.search(r"(?<![a-z])(un)?cased(?![a-z])", name.lower())
    if match:
        return bool(match.group(1)), f"the directory name '{name}'"
    return None, None


def casing_of_directory(path):
    """Whether a model lower-cases its text, as its directory says, or None.

    `path` is a directory, or a file or checkpoint prefix in it. Asked in
    this order: `do_lower_case` in `run.json`, in `tokenizer_config.json`,
    then `cased`/`uncased` in the directory's name or one of the names of
    2018. Raises ValueError for a file that is not JSON."""
    return _casing_and_source(path)[0]


def resolve_casing(flag_value, path):
    """The casing to use: the flag where given, else what the model says.

    `flag_value` is None where the user did not say. `path` may be empty.
    Without any word the answer is True, the original's default. Raises
    ValueError where flag and model contradict each other."""
    found, source = _casing_and_source(path) if path else (None, None)
    if flag_value is None:
        return True if found is None else found
    if found is not None and bool(flag_value) != found:
        raise ValueError(
            f"--do_lower_case={str(bool(flag_value)).lower()} contradicts "
            f"{source} of the model at {path}, which was trained with "
            f"do_lower_case={str(found).lower()}. Leave the flag away, or, "
            "if the model's directory is wrong, put a tokenizer_config.json "
            'with {"do_lower_case": ...} into it.'
        )
    return bool(flag_value)


def convert_to_unicode(text):
    """Gives `text` as str; bytes are UTF-8 whose bad bytes are dropped.

    Raises ValueError for any other type."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Unsupported string type: {type(text)}")


def printable_text(text):
    """Gives `text` as a str that can be printed; see convert_to_unicode."""
    return convert_to_unicode(text)


def _read_rows(vocab_file):
    """The stripped rows of a vocabulary file, blank ones included."""
    vocab_file = os.fspath(vocab_file)
    try:
        with open(vocab_file, "rb") as reader:
            lines = reader.read().split(b"\n")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"The vocabulary file {vocab_file} does not exist."
        ) from error
    if not lines[-1]:
        lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            # The original's reader deletes \r wherever it stands.
            rows.append(line.decode("utf-8").replace("\r", "").strip())
        except UnicodeDecodeError as error:
            problem = VocabularyEncodingError(*error.args)
            problem.reason = (
                f"{vocab_file}:{number}: the row is not UTF-8 (byte "
                f"{line[error.start]:#04x} at column {error.start + 1}). "
                "Convert the file to UTF-8."
            )
            raise problem from error
    return rows


def load_vocab(vocab_file):
    """Reads a vocabulary file into an OrderedDict of token -> row number.

    Rows end at \\n only and lose white space at both ends, so the row U+2028
    of the Chinese vocabulary loads as "", as in the original. Blank rows
    count. Of a repeated token the last row wins, with one warning that names
    both lines. Raises FileNotFoundError, or VocabularyEncodingError (a
    UnicodeDecodeError and ValueError) with file and line."""
    return _number_rows(_read_rows(vocab_file), vocab_file)


def _number_rows(rows, vocab_file):
    vocab = collections.OrderedDict()
    repeated = []
    for index, token in enumerate(rows):
        if token and token in vocab:
            repeated.append((token, vocab[token] + 1, index + 1))
        vocab[token] = index
    if repeated:
        shown = "; ".join(
            f"'{token}' on lines {first} and {last}"
            for token, first, last in repeated[:5]
        )
        more = f"; and {len(repeated) - 5} more" if repeated[5:] else ""
        _log.warning(
            f"{vocab_file}: repeated tokens get the id of their last line: "
            f"{shown}{more}."
        )
    return vocab


def convert_by_vocab(vocab, items):
    """Looks every item up: tokens to ids, or ids to tokens, as a list.

    Raises UnknownTokenError (a KeyError and ValueError) naming the item."""
    try:
        return [vocab[item] for item in items]
    except KeyError as error:
        raise UnknownTokenError(
            f"{error.args[0]!r} is not in the vocabulary of {len(vocab)} "
            "entries. Is this the vocabulary that the model was trained with?"
        ) from error


def convert_tokens_to_ids(vocab, tokens):
    """The ids of `tokens`; see convert_by_vocab for the error."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab, ids):
    """The tokens of `ids`; see convert_by_vocab for the error."""
    return convert_by_vocab(inv_vocab, ids)


def check_vocab(
    vocab,
    config_vocab_size,
    vocab_file,
    needed=RESERVED_TOKENS,
    checkpoint_vocab_size=None,
):
    """Refuses a vocabulary that does not fit the model, before it is built.

    `vocab` is the dict of load_vocab. Sizes may be None where unknown. A
    vocabulary smaller than the config only warns: its last ids are never
    used. Raises ValueError for an absent `needed` token and for a size that
    cannot work, naming every size."""
    absent = [token for token in needed if token not in vocab]
    if absent:
        hint = ""
        if any(token.startswith("\ufeff") for token in vocab):
            hint = " The file begins with a byte order mark: save it without."
        raise ValueError(
            f"{vocab_file}: lacks the reserved token"
            f"{'s' if len(absent) > 1 else ''} {', '.join(absent)}. "
            f"Take the vocabulary that belongs to the model.{hint}"
        )
    rows = max(vocab.values(), default=-1) + 1
    sizes = f"{vocab_file} has {rows} rows"
    if config_vocab_size is not None:
        sizes += f", the config's vocab_size is {config_vocab_size}"
    if checkpoint_vocab_size is not None:
        sizes += f", the checkpoint's table has {checkpoint_vocab_size} rows"
    known = {config_vocab_size, checkpoint_vocab_size} - {None}
    if any(rows > size for size in known) or len(known) > 1:
        raise ValueError(
            f"{sizes}. Take the vocabulary and config that belong to the "
            "checkpoint, or grow its table with `python tokenization.py "
            "--extend_vocab`."
        )
    if any(rows < size for size in known):
        _log.warning(f"{sizes}: ids from {rows} on are never used.")


def _warn_of_casing(vocab, do_lower_case, vocab_file):
    """Warns where the vocabulary's letters speak against the casing."""
    words = [token for token in vocab if token[:1] != "["]
    upper = sum(token != token.lower() for token in words)
    lower = sum(token != token.upper() for token in words)
    if do_lower_case and upper > len(words) // 10:
        _log.warning(
            f"{vocab_file} has upper-case letters in {upper} of {len(words)} "
            "tokens, which lower-cased text never reaches. Is it for "
            "--do_lower_case=false?"
        )
    elif lower and not do_lower_case and not upper:
        _log.warning(
            f"{vocab_file} has no upper-case letter: with lower-casing off, "
            "words with capitals become [UNK]. Is it for "
            "--do_lower_case=true?"
        )


def whitespace_tokenize(text):
    """Splits at Unicode white space, as str.split() does."""
    return text.split()


def _is_control(char):
    """Whether BERT deletes `char`: Cc and Cf but tab, newline, return."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char):
    """Whether `char` is a token by itself: ASCII symbols and category P."""
    if char < "\x7f":
        return char > " " and not char.isalnum()
    return unicodedata.category(char).startswith("P")


class _Memo(dict):
    """A dict that computes what it lacks, and forgets all when full."""

    def __init__(self, compute, limit=1 << 17, longest_key=48):
        super().__init__()
        self.compute, self.limit, self.longest = compute, limit, longest_key

    def __missing__(self, key):
        value = self.compute(key)
        if len(key) <= self.longest:
            if len(self) >= self.limit:
                self.clear()
            self[key] = value
        return value

    def __reduce__(self):  # pickled and copied empty
        return type(self), (self.compute, self.limit, self.longest)


def _kind_of(char):
    if char in "\0\ufffd" or _is_control(char):
        return _DROP
    return _PUNCTUATION if _is_punctuation(char) else _KEEP


_KIND = _Memo(_kind_of)
_IS_MARK = _Memo(lambda char: unicodedata.category(char) == "Mn")


def _units(text):
    """Cuts text into the pieces that are tokenized independently."""
    if (_GLUED if text.isascii() else _CJK_OR_GLUE).search(text):
        return _UNIT.findall(text)
    return text.split()


class BasicTokenizer:
    """Cleans text and splits it into words, punctuation and CJK characters.

    do_lower_case: lower-case every word. strip_accents: decompose (NFD) and
    drop the marks of category Mn, which makes `パ` of Japanese `ハ` and pulls
    Hangul apart; None follows do_lower_case, as in the original. keep: texts
    such as "[MASK]" that stay whole and as they are wherever they stand in
    the text; none by default, since a text from outside may hold "[SEP]"."""

    def __init__(self, do_lower_case=True, strip_accents=None, keep=()):
        self.do_lower_case = bool(do_lower_case)
        self.strip_accents = (
            self.do_lower_case if strip_accents is None else bool(strip_accents)
        )
        self.keep = (keep,) if isinstance(keep, str) else tuple(keep)
        if not all(self.keep):
            raise ValueError("keep holds an empty text; leave it out.")
        longest_first = sorted(self.keep, key=len, reverse=True)
        self._markers = (
            re.compile(f"({'|'.join(map(re.escape, longest_first))})")
            if self.keep
            else None
        )

    def tokenize(self, text):
        """The list of words of a str, or of UTF-8 bytes."""
        words = []
        for is_marker, _, part in self.parts(convert_to_unicode(text)):
            if is_marker:
                words.append(part)
                continue
            for unit in _units(part):
                words.extend(self.words(unit))
        return words

    def parts(self, text):
        """Cuts text at kept markers: a list of (is marker, start, text)."""
        if self._markers is None:
            return [(False, 0, text)]
        cut, start = [], 0
        for index, part in enumerate(self._markers.split(text)):
            if part:
                cut.append((index % 2 == 1, start, part))
            start += len(part)
        return cut

    def words(self, unit):
        """The words of one unit: a text without white space or inner CJK."""
        if unit.isascii():
            if not unit.isprintable():
                unit = "".join(c for c in unit if c.isprintable())
            if self.do_lower_case:
                unit = unit.lower()
            return [unit] if unit.isalnum() else _ASCII_WORD.findall(unit)
        kinds, letters = _KIND, unit.isalpha()
        if not letters:
            unit = "".join([c for c in unit if kinds[c] != _DROP])
        if self.do_lower_case:
            unit = unit.lower()
        if self.strip_accents:
            is_mark = _IS_MARK
            unit = unicodedata.normalize("NFD", unit)
            unit = "".join([c for c in unit if not is_mark[c]])
        if letters:
            return [unit]
        words, start = [], 0
        for index, char in enumerate(unit):
            if kinds[char] == _PUNCTUATION:
                if start < index:
                    words.append(unit[start:index])
                words.append(char)
                start = index + 1
        if start < len(unit):
            words.append(unit[start:])
        return words

    def words_with_places(self, unit):
        """`words` with, for each word, the places of its code points.

        Returns a list of (word, starts, ends): places in `unit`, one per
        code point of the word. A dropped accent belongs to the code point
        before it, so its end moves behind the accent."""
        if unit.isascii() and unit.isprintable():
            found, at = [], 0
            for word in self.words(unit):
                to = at + len(word)
                found.append((word, range(at, to), range(at + 1, to + 1)))
                at = to
            return found
        chars = [
            (char, start, start + 1)
            for start, char in enumerate(unit)
            if _KIND[char] != _DROP
        ]
        if self.do_lower_case:
            chars = _lower(chars)
        if self.strip_accents:
            chars = _drop_marks(_decompose(chars))
        words, open_word = [], False
        for char, start, end in chars:
            punctuation = _KIND[char] == _PUNCTUATION
            if punctuation or not open_word:
                words.append(([], [], []))
            for values, value in zip(
                words[-1], (char, start, end), strict=True
            ):
                values.append(value)
            open_word = not punctuation
        return [("".join(word), starts, ends) for word, starts, ends in words]


def _lower(chars):
    """str.lower() on (char, start, end): the final sigma needs the word."""
    places = [
        (start, end)
        for char, start, end in chars
        for _ in char.lower()  # two code points for U+0130
    ]
    lowered = "".join([char for char, _, _ in chars]).lower()
    return [(char, *place) for char, place in zip(lowered, places, strict=True)]


def _decompose(chars):
    """NFD on (char, start, end), with the canonical order of marks."""
    order, run = [], []
    for char, start, end in chars:
        for part in unicodedata.normalize("NFD", char):
            rank = unicodedata.combining(part)
            if not rank:
                order += sorted(run, key=lambda item: item[0])
                run = []
            run.append((rank, part, start, end))
    order += sorted(run, key=lambda item: item[0])
    return [item[1:] for item in order]


def _drop_marks(chars):
    """Drops accents; the code point before them takes over their place."""
    kept = []
    for char, start, end in chars:
        if not _IS_MARK[char]:
            kept.append((char, start, end))
        elif kept:
            before, first, last = kept[-1]
            kept[-1] = (before, first, max(last, end))
    return kept


class WordpieceTokenizer:
    """Splits words into the longest pieces of a vocabulary, from the left.

    A word without such a split, or longer than max_input_chars_per_word,
    becomes `unk_token`. `vocab` is not to be changed afterwards."""

    def __init__(self, vocab, unk_token="[UNK]", max_input_chars_per_word=200):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text):
        """The pieces of every white-space separated word of `text`."""
        pieces = []
        for word in whitespace_tokenize(convert_to_unicode(text)):
            pieces.extend(self.pieces(word))
        return pieces

    def pieces(self, word):
        """The pieces of one word as a tuple: `unaffable` gives
        ("un", "##aff", "##able")."""
        vocab, size, longest = self.vocab, len(word), self._longest
        if size > self.max_input_chars_per_word:
            return (self.unk_token,)
        if word in vocab:
            return (word,)
        found, start = [], 0
        while start < size:
            prefix = "##" if start else ""
            end = min(size, start + longest)
            while end > start:
                piece = prefix + word[start:end]
                if piece in vocab:
                    break
                end -= 1
            else:
                return (self.unk_token,)
            found.append(piece)
            start = end
        return tuple(found)


class FullTokenizer:
    """Text to WordPiece tokens, ids and places in the raw text.

    Attributes: vocab (token -> id), inv_vocab (id -> token), vocab_size (rows
    of the file, blank and repeated ones counted), do_lower_case,
    strip_accents, keep; the last three as in BasicTokenizer. Answers are
    remembered per word in a bounded memory, so the vocabulary must not be
    changed afterwards. Raises what load_vocab raises, and ValueError for a
    marker to keep that the vocabulary lacks."""

    def __init__(
        self, vocab_file, do_lower_case=True, strip_accents=None, keep=()
    ):
        rows = _read_rows(vocab_file)
        self.vocab_file = os.fspath(vocab_file)
        self.vocab = _number_rows(rows, vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.vocab_size = len(rows)
        self.basic_tokenizer = BasicTokenizer(
            do_lower_case, strip_accents, keep
        )
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)
        self.do_lower_case = self.basic_tokenizer.do_lower_case
        self.strip_accents = self.basic_tokenizer.strip_accents
        self.keep = self.basic_tokenizer.keep
        absent = [marker for marker in self.keep if marker not in self.vocab]
        if absent:
            raise ValueError(
                f"{vocab_file}: lacks the markers to keep whole: "
                f"{', '.join(absent)}. Add them to the vocabulary."
            )
        _warn_of_casing(self.vocab, self.do_lower_case, vocab_file)
        self._word_pieces = _Memo(self.wordpiece_tokenizer.pieces)
        self._word_ids = _Memo(self._encode_word)
        self._unit_tokens = _Memo(self._tokenize_unit)
        self._unit_ids = _Memo(self._encode_unit)
        self._unit_places = _Memo(self._place_unit, limit=1 << 15)

    def tokenize(self, text):
        """The list of tokens of a str, or of UTF-8 bytes."""
        return self._look_up(text, self._unit_tokens, lambda marker: marker)

    def encode(self, text):
        """The list of ids of the tokens of `text`: tokenize and look up.

        Raises UnknownTokenError if the vocabulary lacks [UNK] and a word
        needs it."""
        return self._look_up(text, self._unit_ids, self.vocab.__getitem__)

    def _look_up(self, text, memo, of_marker):
        text, look_up = convert_to_unicode(text), memo.__getitem__
        if not self.keep:
            return list(_flatten(map(look_up, _units(text))))
        found = []
        for is_marker, _, part in self.basic_tokenizer.parts(text):
            if is_marker:
                found.append(of_marker(part))
            else:
                found.extend(_flatten(map(look_up, _units(part))))
        return found

    def tokenize_with_offsets(self, text):
        """Tokens with their places in `text`: (tokens, starts, ends).

        Three lists of one length. Places are code points of the raw input
        (of the decoded text, if it is bytes), end exclusive. [UNK] covers its
        whole word. A dropped accent belongs to the letter before it; deleted
        control characters count as places but belong to a token only in its
        inside. Two pieces of one decomposed letter have the same place."""
        tokens, starts, ends = [], [], []
        memo = self._unit_places
        for is_marker, base, part in self.basic_tokenizer.parts(
            convert_to_unicode(text)
        ):
            if is_marker:
                tokens.append(part)
                starts.append(base)
                ends.append(base + len(part))
                continue
            for match in _UNIT.finditer(part):
                shift = base + match.start()
                for token, start, end in memo[match.group()]:
                    tokens.append(token)
                    starts.append(start + shift)
                    ends.append(end + shift)
        return tokens, starts, ends

    def convert_tokens_to_ids(self, tokens):
        """The ids of `tokens`; UnknownTokenError names one that is absent."""
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids):
        """The tokens of `ids`; UnknownTokenError names one out of range."""
        return convert_by_vocab(self.inv_vocab, ids)

    def _tokenize_unit(self, unit):
        return self._join_words(unit, self._word_pieces)

    def _encode_unit(self, unit):
        return self._join_words(unit, self._word_ids)

    def _encode_word(self, word):
        pieces = self.wordpiece_tokenizer.pieces(word)
        return tuple(convert_by_vocab(self.vocab, pieces))

    def _join_words(self, unit, memo):
        words = self.basic_tokenizer.words(unit)
        if len(words) == 1:
            return memo[words[0]]
        parts = map(memo.__getitem__, words)
        return tuple(itertools.chain.from_iterable(parts))

    def _place_unit(self, unit):
        """The tokens of a unit as (token, start, end) within the unit."""
        places = []
        for word, starts, ends in self.basic_tokenizer.words_with_places(unit):
            pieces = self._word_pieces[word]
            if len(pieces) == 1:  # whole, or [UNK] whatever its length
                places.append((pieces[0], min(starts), max(ends)))
                continue
            at = 0
            for piece in pieces:
                to = at + len(piece) - (2 if at else 0)
                places.append((piece, min(starts[at:to]), max(ends[at:to])))
                at = to
        return places


if __name__ == "__main__":
    from absl import flags

    import common_flags
    import vocabulary

    vocabulary.define_flags()
    flags.adopt_module_key_flags(vocabulary)
    common_flags.run(vocabulary.main)
