"""The other side of the comparisons: PyTorch and transformers, at their best.

    PEER_PYTHON=.venv-peers/bin/python python benchmarks/peer_transformers.py \
        classify --data=sst2 --train_file=train.tsv --dev_file=dev.tsv \
        --model=DIRECTORY --output_dir=output/peer --seeds=1,2,3

Modes: `classify` (sst2, cola, mrpc, stsb, trec, agnews, goemotions, or tsv
with a header), `tag` (CoNLL columns), `squad` (SQuAD JSON) and `pretrain`
(steps of BertForPreTraining). Started by any Python: it goes on in the
interpreter that PEER_PYTHON names, which needs benchmarks/requirements.txt,
and imports nothing of this project.

Prints one JSON object a line for each seed: mode, data, seed, score, rows per
second of training and of predicting, CPU seconds of both, peak memory. With
--wait each seed starts when a line arrives on standard input, after a line
{"ready": true}: so another program can alternate its own rounds with these.

The settings are those its users run: AdamW (fused) at 5e-5, decay 0.01 but
for biases and layer norms, linear warm-up over a tenth and decay, clip 1.0,
the checkpoint's dropout and pooler, a head from N(0, 0.02), scaled dot-product
attention, batches padded to their own longest row, autocast for bfloat16.
Predicting is timed from the file that is read to the file that is written.
"""

import argparse
import functools
import json
import math
import os
import random
import sys

from peer_data import (
    NO_LABEL,
    READERS,
    Clock,
    classification_score,
    peak_megabytes,
    pretraining_batches,
    rate_of_2018,
    read_conll,
    read_squad,
    span_f1,
    squad_score,
    write_lines,
)

# -- Training and predicting ------------------------------------------------


def autocast(flags):
    """The context in which the model runs at --precision."""
    import torch

    return torch.autocast(
        "cpu", torch.bfloat16, enabled=flags.precision == "bfloat16"
    )


def make_optimizer(model, flags, num_steps):
    """AdamW and its schedule, as --optimizer says."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    groups = {0.0: [], 0.01: []}
    for name, parameter in model.named_parameters():
        spared = name.endswith(".bias") or "LayerNorm" in name
        groups[0.0 if spared else 0.01].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": p, "weight_decay": d} for d, p in groups.items()],
        lr=flags.learning_rate,
        eps=1e-6 if flags.optimizer == "bert" else 1e-8,
        fused=True,
    )
    warmup = int(num_steps * flags.warmup_ratio)
    if flags.optimizer == "bert":
        rate = functools.partial(rate_of_2018, warmup, num_steps)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    return optimizer, get_linear_schedule_with_warmup(
        optimizer, warmup, num_steps
    )


def train_step(model, parts, optimizer, schedule, flags):
    """One update from the parts of a batch; gives the last part's loss.

    Each part's mean loss weighs as many rows (words, with --mode=tag) as it
    has, so the gradient is that of the whole batch."""
    import torch

    sizes = [number_of_targets(part) for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        with autocast(flags):
            loss = model(**part).loss
        (loss * (size / sum(sizes)) if len(parts) > 1 else loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss


def number_of_targets(batch):
    """How many terms the mean loss of a batch has."""
    if "labels" not in batch:
        return len(batch["input_ids"])
    labels = batch["labels"]
    if labels.is_floating_point():
        return len(labels)
    return int((labels != NO_LABEL).sum())


def in_parts(features, number):
    """A batch as `number` batches of like lengths."""
    by_length = sorted(features, key=lambda f: len(f["input_ids"]))
    size = math.ceil(len(by_length) / number)
    return [by_length[i : i + size] for i in range(0, len(by_length), size)]


def train(model, features, collate, seed, flags):
    """Trains for the epochs or --max_steps; gives (rows seen, clock)."""
    size = flags.train_batch_size
    per_epoch = math.ceil(len(features) / size)
    num_steps = int(per_epoch * flags.epochs)
    last = min(num_steps, flags.max_steps or num_steps)
    optimizer, schedule = make_optimizer(model, flags, num_steps)
    model.train()
    order, step, rows = random.Random(seed), 0, 0
    with Clock() as clock:
        while step < last:
            places = list(range(len(features)))
            order.shuffle(places)
            for start in range(0, len(places), size):
                if step == last:
                    break
                chosen = [features[i] for i in places[start : start + size]]
                parts = map(collate, in_parts(chosen, flags.parts))
                train_step(model, [*parts], optimizer, schedule, flags)
                step, rows = step + 1, rows + len(chosen)
    return rows, clock


def predict(model, features, collate, flags):
    """Yields the model's output for each batch of rows, in order.

    One autocast context spans all batches, so that weights are cast once."""
    import torch

    model.eval()
    size = flags.predict_batch_size
    places = list(range(len(features)))
    if flags.sort_predictions:
        places.sort(key=lambda i: len(features[i]["input_ids"]))
    with torch.inference_mode(), autocast(flags):
        for start in range(0, len(places), size):
            chosen = places[start : start + size]
            batch = collate([features[i] for i in chosen])
            batch.pop("labels", None)
            yield chosen, model(**batch)


def collator(pad_id, flags, label_type=None):
    """A function from a list of features to a batch, padded to its longest.

    With --pad_to_max_length to that length. Labels that are lists are padded
    with NO_LABEL where `label_type` is "tokens"; else they become one tensor.
    """
    import torch

    def padded(rows, value):
        width = max(map(len, rows))
        if flags.pad_to_max_length:
            width = flags.max_seq_length
        return torch.tensor([r + [value] * (width - len(r)) for r in rows])

    def collate(features):
        batch = {
            "input_ids": padded([f["input_ids"] for f in features], pad_id),
            "token_type_ids": padded(
                [f["token_type_ids"] for f in features], 0
            ),
            "attention_mask": padded(
                [[1] * len(f["input_ids"]) for f in features], 0
            ),
        }
        labels = [f["labels"] for f in features if "labels" in f]
        if labels and label_type == "tokens":
            batch["labels"] = padded(labels, NO_LABEL)
        elif labels and label_type == "span":
            batch["start_positions"] = torch.tensor([s for s, _ in labels])
            batch["end_positions"] = torch.tensor([e for _, e in labels])
        elif labels:
            batch["labels"] = torch.tensor(labels)
        return batch

    return collate


def load(kind, flags, **options):
    """A model of transformers with the weights of --model, quietly."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return getattr(transformers, kind).from_pretrained(flags.model, **options)


def result(flags, seed, scores, trained, predicted):
    """The line of a seed: scores, then the figures of training, predicting."""
    line = {
        "side": "transformers",
        "mode": flags.mode,
        "data": flags.data,
        "seed": seed,
        "precision": flags.precision,
        **scores,
    }
    for name, measured in (("train", trained), ("predict", predicted)):
        if measured:
            rows, clock = measured
            line[f"{name}_rows"] = rows
            line[f"{name}_rows_per_second"] = rows / clock.wall
            line[f"{name}_cpu_seconds"] = clock.cpu
    line["peak_megabytes"] = peak_megabytes()
    return line


# -- Tasks ------------------------------------------------------------------


class Classify:
    """Sentences or pairs: classes, a number (stsb) or a set (goemotions)."""

    def __init__(self, flags, tokenizer):
        self.flags, self.tokenizer = flags, tokenizer
        self.rows = READERS[flags.data](flags.train_file)
        labels = {label for _, label in self.rows}
        if flags.data == "goemotions":
            labels = map(str, range(28))
            self.names = list(labels)
        else:
            self.names = sorted(labels)
        self.collate = collator(tokenizer.pad_token_id, flags)
        self.features = self.featurize(self.rows)

    def target(self, label):
        """A label as the loss takes it."""
        if self.flags.data == "stsb":
            return float(label)
        if self.flags.data == "goemotions":
            chosen = set(label.split(","))
            return [float(name in chosen) for name in self.names]
        return self.names.index(label)

    def featurize(self, rows):
        """Texts as ids; the fast tokenizer does all rows in one call."""
        encoded = self.tokenizer(
            *map(list, zip(*(texts for texts, _ in rows), strict=True)),
            truncation=True,
            max_length=self.flags.max_seq_length,
        )
        pairs = zip(
            encoded["input_ids"], encoded["token_type_ids"], strict=True
        )
        return [
            {
                "input_ids": ids,
                "token_type_ids": types,
                "labels": self.target(label),
            }
            for (ids, types), (_, label) in zip(pairs, rows, strict=True)
        ]

    def model(self):
        """A fresh model for the task."""
        kind = {
            "stsb": "regression",
            "goemotions": "multi_label_classification",
        }.get(self.flags.data, "single_label_classification")
        count = 1 if kind == "regression" else len(self.names)
        model = load(
            "BertForSequenceClassification",
            self.flags,
            num_labels=count,
            problem_type=kind,
        )
        if self.flags.label_bias:
            import torch

            labels = torch.tensor([f["labels"] for f in self.features])
            shares = (labels.sum(0) + 0.5) / (len(labels) + 1)
            model.classifier.bias.data = torch.logit(shares)
        return model

    def predict(self, model, path):
        """From the dev file to `path`; gives (rows, what scores them)."""
        rows = READERS[self.flags.data](self.flags.dev_file)
        features = self.featurize(rows)
        values = [None] * len(rows)
        for places, output in predict(
            model, features, self.collate, self.flags
        ):
            logits = output.logits.float()
            if self.flags.data == "goemotions":
                logits = logits.sigmoid()
            elif self.flags.data != "stsb":
                logits = logits.softmax(-1)
            for place, row in zip(places, logits.tolist(), strict=True):
                values[place] = row
        write_lines(path, ("\t".join(map(str, row)) for row in values))
        wanted = [feature["labels"] for feature in features]
        return len(rows), lambda: self.score(wanted, values)

    def score(self, wanted, values):
        """The score of the outputs."""
        if self.flags.data == "stsb":
            outputs = [row[0] for row in values]
        elif self.flags.data == "goemotions":
            limit = self.flags.threshold
            outputs = [[int(v >= limit) for v in row] for row in values]
            wanted = [[int(v) for v in row] for row in wanted]
        else:
            outputs = [row.index(max(row)) for row in values]
        name, value = classification_score(self.flags.data, wanted, outputs)
        return {"score_name": name, "score": value}


class Tag:
    """Words with tags: named entities or chunks in CoNLL columns."""

    def __init__(self, flags, tokenizer):
        self.flags, self.tokenizer = flags, tokenizer
        sentences = read_conll(flags.train_file)
        self.names = sorted({tag for _, tags in sentences for tag in tags})
        self.collate = collator(tokenizer.pad_token_id, flags, "tokens")
        self.features = self.featurize(sentences)

    def featurize(self, sentences):
        """Words as pieces; the first piece of a word carries its tag.

        A tag of the dev file that training lacks is left out of the loss."""
        encoded = self.tokenizer(
            [words for words, _ in sentences],
            is_split_into_words=True,
            truncation=True,
            max_length=self.flags.max_seq_length,
        )
        place = {name: i for i, name in enumerate(self.names)}
        features = []
        for i, (_, tags) in enumerate(sentences):
            words, previous, labels, firsts = encoded.word_ids(i), None, [], []
            for position, word in enumerate(words):
                first = word is not None and word != previous
                labels.append(
                    place.get(tags[word], NO_LABEL) if first else NO_LABEL
                )
                if first:
                    firsts.append((word, position))
                previous = word
            features.append(
                {
                    "input_ids": encoded["input_ids"][i],
                    "token_type_ids": encoded["token_type_ids"][i],
                    "labels": labels,
                    "firsts": firsts,
                }
            )
        return features

    def model(self):
        """A fresh model for the task."""
        return load(
            "BertForTokenClassification",
            self.flags,
            num_labels=len(self.names),
        )

    def predict(self, model, path):
        """From the dev file to `path`; gives (sentences, what scores them).

        Words beyond the length limit get O."""
        sentences = read_conll(self.flags.dev_file)
        features = self.featurize(sentences)
        outputs = [["O"] * len(words) for words, _ in sentences]
        for places, output in predict(
            model, features, self.collate, self.flags
        ):
            for place, row in zip(
                places, output.logits.argmax(-1).tolist(), strict=True
            ):
                for word, position in features[place]["firsts"]:
                    outputs[place][word] = self.names[row[position]]
        lines = []
        for (words, tags), guesses in zip(sentences, outputs, strict=True):
            lines += map(" ".join, zip(words, tags, guesses, strict=True))
            lines.append("")
        write_lines(path, lines)
        wanted = [tags for _, tags in sentences]
        return len(sentences), lambda: {
            "score_name": "span_f1",
            "score": span_f1(wanted, outputs),
        }


class Squad:
    """Questions about paragraphs, in windows that overlap by --doc_stride."""

    def __init__(self, flags, tokenizer):
        self.flags, self.tokenizer = flags, tokenizer
        self.collate = collator(tokenizer.pad_token_id, flags, "span")
        self.features = self.featurize(read_squad(flags.train_file))
        for feature in self.features:
            feature["labels"] = self.target(feature)

    def featurize(self, questions):
        """Windows of question and context, with offsets into the context."""
        encoded = self.tokenizer(
            [question["question"] for question in questions],
            [question["context"] for question in questions],
            truncation="only_second",
            max_length=self.flags.max_seq_length,
            stride=self.flags.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        features = []
        for i, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            inside = [side == 1 for side in encoded.sequence_ids(i)]
            offsets = zip(encoded["offset_mapping"][i], inside, strict=True)
            features.append(
                {
                    "input_ids": encoded["input_ids"][i],
                    "token_type_ids": encoded["token_type_ids"][i],
                    "offsets": [
                        o if context else None for o, context in offsets
                    ],
                    "question": questions[owner],
                }
            )
        return features

    def target(self, feature):
        """(start, end) of the first answer, or [CLS] if it is not inside."""
        answers = feature["question"]["answers"]
        if not answers:
            return 0, 0
        first = answers[0]["answer_start"]
        last = first + len(answers[0]["text"])
        places = [i for i, o in enumerate(feature["offsets"]) if o]
        starts = [i for i in places if feature["offsets"][i][0] <= first]
        ends = [i for i in places if feature["offsets"][i][1] >= last]
        if not starts or not ends or ends[0] < starts[-1]:
            return 0, 0
        return starts[-1], ends[0]

    def model(self):
        """A fresh model for the task."""
        return load("BertForQuestionAnswering", self.flags)

    def best_spans(self, feature, starts, ends):
        """Yields (score, text) of the best pairs of a window."""
        offsets, flags = feature["offsets"], self.flags
        context = feature["question"]["context"]
        inside = [i for i, o in enumerate(offsets) if o]
        first = sorted(inside, key=starts.__getitem__)[-flags.n_best_size :]
        last = sorted(inside, key=ends.__getitem__)[-flags.n_best_size :]
        for start in first:
            for end in last:
                if 0 <= end - start < flags.max_answer_length:
                    text = context[offsets[start][0] : offsets[end][1]]
                    yield starts[start] + ends[end], text

    def predict(self, model, path, dev_file=None):
        """From the dev file to JSON; gives (questions, what scores them)."""
        questions = read_squad(dev_file or self.flags.dev_file)
        features = self.featurize(questions)
        best = {q["id"]: (-math.inf, "") for q in questions}
        null = {q["id"]: math.inf for q in questions}
        for places, output in predict(
            model, features, self.collate, self.flags
        ):
            both = zip(
                places,
                output.start_logits.float().tolist(),
                output.end_logits.float().tolist(),
                strict=True,
            )
            for place, starts, ends in both:
                feature = features[place]
                key = feature["question"]["id"]
                null[key] = min(null[key], starts[0] + ends[0])
                spans_here = self.best_spans(feature, starts, ends)
                best[key] = max([best[key], *spans_here], key=lambda x: x[0])
        negatives = any(not q["answers"] for q in questions)
        predictions = {
            key: "" if negatives and null[key] > score else text
            for key, (score, text) in best.items()
        }
        text = json.dumps(predictions, ensure_ascii=False, indent=1)
        write_lines(path, [text])

        def score():
            exact, f1 = squad_score(questions, predictions)
            return {"score_name": "f1", "score": f1, "exact": exact}

        return len(questions), score


# -- Pre-training speed -----------------------------------------------------


def pretrain(seed, flags):
    """Times --max_steps steps (20 by default) after one that is not timed."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=flags.hidden_size,
        num_hidden_layers=flags.num_layers,
        num_attention_heads=max(1, flags.hidden_size // 64),
        intermediate_size=4 * flags.hidden_size,
        hidden_act="gelu_pytorch_tanh",
    )
    model = transformers.BertForPreTraining(config).train()
    batches = list(pretraining_batches(flags))
    steps = flags.max_steps or 20
    optimizer, schedule = make_optimizer(model, flags, steps + 1)
    train_step(model, [batches[0]], optimizer, schedule, flags)
    losses, rows = [], 0
    with Clock() as clock:
        for step in range(steps):
            batch = batches[step % len(batches)]
            loss = train_step(model, [batch], optimizer, schedule, flags)
            losses.append(float(loss.detach()))
            rows += len(batch["input_ids"])
    scores = {"score_name": "loss", "score": losses[-1]}
    scores["steps_per_second"] = steps / clock.wall
    return result(flags, seed, scores, (rows, clock), None)


# -- The command line -------------------------------------------------------


def fine_tune(task, seed, flags):
    """Trains a fresh model, predicts, and gives the line to print."""
    import torch

    torch.manual_seed(seed)
    model = task.model()
    trained = train(model, task.features, task.collate, seed, flags)
    path = os.path.join(flags.output_dir, f"predictions_{seed}.txt")
    with Clock() as clock:
        rows, score = task.predict(model, path)
    others = {}
    for name in filter(None, flags.other_ways.split(",")):
        setattr(flags, name, not getattr(flags, name))
        with Clock() as other:
            task.predict(model, path.replace(".txt", f"_{name}.txt"))
        setattr(flags, name, not getattr(flags, name))
        others[f"predict_rows_per_second_{name}"] = rows / other.wall
    if flags.also:
        task.predict(model, path.replace(".txt", "_also.txt"), flags.also)
    if flags.save_model:
        model.save_pretrained(os.path.join(flags.output_dir, f"model_{seed}"))
    line = result(flags, seed, score(), trained, (rows, clock))
    return line | others


def flag_parser():
    """The command line's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("mode", choices=["classify", "tag", "squad", "pretrain"])
    add("--data", default="tsv", help=f"one of: {', '.join(READERS)}")
    add("--train_file", help="rows to train on")
    add("--dev_file", help="rows to predict and score")
    add("--also", help="squad: another file to predict, not timed")
    add("--model", help="a Hugging Face directory")
    add("--output_dir", default="output/peer")
    add("--save_model", action="store_true", help="keep each seed's weights")
    add("--seeds", default="1", help="comma-separated")
    add("--precision", default="float32", choices=["float32", "bfloat16"])
    add("--optimizer", default="adamw", choices=["adamw", "bert"])
    add("--label_bias", action="store_true", help="at the labels' log-odds")
    add("--threshold", type=float, default=0.5, help="goemotions")
    add("--epochs", type=float, default=3.0)
    add("--learning_rate", type=float, default=5e-5)
    add("--warmup_ratio", type=float, default=0.1)
    add("--train_batch_size", type=int, default=32)
    add("--predict_batch_size", type=int, default=32)
    add("--max_seq_length", type=int, default=128)
    add("--max_steps", type=int, default=0, help="stop early (a trial)")
    add("--parts", type=int, default=1, help="of a batch, each padded alone")
    add("--sort_predictions", action="store_true", help="by length")
    add("--pad_to_max_length", action="store_true", help="every row")
    add("--other_ways", default="", help="flags to flip and time again")
    add("--threads", type=int, default=os.cpu_count())
    add("--wait", action="store_true", help="a line of input per seed")
    add("--doc_stride", type=int, default=128, help="overlap of windows")
    add("--max_answer_length", type=int, default=30)
    add("--n_best_size", type=int, default=20)
    add("--batches", help="pretrain: an .npz of batches")
    add("--hidden_size", type=int, default=256, help="pretrain")
    add("--num_layers", type=int, default=4, help="pretrain")
    return parser


def parse_flags(argv):
    """Checks the command line before anything heavy is imported."""
    parser = flag_parser()
    flags = parser.parse_args(argv)
    if flags.mode == "pretrain":
        flags.data = flags.batches or "random"
        return flags
    if flags.mode != "classify":
        flags.data = os.path.basename(flags.train_file or "")
    elif flags.data not in READERS:
        parser.error(f"--data={flags.data} is not one of: {[*READERS]}.")
    if flags.label_bias and flags.data != "goemotions":
        parser.error("--label_bias is for --data=goemotions.")
    for name in ("train_file", "dev_file", "model"):
        path = getattr(flags, name)
        if not path or not os.path.exists(path):
            parser.error(f"--{name}={path} does not exist.")
    return flags


def relaunch():
    """Goes on in the interpreter that PEER_PYTHON names, if it is another."""
    wanted = os.environ.get("PEER_PYTHON")
    if wanted and os.environ.get("PEER_RELAUNCHED") != "1":
        os.environ["PEER_RELAUNCHED"] = "1"
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(wanted, [wanted, *sys.argv])


def main(argv):
    """Runs every seed and prints its line."""
    flags = parse_flags(argv)
    relaunch()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import torch
    import transformers

    torch.set_num_threads(flags.threads)
    seeds = [int(seed) for seed in flags.seeds.split(",")]
    task = None
    if flags.mode != "pretrain":
        os.makedirs(flags.output_dir, exist_ok=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
        kinds = {"classify": Classify, "tag": Tag, "squad": Squad}
        task = kinds[flags.mode](flags, tokenizer)
    for seed in seeds:
        if flags.wait:
            print(json.dumps({"ready": True}), flush=True)
            if not sys.stdin.readline():
                return
        line = fine_tune(task, seed, flags) if task else pretrain(seed, flags)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
