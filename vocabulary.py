"""Learns a WordPiece vocabulary from text; run it as `tokenization.py`.

    python tokenization.py --input_file='corpus/*.txt' \\
        --vocab_file=vocab.txt --vocab_size=30522 --do_lower_case=true

Words are counted as the tokenizer cuts them, on all cores, in parts of a few
MB; memory follows the number of distinct words. Pieces are then merged pair
by pair, the most frequent first (byte-pair encoding with ## before what
continues a word), until the vocabulary is full. The same text gives the same
bytes for any order of files and any number of workers. About 4 CPU-seconds
for 10 MB. Nothing here imports TensorFlow, unless --algorithm=tensorflow_text
or a checkpoint is asked for.

    python tokenization.py --extend_vocab=OLD/vocab.txt \\
        --input_file='domain/*.txt' --vocab_file=NEW/vocab.txt \\
        --num_new_words=1000 --init_checkpoint=OLD/bert_model.ckpt \\
        --output_checkpoint=NEW/bert_model.ckpt

adds the domain words that the old vocabulary splits most, as new rows at its
end with new rows of the embedding, or (--use_unused_rows) in the place of its
[unused] rows.
"""

import codecs
import collections
import gzip
import heapq
import multiprocessing
import os
import re

from absl import flags, logging

import common_flags
import records
import text_files
import tokenization
import vocabulary_extension as extension

FLAGS = flags.FLAGS

MAX_WORD_CHARS = 200  # longer words are [UNK] for every vocabulary
_PART_BYTES = 2 << 20
_PAIR_BITS = 21  # a symbol's number; vocabularies end at two million
_ALPHABET = 1000  # characters that are always welcome
_PLAIN = tokenization.BasicTokenizer(do_lower_case=False)
_COVERAGE = 0.9999  # share of the text that the alphabet covers at least


# --- counting words ---------------------------------------------------------


def count_words(texts, do_lower_case=True, strip_accents=None):
    """Counts the words of texts: a Counter of word -> int.

    `texts` is any iterable of str, UTF-8 bytes or scalar string tensors (a
    list, an open file, a tf.data.Dataset). Words are those of BasicTokenizer;
    words over 200 characters are left out, as no vocabulary reaches them."""
    tokenizer = tokenization.BasicTokenizer(do_lower_case, strip_accents)
    counts = collections.Counter()
    for text in texts:
        if hasattr(text, "numpy"):
            text = text.numpy()
        _add_words(counts, tokenization.convert_to_unicode(text), tokenizer)
    return counts


def _add_words(counts, text, tokenizer):
    """Adds the words of one text to the counts."""
    units = collections.Counter(tokenization._units(text))
    for unit, number in units.items():
        for word in tokenizer.words(unit):
            if len(word) <= MAX_WORD_CHARS:
                counts[word] += number


def count_files(
    files,
    do_lower_case=True,
    strip_accents=None,
    encoding="utf-8",
    num_workers=1,
):
    """Counts the words of text files, `.gz` ones unpacked; see count_words.

    Raises ValueError naming file and line where the bytes are not of the
    encoding, and naming the file where it is no whole gzip file."""
    parts = [part for path in files for part in _parts(path)]
    arguments = (do_lower_case, strip_accents, encoding)
    counts = collections.Counter()
    if num_workers > 1 and len(parts) > 1:
        with multiprocessing.Pool(
            min(num_workers, len(parts)), _start_worker, arguments
        ) as pool:
            for counted in pool.imap(_count_part, parts):
                _add_counts(counts, counted)
    else:
        _start_worker(*arguments)
        for part in parts:
            _add_counts(counts, _count_part(part))
    return counts


def _add_counts(counts, counted):
    if isinstance(counted, str):
        raise ValueError(counted)
    for word, number in counted.items():
        counts[word] += number


def _parts(path):
    """Cuts a file into (path, first byte, end): whole words, a few MB each.

    A compressed file is one part, (path, 0, None)."""
    if path.endswith(".gz"):
        return [(path, 0, None)]
    parts, start, size = [], 0, os.path.getsize(path)
    with open(path, "rb") as file:
        while start < size:
            end = min(start + _PART_BYTES, size)
            file.seek(end)
            while end < size:
                block = file.read(1 << 16)
                if cut := re.search(rb"[\n ]", block):
                    end += cut.end()
                    break
                end += len(block)
            parts.append((path, start, end))
            start = end
    return parts


def _blocks(path, start, end):
    """The bytes of a part, in blocks that end between two words."""
    if end is not None:
        with open(path, "rb") as file:
            file.seek(start)
            yield file.read(end - start)
        return
    rest = b""
    with gzip.open(path, "rb") as file:
        while block := file.read(_PART_BYTES):
            block = rest + block
            cut = max(block.rfind(b"\n"), block.rfind(b" ")) + 1
            rest = block[cut:]
            yield block[:cut]
    yield rest


_worker = None  # (tokenizer, encoding) of this process


def _start_worker(do_lower_case, strip_accents, encoding):
    global _worker
    tokenizer = tokenization.BasicTokenizer(do_lower_case, strip_accents)
    _worker = tokenizer, encoding


def _count_part(part):
    """The words of a part as a Counter, or what is wrong with it as a str."""
    path, start, _ = part
    tokenizer, encoding = _worker
    counts, lines = collections.Counter(), 0
    try:
        for block in _blocks(*part):
            text = block.decode(encoding)
            _add_words(counts, text, tokenizer)
            lines += block.count(b"\n")
    except UnicodeDecodeError as error:
        if start:
            with open(path, "rb") as file:
                while start:
                    before = file.read(min(start, _PART_BYTES))
                    start -= len(before)
                    lines += before.count(b"\n")
        lines += 1 + block.count(b"\n", 0, error.start)
        return (
            f"{path}:{lines}: byte {block[error.start]:#04x} is not valid "
            f"{encoding}. Convert the file to UTF-8, or name its encoding, "
            "as in --input_encoding=latin-1."
        )
    except text_files.GZIP_ERRORS as error:
        return str(text_files.damaged_gzip(path, error))
    return counts


# --- learning ---------------------------------------------------------------


def learn_vocabulary(
    counts,
    vocab_size,
    reserved_tokens=tokenization.RESERVED_TOKENS,
    num_unused=0,
    min_frequency=1,
    limit_alphabet=0,
):
    """The rows of a vocabulary of `vocab_size` entries, fewer for few words.

    counts: word -> number of occurrences, of any size. The rows are the
    reserved tokens, [unused0]..., every character, every character with ##
    (CJK and punctuation only without, they are words by themselves), then
    pieces in the order in which they were merged. min_frequency: pairs and
    characters that are rarer are left out. limit_alphabet: how many
    characters at most; 0: the 1,000 most frequent, or more if these cover
    less than 99.99 % of the text. Words with another character are not
    learned from. Raises ValueError for sizes that cannot be met."""
    first_rows = [*reserved_tokens]
    first_rows += [f"[unused{number}]" for number in range(num_unused)]
    _check_reserved(first_rows, vocab_size)
    room = vocab_size - len(first_rows)
    ranked = _rank_characters(counts, min_frequency)
    wanted = limit_alphabet or _enough_characters(ranked)
    alphabet, characters = _fit_characters(ranked[:wanted], room)
    if len(alphabet) < min(wanted, len(ranked)):
        logging.warning(
            f"Only the {len(alphabet)} most frequent of {len(ranked)} "
            "characters have room; words with others will be [UNK]. Raise "
            "--vocab_size."
        )
    taken = set(first_rows)
    rows = first_rows + [row for row in characters if row not in taken]
    room = vocab_size - len(rows)
    rows += _merge_pairs(counts, characters, taken, room, max(1, min_frequency))
    if not limit_alphabet:  # rather a rare character than an empty row
        room = vocab_size - len(rows)
        rows += _fit_characters(ranked[len(alphabet) :], room)[1]
    return rows


def _check_reserved(rows, vocab_size):
    for row in rows:
        if not row or row != row.strip() or "\n" in row:
            raise ValueError(
                f"The reserved token {row!r} is empty or has blanks at an "
                "end, which reading the file would change."
            )
    repeated = [row for row, n in collections.Counter(rows).items() if n > 1]
    if repeated:
        raise ValueError(f"The reserved token {repeated[0]} is given twice.")
    if vocab_size <= len(rows):
        raise ValueError(
            f"--vocab_size={vocab_size} leaves no room beside {len(rows)} "
            "reserved and unused rows. Raise it."
        )
    if vocab_size >= 1 << _PAIR_BITS:
        raise ValueError(
            f"--vocab_size={vocab_size} is over the limit of "
            f"{(1 << _PAIR_BITS) - 1} rows. Lower it."
        )


def _continues_words(char):
    """Whether a character can stand inside a word, so that ## makes sense."""
    return len(_PLAIN.tokenize(f"a{char}a")) == 1


def _rank_characters(counts, min_frequency):
    """(character, occurrences), the most frequent first."""
    totals = collections.Counter()
    for word, number in counts.items():
        for char in word:
            totals[char] += number
    return sorted(
        (item for item in totals.items() if item[1] >= min_frequency),
        key=lambda item: (-item[1], item[0]),
    )


def _enough_characters(ranked):
    """How many characters to learn where the user does not say."""
    wanted = _COVERAGE * sum(number for _, number in ranked)
    for place, (_, number) in enumerate(ranked):
        wanted -= number
        if wanted <= 0:
            return max(place + 1, _ALPHABET)
    return _ALPHABET


def _fit_characters(ranked, room):
    """The characters that have room: (list of them, sorted rows)."""
    alphabet, inner = [], []
    for char, _ in ranked:
        if len(alphabet) + len(inner) >= room:
            break
        alphabet.append(char)
        if _continues_words(char) and len(alphabet) + len(inner) < room:
            inner.append(f"##{char}")
    return alphabet, sorted(alphabet) + sorted(inner)


def _spell(counts, symbols):
    """Words of two characters or more as (lists of symbol numbers, counts)."""
    number_of = {symbol: number for number, symbol in enumerate(symbols)}
    first = {char: number_of[char] for char in symbols if len(char) == 1}
    inner = {s[2:]: n for s, n in number_of.items() if len(s) == 3}
    words, frequencies = [], []
    for word in sorted(counts):
        if len(word) > 1:
            try:
                spelled = [inner[char] for char in word]
                spelled[0] = first[word[0]]
            except KeyError:
                continue
            words.append(spelled)
            frequencies.append(counts[word])
    return words, frequencies


def _count_pairs(words, frequencies):
    """Neighbours: (pair -> occurrences, pair -> the words it stands in)."""
    pairs = collections.defaultdict(int)
    where = collections.defaultdict(list)
    for index, word in enumerate(words):
        frequency = frequencies[index]
        left = word[0]
        for right in word[1:]:
            pair = left << _PAIR_BITS | right
            pairs[pair] += frequency
            where[pair].append(index)
            left = right
    return pairs, where


def _merge_pairs(counts, symbols, taken, room, min_frequency):
    """Merges the most frequent pair until `room` new pieces are found.

    Of two equally frequent pairs the one whose parts are older wins, and the
    first parts are sorted characters, so that nothing depends on the order of
    the words. The heap holds -count and pair in one integer; an entry whose
    count is no longer true is put back."""
    words, frequencies = _spell(counts, symbols)
    pairs, where = _count_pairs(words, frequencies)
    number_of = {symbol: number for number, symbol in enumerate(symbols)}
    symbols, pieces = list(symbols), []
    shift, mask = 2 * _PAIR_BITS, (1 << 2 * _PAIR_BITS) - 1
    heap = [pair - (count << shift) for pair, count in pairs.items()]
    heapq.heapify(heap)
    while heap and len(pieces) < room:
        entry = heapq.heappop(heap)
        pair, claimed = entry & mask, -(entry >> shift)
        count = pairs.get(pair, 0)
        if count < min_frequency:
            continue
        if count != claimed:
            heapq.heappush(heap, pair - (count << shift))
            continue
        left, right = pair >> _PAIR_BITS, pair & (1 << _PAIR_BITS) - 1
        text = symbols[left] + symbols[right][2:]
        merged = number_of.get(text)
        if merged is None:
            merged = number_of[text] = len(symbols)
            symbols.append(text)
            if text not in taken:
                pieces.append(text)
        for changed in _merge(
            words, frequencies, pairs, where, (left, right, merged)
        ):
            heapq.heappush(heap, changed - (pairs[changed] << shift))
    return pieces


def _merge(words, frequencies, pairs, where, parts):
    """Joins one pair in every word; gives the pairs that grew."""
    left, right, merged = parts
    before = left << _PAIR_BITS | right
    grown = set()
    for index in where.pop(before):
        word, frequency = words[index], frequencies[index]
        at, last = 0, len(word) - 1
        while at < last:
            if word[at] != left or word[at + 1] != right:
                at += 1
                continue
            if at:
                ahead = word[at - 1] << _PAIR_BITS
                pairs[ahead | left] -= frequency
                pairs[ahead | merged] += frequency
                where[ahead | merged].append(index)
                grown.add(ahead | merged)
            if at + 1 < last:
                after = word[at + 2]
                pairs[right << _PAIR_BITS | after] -= frequency
                joined = merged << _PAIR_BITS | after
                pairs[joined] += frequency
                where[joined].append(index)
                grown.add(joined)
            word[at : at + 2] = [merged]
            last -= 1
            at += 1
    pairs.pop(before, None)
    grown.discard(before)
    return grown


def learn_with_tensorflow_text(
    counts, vocab_size, reserved_tokens, min_frequency=0, limit_alphabet=0
):
    """The rows that tensorflow-text's own learner gives for these counts.

    It searches for a frequency threshold, so it may miss `vocab_size` by far;
    it is slow (minutes for 10 MB). Its defaults hold where an argument is 0:
    at least 10 occurrences, 1,000 characters."""
    from tensorflow_text.tools.wordpiece_vocab import (
        wordpiece_tokenizer_learner_lib as learner,
    )

    _check_reserved(reserved_tokens, vocab_size)
    return learner.learn(
        sorted(counts.items()),
        vocab_size,
        list(reserved_tokens),
        lower_thresh=min_frequency or 10,
        max_unique_chars=limit_alphabet or _ALPHABET,
    )


# --- command line -----------------------------------------------------------


def define_flags():
    """The flags of `python tokenization.py`."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Text files to learn from: patterns, separated by commas. Files that "
        "end in .gz are unpacked.",
    )
    flags.DEFINE_string(
        "vocab_file", None, "The vocabulary to write.", required=True
    )
    flags.DEFINE_integer(
        "vocab_size", 30522, "How many rows to write.", lower_bound=1
    )
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Whether to lower-case the text and strip its accents. With "
        "--extend_vocab, not given, it is read from the old directory.",
    )
    flags.DEFINE_bool(
        "strip_accents",
        None,
        "Whether to strip accents. By default as --do_lower_case.",
    )
    flags.DEFINE_integer(
        "min_frequency",
        None,
        "Leaves out pieces, characters and new words that are rarer. By "
        "default 1; with --algorithm=tensorflow_text 10.",
        lower_bound=1,
    )
    flags.DEFINE_list(
        "reserved_tokens",
        list(tokenization.RESERVED_TOKENS),
        "The first rows, separated by commas.",
    )
    flags.DEFINE_integer(
        "num_unused",
        0,
        "How many rows [unused0], [unused1], ... to keep free after the "
        "reserved ones, for words of your own later.",
        lower_bound=0,
    )
    _define_learning_flags()
    _define_extension_flags()


def _define_learning_flags():
    flags.DEFINE_integer(
        "num_workers",
        None,
        "Processes that count words. By default one per core. Changes no "
        "result.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "algorithm",
        "bpe",
        ("bpe", "tensorflow_text"),
        "bpe: merges pairs, gives the asked size. tensorflow_text: the "
        "learner of that package, slow, seldom gives the size.",
    )
    flags.DEFINE_integer(
        "limit_alphabet",
        0,
        "The most frequent characters to learn. 0: 1,000, or more where "
        "these cover less than 99.99 % of the text.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "input_encoding", "utf-8", "The encoding of the text files."
    )


def _define_extension_flags():
    flags.DEFINE_string(
        "extend_vocab",
        None,
        "A vocabulary to add words to, instead of learning a new one.",
    )
    flags.DEFINE_integer(
        "num_new_words",
        1000,
        "With --extend_vocab: how many words of --input_file to add.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "new_words_file",
        None,
        "With --extend_vocab: the words to add, one a line, instead of "
        "choosing them from --input_file.",
    )
    flags.DEFINE_bool(
        "use_unused_rows",
        False,
        "With --extend_vocab: puts the words in place of [unused] rows, so "
        "that the size and the checkpoint stay as they are.",
    )
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "With --extend_vocab: the checkpoint whose embedding is to grow.",
    )
    flags.DEFINE_string(
        "output_checkpoint",
        None,
        "With --extend_vocab: the prefix of the grown checkpoint.",
    )


def _check_flags():
    """Refuses flags that do not fit together; gives the input files."""
    extending = FLAGS.extend_vocab is not None
    if not extending:
        for name in (
            "new_words_file",
            "use_unused_rows",
            "init_checkpoint",
            "output_checkpoint",
            "num_new_words",
        ):
            if FLAGS[name].present:
                raise ValueError(f"--{name} needs --extend_vocab.")
    given = [x for x in ("input_file", "new_words_file") if FLAGS[x].value]
    if len(given) != 1:
        raise ValueError(
            "Name the text with --input_file"
            + (", or the words with --new_words_file." if extending else ".")
        )
    if bool(FLAGS.init_checkpoint) != bool(FLAGS.output_checkpoint):
        raise ValueError(
            "--init_checkpoint and --output_checkpoint go together: give "
            "both or none."
        )
    if FLAGS.use_unused_rows and FLAGS.output_checkpoint:
        raise ValueError(
            "--use_unused_rows changes no size, so the old checkpoint goes "
            "with the new vocabulary: leave --output_checkpoint away."
        )
    absent = set(tokenization.RESERVED_TOKENS) - set(FLAGS.reserved_tokens)
    if absent and not extending:
        raise ValueError(
            f"--reserved_tokens lacks {', '.join(sorted(absent))}, which BERT "
            "needs. Add them."
        )
    _check_encoding(FLAGS.input_encoding)
    directory = os.path.dirname(os.path.abspath(FLAGS.vocab_file))
    if not os.path.isdir(directory):
        raise ValueError(
            f"--vocab_file={FLAGS.vocab_file}: the directory {directory} does "
            "not exist. Make it first."
        )
    files = []
    if FLAGS.input_file:
        files = records.expand_patterns(FLAGS.input_file)
    words = [FLAGS.new_words_file] if FLAGS.new_words_file else []
    text_files.check_output("vocab_file", FLAGS.vocab_file, files + words)
    return files


def _check_encoding(encoding):
    try:
        fits = "\n ".encode(codecs.lookup(encoding).name) == b"\n "
    except LookupError:
        fits = False
    if not fits:
        raise ValueError(
            f"--input_encoding={encoding} is unknown or does not keep ASCII "
            "as single bytes. Convert the text to UTF-8."
        )


def _count_input(files, do_lower_case):
    workers = FLAGS.num_workers
    if workers is None and hasattr(os, "sched_getaffinity"):
        workers = len(os.sched_getaffinity(0))
    counts = count_files(
        files,
        do_lower_case,
        FLAGS.strip_accents,
        FLAGS.input_encoding,
        workers or os.cpu_count(),
    )
    if not counts:
        raise ValueError(
            f"{', '.join(files[:3])}{', ...' if files[3:] else ''}: no word "
            "is in the input. Is the text empty?"
        )
    return counts


def _learn(files, output):
    """Learns a vocabulary from the files and writes it."""
    counts = _count_input(files, FLAGS.do_lower_case)
    options = {
        "vocab_size": FLAGS.vocab_size,
        "limit_alphabet": FLAGS.limit_alphabet,
    }
    if FLAGS.algorithm == "bpe":
        rows = learn_vocabulary(
            counts,
            reserved_tokens=FLAGS.reserved_tokens,
            num_unused=FLAGS.num_unused,
            min_frequency=FLAGS.min_frequency or 1,
            **options,
        )
    else:
        unused = [f"[unused{number}]" for number in range(FLAGS.num_unused)]
        rows = learn_with_tensorflow_text(
            counts,
            reserved_tokens=FLAGS.reserved_tokens + unused,
            min_frequency=FLAGS.min_frequency or 0,
            **options,
        )
    output.write(("\n".join(rows) + "\n").encode())
    if len(rows) != FLAGS.vocab_size:
        logging.warning(
            "The text gives %d rows, not --vocab_size=%d. %set vocab_size to "
            "%d in bert_config.json.",
            len(rows),
            FLAGS.vocab_size,
            "Give more text, or s" if len(rows) < FLAGS.vocab_size else "S",
            len(rows),
        )
    return (
        f"{len(rows)} rows learned from {sum(counts.values())} words, "
        f"{len(counts)} of them distinct"
    )


def _extend(files, output):
    """Adds words to a vocabulary, and rows to the checkpoint's embedding."""
    casing = tokenization.resolve_casing(
        common_flags.given("do_lower_case"), FLAGS.extend_vocab
    )
    tokenizer = tokenization.FullTokenizer(
        FLAGS.extend_vocab, casing, FLAGS.strip_accents
    )
    if FLAGS.new_words_file:
        words = extension.read_new_words(FLAGS.new_words_file, tokenizer)
    else:
        counts = _count_input(files, casing)
        words = extension.choose_new_words(
            counts, tokenizer, FLAGS.num_new_words, FLAGS.min_frequency or 1
        )
    if not words:
        raise ValueError(
            f"{FLAGS.new_words_file or FLAGS.input_file}: "
            f"{FLAGS.extend_vocab} holds every word already."
        )
    content, size = extension.extend_rows(
        FLAGS.extend_vocab, words, FLAGS.use_unused_rows
    )
    output.write(content)
    note = ""
    if FLAGS.output_checkpoint:
        import checkpoints

        checkpoints.grow_word_embeddings(
            FLAGS.init_checkpoint,
            FLAGS.output_checkpoint,
            size,
            old_vocab_size=size - len(words),
        )
        note = extension.write_config(
            FLAGS.init_checkpoint, FLAGS.output_checkpoint, size
        )
    return f"{size} rows, {len(words)} of them new{note}"


def main(_):
    """Learns or extends a vocabulary, as the flags say."""
    files = _check_flags()
    with text_files.whole_binary(
        FLAGS.vocab_file, FLAGS.vocab_file.endswith(".gz")
    ) as output:
        task = _extend if FLAGS.extend_vocab else _learn
        summary = task(files, output)
    print(f"{FLAGS.vocab_file}: {summary}.")
