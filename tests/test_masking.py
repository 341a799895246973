"""Tests of masking.py: equal draws, shares, words, spans."""

import collections
import random

import pytest
from conftest import vocab_path

import masking
import tokenization
from masking import Draws, Masker

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] un ##aff ##able dog cat the a".split()
VOCAB = {word: index for index, word in enumerate(WORDS)}
HANZI = "使用语言模型"
CHINESE = dict(VOCAB, **{x: len(VOCAB) + i for i, x in enumerate(HANZI)})


def ids_of(text, vocab=VOCAB):
    return [vocab[word] for word in text.split()]


@pytest.mark.parametrize("seed", range(40))
def test_draws_are_those_of_random(seed):
    ours, theirs = random.Random(seed), random.Random(seed)
    draws, which = Draws(ours), random.Random(-seed)
    for _ in range(60):
        kind = which.randrange(6)
        if kind == 0:
            assert draws.random() == theirs.random()
        elif kind == 5:
            assert draws.coin() == (theirs.random() < 0.5)
        elif kind == 1:
            last = which.choice([0, 1, 6, 7, 300, 30521, 2**31])
            assert draws.randint(3, 3 + last) == theirs.randint(3, 3 + last)
        elif kind == 2:
            count = which.choice([0, 1, 50, 20000])
            wanted = bytes(theirs.random() < 0.5 for _ in range(count))
            assert draws.heads(count) == wanted
        else:
            size = which.choice([0, 1, 2, 3, 17, 125, 256, 257, 509, 5000])
            count = which.choice([None, 0, 1, 20, size])
            wanted = list(range(size))
            theirs.shuffle(wanted)
            if count is not None:
                wanted = wanted[:count]
            assert draws.pick(list(range(size)), count) == wanted
    draws.close()
    assert ours.getstate() == theirs.getstate()


def test_draws_that_decide_on_masks():
    draws, theirs = Draws(random.Random(8)), random.Random(8)
    for place in range(0, Draws.BLOCK, 2):
        value = theirs.random()
        assert draws.four_fifths[place] == (value < 0.8)
        assert draws.halves[place] == (value < 0.5)

    class Words:
        """A generator of given words: just below, at and above 0.8."""

        def getstate(self):
            return None

        def getrandbits(self, bits):
            top = masking._FOUR_FIFTHS >> 26
            low = masking._FOUR_FIFTHS & ((1 << 26) - 1)
            made = 0
            for index in range(bits // 64):
                first, second = top << 5, (low + index % 3 - 1) << 6
                made |= (first | second << 32) << (64 * index)
            return made

    assert list(Draws(Words()).four_fifths[:6:2]) == [1, 0, 0]


def test_chosen_items_are_spread_evenly():
    draws = Draws(random.Random(2))
    counts = collections.Counter()
    for _ in range(6000):
        chosen = draws.choose(list(range(10)), 3)
        assert len(set(chosen)) == 3
        counts.update(enumerate(chosen))
    assert len(counts) == 30
    assert all(500 < count < 700 for count in counts.values())
    assert sorted(draws.choose([5, 6], 4)) == [5, 6]
    assert draws.choose([], 4) == []


def test_draws_of_nothing():
    rng = random.Random(5)
    Draws(rng).close()
    assert rng.getstate() == random.Random(5).getstate()
    with pytest.raises(ValueError, match="below 0"):
        Draws(rng).below(0)


@pytest.mark.parametrize(
    "length, share, most, wanted",
    [
        (128, 0.15, 20, 19),
        (10, 0.15, 20, 2),  # 1.5 is rounded to even
        (30, 0.15, 20, 4),  # 4.5 too
        (5, 0.0, 20, 1),
        (100, 0.5, 20, 20),
        (100, 0.5, 0, 0),
    ],
)
def test_number_of_predictions(length, share, most, wanted):
    assert Masker(VOCAB, share, most).num_to_predict(length) == wanted


def test_a_vocabulary_without_markers_is_refused():
    vocab = {k: v for k, v in VOCAB.items() if k != "[MASK]"}
    with pytest.raises(ValueError, match=r"lacks \[MASK\]"):
        Masker(vocab)


def masked_words(masker, text, seed, vocab=VOCAB, continues=None):
    """The words of the positions chosen, and the changed ids."""
    ids = ids_of(text, vocab)
    before = list(ids)
    draws = Draws(random.Random(seed))
    separator = ids.index(vocab["[SEP]"])
    positions, labels = masker.create_masked_lm_predictions(
        ids, separator, draws, continues
    )
    assert labels == [before[i] for i in positions]
    assert positions == sorted(set(positions))
    assert all(
        new == old
        for i, (new, old) in enumerate(zip(ids, before, strict=True))
        if i not in positions
    )
    return positions, ids


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("draw_per_word", [False, True])
def test_shares_on_100k_tokens(whole_word, draw_per_word):
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))
    vocab = tokenizer.vocab
    which = random.Random(3)
    ordinary = [i for word, i in vocab.items() if word.isalpha()]
    later = [i for word, i in vocab.items() if word.startswith("##")]
    masker = Masker(vocab, 0.15, 77, whole_word, draw_per_word=draw_per_word)
    draws = Draws(random.Random(12345))
    total = masked = 0
    kinds = collections.Counter()
    while total < 200_000:
        body = [
            which.choice(later if which.random() < 0.2 else ordinary)
            for _ in range(197)
        ]
        ids = [vocab["[CLS]"], *body[:90], vocab["[SEP]"], *body[90:]]
        ids.append(vocab["[SEP]"])
        before = list(ids)
        positions, labels = masker.create_masked_lm_predictions(ids, 91, draws)
        assert 0 not in positions and 91 not in positions
        assert len(ids) - 1 not in positions
        total += len(ids)
        masked += len(positions)
        for i in positions:
            if ids[i] == vocab["[MASK]"]:
                kinds["mask"] += 1
            else:
                kinds["same" if ids[i] == before[i] else "random"] += 1
    assert abs(masked / total - 0.15) < 0.01
    assert abs(kinds["mask"] / masked - 0.8) < 0.01
    assert abs(kinds["same"] / masked - 0.1) < 0.01
    assert abs(kinds["random"] / masked - 0.1) < 0.01


TEXT = "[CLS] un ##aff ##able dog [SEP] the un ##aff cat [SEP]"
UNITS = [{1, 2, 3}, {4}, {6}, {7, 8}, {9}]


def test_words_are_masked_whole():
    masker = Masker(VOCAB, 0.4, 20, whole_word=True)
    seen = set()
    for seed in range(200):
        positions, _ = masked_words(masker, TEXT, seed)
        assert 1 <= len(positions) <= 4
        for unit in UNITS:
            assert not unit & set(positions) or unit <= set(positions)
            if unit <= set(positions):
                seen.add(frozenset(unit))
    assert len(seen) == len(UNITS)


def test_a_word_longer_than_the_room_is_passed_over():
    masker = Masker(VOCAB, 0.15, 20, whole_word=True)  # room for two
    for seed in range(100):
        positions, _ = masked_words(masker, TEXT, seed)
        assert 1 not in positions and 1 <= len(positions) <= 2


def test_a_cut_word_of_b_joins_the_last_word_of_a_as_in_the_original():
    text = "[CLS] dog [SEP] ##able the [SEP]"
    masker = Masker(VOCAB, 0.3, 20, whole_word=True)
    found = {tuple(masked_words(masker, text, seed)[0]) for seed in range(50)}
    assert (1, 3) in found and not {(1,), (3,)} & found
    strict = {
        tuple(masked_words(masker, text, seed, continues=b"\0\0\0\1\0\0")[0])
        for seed in range(50)
    }
    assert (1, 3) in strict and (1, 4) in strict and (3, 4) in strict


def test_pieces_draw_for_themselves_unless_asked():
    def kinds(**options):
        masker = Masker(VOCAB, 1.0, 20, whole_word=True, **options)
        masks = set()
        for seed in range(300):
            _, ids = masked_words(masker, "[CLS] un ##aff ##able [SEP]", seed)
            masks.add(tuple(i == VOCAB["[MASK]"] for i in ids[1:4]))
        return masks

    assert (True, False, True) in kinds()
    assert {(True,) * 3, (False,) * 3} <= kinds(draw_per_word=True)
    mixed = Masker(VOCAB, 1.0, 20, whole_word=True, draw_per_word=True)
    for seed in range(300):
        _, ids = masked_words(mixed, "[CLS] un ##aff ##able [SEP]", seed)
        masks = [i == VOCAB["[MASK]"] for i in ids[1:4]]
        same = ids[1:4] == ids_of("un ##aff ##able")
        # All masked, or all kept, or all drawn anew (and rarely [MASK]).
        assert all(masks) or same or sum(masks) < 3


def test_spans_favour_the_short_ones():
    words = "the a dog cat".split() * 30
    text = " ".join(["[CLS]", *words[:60], "[SEP]", *words[60:], "[SEP]"])
    masker = Masker(VOCAB, 0.02, 20, max_ngram=3)  # two or three at a time
    lengths = collections.Counter()
    for seed in range(3000):
        positions, _ = masked_words(masker, text, seed)
        assert len(positions) == 2
        first, second = positions
        assert 61 not in positions
        lengths["together" if second == first + 1 else "apart"] += 1
    # A first span of one: 6 of 11; then the next one is hardly a neighbour.
    assert 0.48 < lengths["apart"] / 3000 < 0.58
    single = Masker(VOCAB, 0.02, 20, max_ngram=1)
    together = 0
    for seed in range(500):
        first, second = masked_words(single, text, seed)[0]
        together += second == first + 1
    assert together < 30


def test_spans_do_not_cross_a_marker_and_hold_whole_words():
    masker = Masker(VOCAB, 0.5, 20, whole_word=True, max_ngram=3)
    for seed in range(300):
        positions, _ = masked_words(masker, TEXT, seed)
        assert len(positions) <= 6
        for unit in UNITS:
            assert not unit & set(positions) or unit <= set(positions)


def test_chinese_words_are_the_units():
    calls = []

    def segment(run):
        calls.append(run)
        return [run[i : i + 2] for i in range(0, len(run), 2)]

    def character_ids(text):
        return [CHINESE[x] for x in text.replace(" ", "")]

    is_later = masking.later_pieces(CHINESE)
    ids, continues = masking.encode_words(
        HANZI, character_ids, segment, is_later
    )
    assert ids == character_ids(HANZI) and calls == [HANZI]
    assert continues == b"\0\1\0\1\0\1"
    text = " ".join(["[CLS]", *HANZI, "[SEP]"])
    masker = Masker(CHINESE, 0.25, 20, whole_word=True)
    found = {
        tuple(
            masked_words(masker, text, seed, CHINESE, b"\0%b\0" % continues)[0]
        )
        for seed in range(60)
    }
    assert found == {(1, 2), (3, 4), (5, 6)}


def test_the_segmenter_never_changes_a_piece():
    tokenizer = tokenization.FullTokenizer(vocab_path("uncased"))
    is_later = masking.later_pieces(tokenizer.vocab)
    text = "unaffable 使用 語言model，don't 中\u200b文 café ΑΣ中 x"
    ids, continues = masking.encode_words(
        text, tokenizer.encode, lambda run: [run], is_later
    )
    assert ids == tokenizer.encode(text)
    assert len(continues) == len(ids)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    for token, flag in zip(tokens, continues, strict=True):
        assert flag or not token.startswith("##")


def test_words_separated_by_blanks():
    segment = masking.load_segmenter("blank")
    _, continues = masking.encode_words(
        "使用 语言 模型",
        lambda text: [CHINESE[x] for x in text.replace(" ", "")],
        segment,
        masking.later_pieces(CHINESE),
    )
    assert continues == b"\0\1\0\1\0\1"


def test_jieba():
    pytest.importorskip("jieba", reason="requirements-zh.txt")
    words = list(masking.load_segmenter("jieba")("使用语言模型"))
    assert words == ["使用", "语言", "模型"]


def test_segmenters_by_name(monkeypatch):
    assert masking.load_segmenter("none") is None
    with pytest.raises(ValueError, match="--segmenter=other is not one of"):
        masking.load_segmenter("other")
    monkeypatch.setitem(__import__("sys").modules, "jieba", None)
    with pytest.raises(ValueError, match="requirements-zh.txt"):
        masking.load_segmenter("jieba")


def test_word_pieces_of_unmasked_records():
    masker = Masker(VOCAB)
    pieces = masker.word_pieces(ids_of(TEXT), 5)
    assert list(pieces) == [0, 1, 2, 2, 1, 0, 1, 1, 2, 1, 0]
    cut = masker.word_pieces(ids_of("[CLS] ##aff dog [SEP] ##able [SEP]"), 3)
    assert list(cut) == [0, 1, 1, 0, 1, 0]
    single = masker.word_pieces(ids_of("[CLS] un ##aff [SEP]"), 3)
    assert list(single) == [0, 1, 2, 0]
    given = masker.word_pieces(ids_of(TEXT), 5, bytes([0, 0, 1] + [0] * 8))
    assert list(given) == [0, 1, 2, 1, 1, 0, 1, 1, 1, 1, 0]


def test_chinese_pieces():
    flags = masking.chinese_pieces(CHINESE)
    assert sum(flags) == 6 and flags[CHINESE["使"]] and not flags[0]
