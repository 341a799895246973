"""Checkpoints by name: the original's files and Hugging Face's safetensors.

Everything here speaks the original's names (see `checkpoint_names.py`); a
Hugging Face file is read as if it had them. Files are V2 checkpoints of
TensorFlow (PREFIX.index, PREFIX.data-00000-of-00001) that the code of 2018
reads with init_from_checkpoint. Shape letters as in `modeling.py`.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import re

import numpy as np
import tensorflow as tf
from safetensors import SafetensorError, safe_open

import modeling
from checkpoint_names import (
    HUGGING_FACE_KEYS,
    OUTPUT_BIAS,
    POSITION_EMBEDDINGS,
    REDUNDANT,
    SLOTS,
    WORD_EMBEDDINGS,
    Row,
    encoder_rows,
    encoder_variables,
    head_rows,
    head_variables,
    is_training_state,
    modern_name,
    parts_of,
    translate_config,
)

_log = logging.getLogger(__name__)

SAFETENSORS = "model.safetensors"
CONFIG_NAMES = ("bert_config.json", "config.json")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_FIRST_SHARD = ".data-00000-of-00001"
_CUT_OFF = (IndexError, RuntimeError)  # what TensorFlow makes of such files


# --- finding files ----------------------------------------------------------


def find_checkpoint(path):
    """The checkpoint that `path` means: a prefix, or a .safetensors file.

    `path` is either of these, one file of a checkpoint, or a directory. Of a
    directory it is the best checkpoint of a run that kept one, the one that
    its text file `checkpoint` names, or else bert_model.ckpt, the
    model.ckpt-N of the highest N, or model.safetensors.
    Raises ValueError with what was looked for and what lies there."""
    path = os.fspath(path)
    if os.path.isdir(path):
        return _find_in_directory(path)
    if path.endswith(".safetensors") and os.path.isfile(path):
        return path
    prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path)
    if os.path.isfile(prefix + ".index"):
        return prefix
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise ValueError(
            f"{path}: there is no such checkpoint; not even the directory "
            f"{directory} exists."
        )
    names = os.listdir(directory)
    there = [n for n in names if n.endswith((".index", ".safetensors"))]
    there = sorted(n.removesuffix(".index") for n in there)
    raise ValueError(
        f"{path}: there is no such checkpoint (no {os.path.basename(prefix)}"
        f".index). Checkpoints in {directory}: {', '.join(there) or 'none'}."
    )


def _find_in_directory(directory):
    best = best_checkpoint(directory)
    if best and os.path.isfile(os.path.join(directory, "run.json")):
        return best
    state = _read_state(directory)
    if state:
        newest = os.path.join(directory, state[-1])
        if os.path.isfile(newest + ".index"):
            return newest
        raise ValueError(
            f"{os.path.join(directory, 'checkpoint')} names {state[-1]}, but "
            f"there is no {newest}.index. Restore it or name a prefix."
        )
    released = os.path.join(directory, "bert_model.ckpt")
    if os.path.isfile(released + ".index"):
        return released
    names = os.listdir(directory)
    steps = checkpoint_steps(directory)
    if steps:
        return os.path.join(directory, f"model.ckpt-{steps[-1]}")
    if SAFETENSORS in names:
        return os.path.join(directory, SAFETENSORS)
    hint = ""
    if "pytorch_model.bin" in names:
        hint = " Convert its pytorch_model.bin to model.safetensors first."
    raise ValueError(
        f"{directory}: holds no checkpoint: no file `checkpoint`, "
        "bert_model.ckpt.index, model.ckpt-N.index or model.safetensors." + hint
    )


def checkpoint_steps(directory):
    """The steps of the model.ckpt-N in a directory, ascending."""
    if not os.path.isdir(directory):
        return []
    found = (
        re.fullmatch(r"model\.ckpt-(\d+)\.index", name)
        for name in os.listdir(directory)
    )
    return sorted(int(match[1]) for match in found if match)


def newest_checkpoint(directory, unlisted=False):
    """The prefix of the checkpoint to go on with, or None without one.

    It is the one that the file `checkpoint` names. With `unlisted`, for a
    directory that is surely a run's, it is otherwise (the file is lost or
    damaged, or names what is not there) the model.ckpt-N of the highest N,
    with a warning."""
    directory = os.fspath(directory)
    try:
        state = _read_state(directory)
    except ValueError as error:
        _log.warning("%s", error)
        state = []
    for name in state[-1:]:
        prefix = os.path.join(directory, name)
        if os.path.isfile(prefix + ".index"):
            return prefix
    steps = checkpoint_steps(directory)
    if unlisted and state and not steps:
        _log.warning("%s: %s is gone: not used.", directory, state[-1])
    if not (unlisted and steps):
        return None
    prefix = os.path.join(directory, f"model.ckpt-{steps[-1]}")
    told = "%s: the file `checkpoint` names none that is there; taking %s."
    _log.warning(told, directory, prefix)
    return prefix


def best_checkpoint(output_dir):
    """The prefix of OUTPUT_DIR/best, None where no best was kept."""
    return newest_checkpoint(os.path.join(output_dir, "best"), unlisted=True)


def companion_files(init_checkpoint):
    """Config and vocabulary beside a checkpoint: two paths, None if absent."""
    path = os.fspath(init_checkpoint)
    directory = path if os.path.isdir(path) else os.path.dirname(path)

    def first_of(*names):
        paths = [os.path.join(directory, name) for name in names]
        return next((path for path in paths if os.path.isfile(path)), None)

    return first_of(*CONFIG_NAMES), first_of("vocab.txt")


# --- configs ----------------------------------------------------------------


def load_config(path):
    """The BertConfig of a bert_config.json, a config.json or their directory.

    A file of Hugging Face (named config.json, or with keys only they write)
    is translated: their `gelu` is our `gelu_erf`, absent keys have their
    defaults. Raises ValueError naming the file where the model is not one
    that this encoder computes."""
    path = os.fspath(path)
    if os.path.isdir(path):
        found, _ = companion_files(path)
        if found is None:
            raise ValueError(f"{path}: holds no {' or '.join(CONFIG_NAMES)}.")
        path = found
    if not os.path.isfile(path):
        raise ValueError(f"{path}: there is no such config file.")
    config = modeling.BertConfig.from_json_file(path)
    with open(path, encoding="utf-8-sig") as file:
        values = json.load(file)
    foreign = any(key in values for key in HUGGING_FACE_KEYS)
    if foreign or os.path.basename(path) == "config.json":
        values = translate_config(values, path, modeling.LAYER_NORM_EPSILON)
        config = modeling.BertConfig.from_dict(values)
    try:
        config.check()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return config


# --- reading ----------------------------------------------------------------


class CheckpointReader:
    """Shapes and values of a checkpoint under the original's names.

    Attributes: path (as find_checkpoint gives it), shapes ({name: list of
    int}; tensors of Hugging Face that the table lacks keep their own name).
    Raises ValueError for a file that is missing, cut off or of another kind."""

    def __init__(self, path):
        self.path = find_checkpoint(path)
        self._safetensors = self.path.endswith(".safetensors")
        if self._safetensors:
            self._open_safetensors()
        else:
            self._open_original()

    @property
    def num_hidden_layers(self):
        """How many layers of an encoder it holds."""
        found = {
            re.match(r"bert/encoder/layer_(\d+)/", name) for name in self.shapes
        }
        return len({match.group(1) for match in found if match})

    def _open_original(self):
        try:
            self._file = tf.train.load_checkpoint(self.path)
        except (tf.errors.OpError, ValueError, *_CUT_OFF) as error:
            raise self._unreadable(".index", error) from error
        self.shapes = dict(self._file.get_variable_to_shape_map())
        if _OBJECT_GRAPH in self.shapes:
            raise ValueError(
                f"{self.path}: was written by tf.train.Checkpoint or Keras 3 "
                "and has no names of variables that others could read. Name a "
                "checkpoint with original names (such as model.ckpt-N)."
            )
        directory, base = os.path.split(self.path)
        data = [
            name
            for name in os.listdir(directory or ".")
            if re.fullmatch(re.escape(base) + r"\.data-\d{5}-of-\d{5}", name)
        ]
        if not data:
            raise ValueError(
                f"{self.path}: the data file {base}{_FIRST_SHARD} is missing; "
                f"only the index of {len(self.shapes)} variables is there. "
                "Copy both files."
            )

    def _open_safetensors(self):
        try:
            self._file = safe_open(self.path, framework="tf")
            names = list(self._file.keys())
        except (SafetensorError, OSError) as error:
            raise self._unreadable("", error) from error
        layers = [re.search(r"encoder\.layer\.(\d+)\.", n) for n in names]
        count = max((int(m.group(1)) + 1 for m in layers if m), default=0)
        rows = {
            row.hugging_face: row
            for row in [*encoder_rows(count), *head_rows()]
        }
        self._source, self.shapes = {}, {}
        for name in names:
            if REDUNDANT.fullmatch(name):
                continue
            shape = list(self._file.get_slice(name).get_shape())
            row = rows.get(modern_name(name)) or Row(None, name, name)
            self._source[row.original] = name, row.transposed
            if row.transposed:
                shape.reverse()
            self.shapes[row.original] = shape

    def read(self, name):
        """The numpy array of one name; floats of 16 bits become float32."""
        try:
            if not self._safetensors:
                return self._file.get_tensor(name)
            source, transposed = self._source[name]
            value = self._file.get_tensor(source)
        except (tf.errors.OpError, SafetensorError, *_CUT_OFF) as error:
            raise self._unreadable(_FIRST_SHARD, error) from error
        if value.dtype in (tf.bfloat16, tf.float16):
            value = tf.cast(value, tf.float32)
        value = value.numpy()
        return np.ascontiguousarray(value.T) if transposed else value

    def _unreadable(self, suffix, error):
        suffix = "" if self._safetensors else suffix
        return ValueError(
            f"{self.path}{suffix}: cannot be read, it is cut off or no such "
            f"file ({str(error).splitlines()[0]}). Copy it again."
        )


def checkpoint_vocab_size(path):
    """How many rows the word embeddings of a checkpoint have, or None."""
    shape = CheckpointReader(path).shapes.get(WORD_EMBEDDINGS)
    return shape and shape[0]


# --- loading ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What became of every variable: lists of original names.

    `loaded` were taken from `path`, `fresh` keep the model's own values,
    `unused` are only in the file. Slots and step (`training_state`) are no
    part of a model and are left aside."""

    path: str
    loaded: list
    fresh: list
    unused: list
    training_state: list
    other_head: str = ""  # how a head differs that was not taken

    def summary(self):
        """The report as one sentence for the log."""
        lines = [f"{self.path}: loaded {len(self.loaded)} variables"]
        if self.training_state:
            lines.append(
                f"left aside {len(self.training_state)} of training (slots, "
                "step)"
            )
        lines += [
            f"{what}: {_shorten(names)}"
            for what, names in (
                ("fresh, not in the checkpoint", self.fresh),
                ("not used by this model", self.unused),
            )
            if names
        ]
        return "; ".join(lines) + "."


def _shorten(names, limit=6):
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{len(names)} ({', '.join(names[:limit])}{more})"


def load_checkpoint(path, model, what="encoder"):
    """Fills a BertModel or TaskModel and gives a LoadReport.

    `path` as for find_checkpoint. With what="encoder" a head is taken where
    all its shapes fit and otherwise stays fresh, with one warning; the pooler
    may be absent. With what="all" every variable must be there. Raises
    ValueError if nothing of the encoder matches, if the checkpoint has fewer
    layers, or if a shape differs; then no variable was changed."""
    if what not in ("encoder", "all"):
        raise ValueError(f"what={what!r} is not one of: encoder, all.")
    reader = CheckpointReader(path)
    encoder, head = encoder_variables(model), head_variables(model)
    _check_encoder(reader, encoder, parts_of(model)[0].config)
    wrong = _differing(reader, head)
    if wrong and what == "all":
        raise ValueError(_shape_message(reader, head, wrong[0]))
    wanted = encoder | ({} if wrong else head)
    loaded = [name for name in wanted if name in reader.shapes]
    implied = _implied(model, head, loaded)
    fresh = [n for n in encoder | head if n not in loaded and n not in implied]
    if fresh and what == "all":
        raise ValueError(
            f"{reader.path}: lacks {_shorten(fresh)} of this model. Is it the "
            "checkpoint of another task?"
        )
    for name in loaded:
        wanted[name].assign(reader.read(name))
    for name, value in implied.items():
        head[name].assign(value)
    rest = sorted(set(reader.shapes) - set(loaded))
    report = LoadReport(
        reader.path,
        loaded,
        fresh,
        [name for name in rest if not is_training_state(name)],
        [name for name in rest if is_training_state(name)],
        _shape_message(reader, head, wrong[0]) if wrong else "",
    )
    if wrong:
        _log.warning("%s The head starts fresh.", report.other_head)
    missing = [name for name in fresh if name in encoder]
    if missing:
        _log.warning("%s: lacks %s.", reader.path, _shorten(missing))
    return report


def _implied(model, head, loaded):
    """What the variables of the head are that a file with the others lacks."""
    implied = parts_of(model)[1].implied if head else {}
    if any(name not in loaded and name not in implied for name in head):
        return {}
    return {n: value for n, value in implied.items() if n not in loaded}


def _differing(reader, variables):
    return [
        name
        for name, variable in variables.items()
        if name in reader.shapes
        and list(reader.shapes[name]) != list(variable.shape)
    ]


def _shape_message(reader, variables, name):
    return (
        f"{reader.path}: {name} has shape {list(reader.shapes[name])}, the "
        f"model's has {list(variables[name].shape)}."
    )


def _check_encoder(reader, variables, config):
    """Refuses a checkpoint that is not of this encoder."""
    if not set(variables) & set(reader.shapes):
        held = sorted(reader.shapes)
        raise ValueError(
            f"{reader.path} matches none of the {len(variables)} encoder "
            f"variables; the first it holds is '{held[0] if held else ''}'. "
            "Is the path a checkpoint prefix?"
        )
    layers = reader.num_hidden_layers
    if layers < config.num_hidden_layers:
        raise ValueError(
            f"{reader.path} has {layers} layers, the config's "
            f"num_hidden_layers={config.num_hidden_layers}. Take the config "
            "that belongs to the checkpoint."
        )
    hidden = reader.shapes.get(WORD_EMBEDDINGS, [None, None])[1]
    if hidden not in (None, config.hidden_size):
        raise ValueError(
            f"{reader.path} is a model of hidden size {hidden}, the config's "
            f"hidden_size={config.hidden_size}. Take the config that belongs "
            "to the checkpoint, or another directory."
        )
    wrong = _differing(reader, variables)
    if not wrong:
        return
    remedy = {
        WORD_EMBEDDINGS: "Take the vocabulary and config of the checkpoint, "
        "or grow its table with grow_word_embeddings.",
        POSITION_EMBEDDINGS: "Lower max_position_embeddings, or tile the "
        "table with tile_positions.",
    }.get(wrong[0], "Take the config that belongs to the checkpoint.")
    raise ValueError(
        f"{_shape_message(reader, variables, wrong[0])} {remedy}"
        + (f" Also: {_shorten(wrong[1:])}." if wrong[1:] else "")
    )


def restore_checkpoint(path, model, optimizer=None):
    """Fills a model, and an optimizer's slots where they are in the file.

    Goes on from a checkpoint of training, ours or the original's: every
    variable must be there; slots that are not stay 0. Returns the global
    step. Raises what load_checkpoint does, and ValueError for a checkpoint
    without a step."""
    step = global_step(path)
    load_checkpoint(path, model, what="all")
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        reader = CheckpointReader(path)
        for name, slot in _slots(model, optimizer).items():
            if name in reader.shapes:
                slot.assign(reader.read(name))
        optimizer.iterations.assign(step)
    return step


def global_step(path):
    """The step at which a checkpoint was written.

    Raises ValueError if it does not say so."""
    reader = CheckpointReader(path)
    if "global_step" not in reader.shapes:
        raise ValueError(
            f"{reader.path}: has no global_step, so it is no state of "
            "training. Use it as --init_checkpoint."
        )
    return int(reader.read("global_step"))


# --- writing ----------------------------------------------------------------


def _slots(model, optimizer):
    variables = encoder_variables(model) | head_variables(model)
    found = {}
    for name, variable in variables.items():
        for slot in SLOTS:
            value = optimizer.slot(variable, slot)
            if value is not None:
                found[f"{name}/{slot}"] = value
    return found


def save_checkpoint(prefix, model, optimizer=None, global_step=None):
    """Writes a checkpoint with the original's names, whole or not at all.

    The optimizer's slots and the step (int64 `global_step`) are written where
    given; the list `checkpoint` of a directory is kept by RunDirectory.
    Returns the prefix. Raises ValueError if it cannot be written."""
    variables = encoder_variables(model) | head_variables(model)
    if optimizer is not None:
        variables |= _slots(model, optimizer)
    values = {
        name: tf.convert_to_tensor(variable.value)
        for name, variable in variables.items()
    }
    if global_step is not None:
        values["global_step"] = tf.constant(int(global_step), tf.int64)
    write_variables(prefix, values)
    return prefix


def write_variables(prefix, values):
    """Writes {name: tensor or array} as PREFIX.index and its data file.

    Both are written under another name first; the index, without which no
    reader sees a checkpoint, comes last. Raises ValueError, or OSError if the
    disk is full."""
    prefix = os.fspath(prefix)
    directory, base = os.path.split(prefix)
    temporary = os.path.join(directory, f".{base}.{os.getpid()}.partial")
    names = sorted(values)
    try:
        if directory:
            os.makedirs(directory, exist_ok=True)
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=temporary,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.convert_to_tensor(values[name]) for name in names],
            )
        _remove(prefix + ".index")
        for suffix in (_FIRST_SHARD, ".index"):
            os.replace(temporary + suffix, prefix + suffix)
    except (tf.errors.OpError, OSError) as error:
        if is_full_disk(error):
            raise full_disk(directory) from error
        raise ValueError(
            f"{prefix}: the checkpoint cannot be written "
            f"({str(error).splitlines()[0]})."
        ) from error
    finally:
        for suffix in (".index", _FIRST_SHARD):
            _remove(temporary + suffix)


def is_full_disk(error):
    """Whether an error of the system or of TensorFlow is a full disk."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return True
    words = ("No space left", "Disk quota exceeded")  # of the C++ side
    return any(part in str(error) for part in words)


def full_disk(directory):
    """The OSError to raise where the disk of a directory is full."""
    return OSError(
        f"no space is left on the disk of {directory or '.'}; free some and "
        "run the command again."
    )


@contextlib.contextmanager
def naming_a_full_disk(directory):
    """Turns an error of a full disk into one that says what to do."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        if not is_full_disk(error):
            raise
        raise full_disk(directory) from error


def _remove(path):
    if os.path.lexists(path):
        os.remove(path)


def _read_state(directory):
    """Base names in the text file `checkpoint`, the newest last; or []."""
    file = os.path.join(directory, "checkpoint")
    if not os.path.isfile(file):
        return []
    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # it names nothing
        state = None
    if state is None:
        raise ValueError(
            f"{file}: is not a list of checkpoints as TensorFlow writes it. "
            "Delete it, or name a checkpoint prefix."
        )
    # Paths may be of another machine: only the files beside it count.
    newest = os.path.basename(state.model_checkpoint_path)
    older = map(os.path.basename, state.all_model_checkpoint_paths)
    return [name for name in older if name != newest] + [newest]


def has_slots(prefix):
    """Whether a checkpoint holds the moments of its optimizer."""
    names = CheckpointReader(prefix).shapes
    return any(is_training_state(name) for name in names if "/" in name)


# --- growing tables ---------------------------------------------------------


def rewrite(init_checkpoint, output_prefix, changes):
    """Copies the variables of a model, some changed; slots are left out.

    changes: {name: function of (value, path of the checkpoint)}."""
    reader = CheckpointReader(init_checkpoint)
    if WORD_EMBEDDINGS not in reader.shapes:
        raise ValueError(f"{reader.path}: has no {WORD_EMBEDDINGS}.")
    values = {
        name: reader.read(name)
        for name in reader.shapes
        if not is_training_state(name)
    }
    for name, change in changes.items():
        if name in values:
            values[name] = change(values[name], reader.path)
    write_variables(output_prefix, values)


def grow_word_embeddings(
    init_checkpoint,
    output_prefix,
    new_vocab_size,
    old_vocab_size=0,
    seed=0,
    stddev=0.02,
):
    """Copies a checkpoint with more rows of word embeddings, slots left out.

    New rows are truncated normal, as BERT draws its weights, and 0 in the
    masked LM's bias. Raises ValueError if the table would not grow, if it has
    less rows than the old vocabulary, or if the copy would replace the
    checkpoint. The config's vocab_size is the caller's to change."""
    source = CheckpointReader(init_checkpoint).path
    if os.path.realpath(source) == os.path.realpath(output_prefix):
        raise ValueError(
            f"{output_prefix}: is the checkpoint that is to grow. Write the "
            "new one elsewhere."
        )

    def grow(make):
        """Gives the change that appends rows of `make(shape)`."""

        def change(value, path):
            """Appends the rows, unless it is not the old vocabulary's."""
            if value.shape[0] < old_vocab_size:
                raise ValueError(
                    f"{path}: has {value.shape[0]} rows of word embeddings, "
                    f"but the old vocabulary has {old_vocab_size}. Name the "
                    "vocabulary of this checkpoint."
                )
            more = new_vocab_size - value.shape[0]
            if more <= 0:
                raise ValueError(
                    f"{path}: has {value.shape[0]} rows of word embeddings, "
                    f"so new_vocab_size={new_vocab_size} would not grow it."
                )
            rows = make([more, *value.shape[1:]])
            return np.concatenate([value, rows.astype(value.dtype)])

        return change

    def normal(shape):
        make = tf.random.stateless_truncated_normal
        return make(shape, [seed, 0], stddev=stddev).numpy()

    changes = {WORD_EMBEDDINGS: grow(normal), OUTPUT_BIAS: grow(np.zeros)}
    rewrite(init_checkpoint, output_prefix, changes)


def tile_positions(init_checkpoint, output_prefix, new_length):
    """Copies a checkpoint with a longer position table, slots left out.

    The trained rows are repeated until there are `new_length`. Raises
    ValueError if the table would not grow."""

    def change(value, path):
        """Repeats the rows of the table."""
        if new_length <= value.shape[0]:
            raise ValueError(
                f"{path}: has {value.shape[0]} positions, so new_length="
                f"{new_length} would not lengthen it."
            )
        return value[np.arange(new_length) % value.shape[0]]

    rewrite(init_checkpoint, output_prefix, {POSITION_EMBEDDINGS: change})
