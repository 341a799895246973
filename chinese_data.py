"""Chinese classification sets as CLUE and their makers publish them."""

from classification_data import SPLITS, NliProcessor, TableProcessor
from text_files import json_text, json_texts, located

CLUE_FILES = {
    "train": ("train.json", "train_few_all.json", "train.tsv", "train.txt"),
    "dev": ("dev.json", "dev_few_all.json", "dev.tsv", "dev.txt"),
    "test": (
        "test.json",
        "test_public.json",
        "test_public_part1.json",
        "test.tsv",
        "test.txt",
    ),
}


class ChnSentiCorpProcessor(TableProcessor):
    """ChnSentiCorp: sentiment of a review, 0 negative, 1 positive."""

    name = "ChnSentiCorp"


class BustmProcessor(TableProcessor):
    """BUSTM: do two short requests mean the same (1) or not (0)."""

    name = "BUSTM"
    is_pair = True
    files = CLUE_FILES
    text_a_names = ("sentence1", "text_a")
    text_b_names = ("sentence2", "text_b")


class LcqmcProcessor(BustmProcessor):
    """LCQMC: do two questions mean the same (1) or not (0)."""

    name = "LCQMC"
    without_header = {3: (2, 0, 1), 2: (None, 0, 1)}


class TnewsProcessor(TableProcessor):
    """TNEWS: the topic of a headline, 15 classes named by their numbers."""

    name = "TNEWS"
    files = CLUE_FILES
    labels = tuple(
        "100 101 102 103 104 106 107 108 109 110 112 113 114 115 116".split()
    )
    text_a_names = ("sentence", "text_a")


class IflytekProcessor(TnewsProcessor):
    """IFLYTEK: the kind of an app from its long description, 119 classes."""

    name = "IFLYTEK"
    labels = tuple(map(str, range(119)))


class CslProcessor(TableProcessor):
    """CSL: are all keywords (text_a) those of the abstract (text_b)."""

    name = "CSL"
    is_pair = True
    files = CLUE_FILES
    text_a_names = ("keyword", "text_a")
    text_b_names = ("abst", "text_b")

    def _from_json(self, path, line, record, split):
        words = record.get("keyword")
        if isinstance(words, list):
            words = json_texts(path, line, "keyword", words)
            record = record | {"keyword": " ".join(words)}
        return super()._from_json(path, line, record, split)


class OcnliProcessor(NliProcessor):
    """OCNLI; rows without a gold label ('-') are left out of training."""

    name = "OCNLI"
    files = CLUE_FILES | {
        "train": ("train.50k.json", *CLUE_FILES["train"]),
    }


class ClueWscProcessor(TableProcessor):
    """CLUEWSC: does a pronoun mean a noun; both are marked in the text.

    The noun is set between underscores, the pronoun in square brackets."""

    name = "CLUEWSC"
    labels = ("true", "false")
    files = CLUE_FILES
    text_a_names = ("text", "text_a")

    def _from_json(self, path, line, record, split):
        label, text, _, _ = super()._from_json(path, line, record, split)
        spans = []
        for name, marks in (("span1", "__"), ("span2", "[]")):
            target = record.get("target")
            if not isinstance(target, dict):
                raise located(
                    path,
                    line,
                    "'target' is no object with span1_index, span1_text, "
                    "span2_index and span2_text. Mend the row.",
                )
            start = target.get(f"{name}_index")
            word = json_text(path, line, target, f"{name}_text")
            in_text = isinstance(start, int) and start >= 0
            if not in_text or not text.startswith(word, start):
                raise located(
                    path,
                    line,
                    f"'{word}' does not stand at position {start} of the "
                    f"text, as its target's {name} says. Mend the row.",
                )
            spans.append((start, start + len(word), marks))
        spans.sort(reverse=True)
        if spans[0][0] < spans[1][1]:
            raise located(
                path,
                line,
                "the two spans of the target overlap, so they cannot both be "
                "marked. Mend the row.",
            )
        for start, end, marks in spans:
            text = (
                text[:start]
                + marks[0]
                + text[start:end]
                + marks[1]
                + text[end:]
            )
        return label, text, None, None


class ThucNewsProcessor(TableProcessor):
    """THUCNews: the topic of a headline; class.txt names the classes."""

    name = "THUCNews"
    files = {split: (f"{split}.txt", f"{split}.tsv") for split in SPLITS}
    without_header = {2: (1, 0, None), 1: (None, 0, None)}
    class_file = "class.txt"
    labels = tuple(map(str, range(10)))
