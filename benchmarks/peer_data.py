"""Files, clocks and scores of the other side of the comparisons.

Read by peer_transformers.py in an interpreter that may lack TensorFlow and our
modules, so the formats and scores are written here a second time on purpose: a
fault of our own readers cannot hide in both sides.
"""

import collections
import csv
import json
import os
import re
import resource
import string
import time

NO_LABEL = -100  # what PyTorch's cross-entropy leaves out

# -- Files ------------------------------------------------------------------


def read_lines(path, encoding="utf-8-sig"):
    """The lines of a file without their ends, blank ones left out."""
    with open(path, encoding=encoding, newline="\n") as stream:
        lines = [line.rstrip("\n").rstrip("\r") for line in stream]
    return [line for line in lines if line.strip()]


def _columns(label, *texts, header=False):
    """A reader of tab-separated rows: (texts, label) from these columns."""

    def read(path):
        rows = [line.split("\t") for line in read_lines(path)]
        return [
            (tuple(row[i] for i in texts), row[label])
            for row in rows[1 if header else 0 :]
        ]

    return read


def read_trec(path):
    """Questions and their coarse class, from `COARSE:fine text` in Latin-1."""
    rows = []
    for line in read_lines(path, "latin-1"):
        label, _, text = line.partition(" ")
        rows.append(((text,), label.partition(":")[0]))
    return rows


def read_agnews(path):
    """Title and description, and the class 1 to 4, from quoted CSV."""
    with open(path, encoding="utf-8", newline="") as stream:
        return [
            ((row[1].replace("\\", " "), row[2].replace("\\", " ")), row[0])
            for row in csv.reader(stream)
        ]


def read_tsv(path):
    """Rows of a file with the columns label, text_a and perhaps text_b."""
    header, *rows = [line.split("\t") for line in read_lines(path)]
    place = {name: i for i, name in enumerate(header)}
    texts = [place[n] for n in ("text_a", "text_b") if n in place]
    return [(tuple(row[i] for i in texts), row[place["label"]]) for row in rows]


READERS = {
    "sst2": _columns(1, 0),
    "cola": _columns(1, 3),
    "mrpc": _columns(0, 3, 4, header=True),
    "stsb": _columns(4, 5, 6),
    "goemotions": _columns(1, 0),
    "trec": read_trec,
    "agnews": read_agnews,
    "tsv": read_tsv,
}


def read_conll(path):
    """Sentences as (words, tags): first and last column, no -DOCSTART-.

    Tags become IOB2, as transformers' users get these sets from its hub."""
    sentences, words, tags = [], [], []
    with open(path, encoding="utf-8", newline="\n") as stream:
        lines = [*stream, "\n"]
    for line in lines:
        cells = line.split()
        if cells and cells[0] != "-DOCSTART-":
            words.append(cells[0])
            tags.append(cells[-1])
        elif words:
            sentences.append((words, iob2(tags)))
            words, tags = [], []
    return sentences


def iob2(tags):
    """IOB tags with a B- at the beginning of every entity."""
    found, before = [], "O"
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        found.append(f"B-{tag[2:]}" if begins else tag)
        before = tag
    return found


def read_squad(path):
    """Questions of a SQuAD file as dicts, those without an answer included."""
    with open(path, encoding="utf-8") as stream:
        data = json.load(stream)["data"]
    return [
        {
            "id": question["id"],
            "question": question["question"].strip(),
            "context": paragraph["context"],
            "answers": question.get("answers", []),
        }
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def write_lines(path, lines):
    """Writes a text file, whole or not at all."""
    with open(f"{path}.part", "w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    os.replace(f"{path}.part", path)


# -- Clocks -----------------------------------------------------------------


class Clock:
    """Wall and CPU seconds between enter and exit."""

    def __enter__(self):
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall = time.perf_counter() - self._start[0]
        self.cpu = time.process_time() - self._start[1]


def rate_of_2018(warmup, num_steps, step):
    """The share of the learning rate that makes AdamW the one of BERT.

    BERT's decays from step 0 and corrects no bias: what torch divides the
    averages by, whose betas are 0.9 and 0.999, is taken out again."""
    rate = step / warmup if step < warmup else 1 - step / num_steps
    return rate * (1 - 0.9 ** (step + 1)) / (1 - 0.999 ** (step + 1)) ** 0.5


def peak_megabytes():
    """Peak resident memory of this process so far (Linux: from KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- Scores -----------------------------------------------------------------


def classification_score(data, wanted, outputs):
    """The usual score of a data set: its name and a value from 0 to 1."""
    from scipy import stats
    from sklearn import metrics

    if data == "stsb":
        return "pearson", float(stats.pearsonr(wanted, outputs)[0])
    if data == "goemotions":
        value = metrics.f1_score(wanted, outputs, average="micro")
        return "micro_f1", float(value)
    if data == "cola":
        return "mcc", float(metrics.matthews_corrcoef(wanted, outputs))
    return "accuracy", float(metrics.accuracy_score(wanted, outputs))


def spans(tags):
    """The typed spans of a tag sequence in IOB1 or IOB2, as a set.

    An I- after O or after another type opens a span, as in CoNLL's script."""
    found, start, kind = set(), None, None
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind is not None and (prefix != "I" or name != kind):
            found.add((start, i, kind))
            kind = None
        if prefix != "O" and kind is None:
            start, kind = i, name
    return found


def span_f1(wanted, outputs):
    """F1 over the spans of all sentences."""
    right = sum(
        len(spans(a) & spans(b)) for a, b in zip(wanted, outputs, strict=True)
    )
    total = sum(len(spans(tags)) for tags in [*wanted, *outputs])
    return 2 * right / total if total else 0.0


def normal_answer(text):
    """An answer as SQuAD compares it: lower case, no article, no points."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def answer_f1(text, gold):
    """Word F1 of two answers; 1 where both are empty."""
    ours, theirs = normal_answer(text).split(), normal_answer(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum(
        (collections.Counter(ours) & collections.Counter(theirs)).values()
    )
    return 2 * common / (len(ours) + len(theirs))


def squad_score(questions, predictions):
    """(exact match, F1) from 0 to 1, the best over the gold answers.

    As in the official script, an answer of points alone is none."""
    exact = f1 = 0.0
    for question in questions:
        text = predictions[question["id"]]
        golds = [answer["text"] for answer in question["answers"]]
        golds = [gold for gold in golds if normal_answer(gold)] or [""]
        exact += max(normal_answer(text) == normal_answer(g) for g in golds)
        f1 += max(answer_f1(text, gold) for gold in golds)
    return exact / len(questions), f1 / len(questions)


def pretraining_batches(flags):
    """Batches of BertForPreTraining, trimmed to their longest row.

    From --batches, an .npz with the features of our TFRecords stacked as
    [steps, B, ...]; else full random rows, 15 % of them masked."""
    import numpy as np
    import torch

    if flags.batches:
        data = dict(np.load(flags.batches))
    else:
        draw = np.random.default_rng(7)
        shape = (4, flags.train_batch_size, flags.max_seq_length)
        ids = draw.integers(1000, 30000, shape)
        slots = max(1, int(0.15 * flags.max_seq_length))
        chosen = draw.permuted(
            np.broadcast_to(np.arange(shape[2]), shape), axis=2
        )[..., :slots]
        data = {
            "input_ids": ids,
            "input_mask": np.ones_like(ids),
            "segment_ids": np.zeros_like(ids),
            "masked_lm_positions": chosen,
            "masked_lm_ids": draw.integers(1000, 30000, chosen.shape),
            "masked_lm_weights": np.ones(chosen.shape, np.float32),
            "next_sentence_labels": draw.integers(0, 2, (*shape[:2], 1)),
        }
    for i in range(len(data["input_ids"])):
        step = {name: torch.from_numpy(v[i]) for name, v in data.items()}
        longest = int(step["input_mask"].sum(-1).max())
        labels = torch.full(step["input_ids"].shape, NO_LABEL)
        rows, slots = torch.nonzero(step["masked_lm_weights"], as_tuple=True)
        labels[rows, step["masked_lm_positions"][rows, slots].long()] = step[
            "masked_lm_ids"
        ][rows, slots].long()
        yield {
            "input_ids": step["input_ids"][:, :longest].long(),
            "token_type_ids": step["segment_ids"][:, :longest].long(),
            "attention_mask": step["input_mask"][:, :longest].long(),
            "labels": labels[:, :longest],
            "next_sentence_label": step["next_sentence_labels"].long(),
        }
