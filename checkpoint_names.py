"""Which variable is called what: here, in the original, in Hugging Face.

One table for every encoder and head, and the same for the keys of a config.
Plain Python: files are read and written by `checkpoints.py`.
"""

import functools
import re
from typing import NamedTuple

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
POSITION_EMBEDDINGS = "bert/embeddings/position_embeddings"
OUTPUT_BIAS = "cls/predictions/output_bias"
SLOTS = ("adam_m", "adam_v")


class Row(NamedTuple):
    """One variable under its three names.

    `attribute` is None for a head's; `transposed` holds for Hugging Face's
    [out, in] kernels against the original's [in, out]."""

    attribute: str | None
    original: str
    hugging_face: str
    transposed: bool = False


_DENSE = (("kernel", "weight", True), ("bias", "bias", False))
_NORM = (("gamma", "weight", False), ("beta", "bias", False))
# (attribute, original scope = Hugging Face's with dots, parts)
_LAYER = (
    ("attention.query", "attention/self/query", _DENSE),
    ("attention.key", "attention/self/key", _DENSE),
    ("attention.value", "attention/self/value", _DENSE),
    ("attention.output_dense", "attention/output/dense", _DENSE),
    ("attention.output_norm", "attention/output/LayerNorm", _NORM),
    ("intermediate", "intermediate/dense", _DENSE),
    ("output_dense", "output/dense", _DENSE),
    ("output_norm", "output/LayerNorm", _NORM),
)
_HEADS = (
    ("output_weights", "classifier.weight"),
    ("output_bias", "classifier.bias"),
    ("cls/squad/output_weights", "qa_outputs.weight"),
    ("cls/squad/output_bias", "qa_outputs.bias"),
    ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
    (OUTPUT_BIAS, "cls.predictions.bias"),
)
# Tensors of Hugging Face that say nothing new: a range, and tied weights.
REDUNDANT = re.compile(
    r"(bert\.)?embeddings\.position_ids|cls\.predictions\.decoder\.weight"
)


def _group(attribute, original, hugging_face, parts):
    return [
        Row(
            attribute and f"{attribute}.{ours}",
            f"{original}/{ours}",
            f"{hugging_face}.{theirs}",
            transposed,
        )
        for ours, theirs, transposed in parts
    ]


@functools.cache
def encoder_rows(num_hidden_layers):
    """The rows of an encoder: 7 + 16 per layer."""
    rows = [
        Row(
            f"embeddings.{name}",
            f"bert/embeddings/{name}",
            f"bert.embeddings.{name}.weight",
        )
        for name in (
            "word_embeddings",
            "token_type_embeddings",
            "position_embeddings",
        )
    ]
    embeddings = "embeddings.LayerNorm"
    rows += _group(
        embeddings, "bert/embeddings/LayerNorm", f"bert.{embeddings}", _NORM
    )
    for index in range(num_hidden_layers):
        for attribute, scope, parts in _LAYER:
            rows += _group(
                f"layer.{index}.{attribute}",
                f"bert/encoder/layer_{index}/{scope}",
                f"bert.encoder.layer.{index}.{scope.replace('/', '.')}",
                parts,
            )
    return rows + _group(
        "pooler", "bert/pooler/dense", "bert.pooler.dense", _DENSE
    )


@functools.cache
def head_rows():
    """The rows of all heads that have a name in both worlds."""
    scope = "cls/predictions/transform/"
    rows = [Row(None, ours, theirs) for ours, theirs in _HEADS]
    for name, parts in (("dense", _DENSE), ("LayerNorm", _NORM)):
        rows += _group(
            None, scope + name, (scope + name).replace("/", "."), parts
        )
    return rows


def _attribute(owner, path):
    """Follows a path such as `layer.0.attention.query.kernel`."""
    for part in path.split("."):
        owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
    return owner


def parts_of(model):
    """The encoder of a BertModel or TaskModel, and the head or None."""
    return getattr(model, "encoder", model), getattr(model, "head", None)


def encoder_variables(model):
    """{original name: variable} of the encoder of a BertModel or TaskModel."""
    encoder, _ = parts_of(model)
    return {
        row.original: _attribute(encoder, row.attribute)
        for row in encoder_rows(encoder.config.num_hidden_layers)
    }


def head_variables(model):
    """{original name: variable} of a TaskModel's head; else empty."""
    _, head = parts_of(model)
    names = getattr(head, "original_names", {})
    return {
        original: _attribute(head, attribute)
        for attribute, original in names.items()
    }


def modern_name(name):
    """The name in the table for a tensor of any age and class."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    if name == "cls.predictions.decoder.bias":
        return "cls.predictions.bias"
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        return f"bert.{name}"
    return name


def is_training_state(name):
    """Whether a variable only serves to go on training."""
    return name == "global_step" or name.rsplit("/", 1)[-1] in SLOTS


# --- configs ----------------------------------------------------------------

HUGGING_FACE_KEYS = ("model_type", "architectures", "transformers_version")
# Their `gelu` is the erf form; ours and the original's is the tanh form.
_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_erf": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_CONFIG_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)


def translate_config(values, path, epsilon):
    """The config of Hugging Face, a dict, as the original's keys.

    `epsilon` is what layer norm uses here. Raises ValueError naming `path`
    where the model is not one that this encoder computes."""
    expected = {
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "layer_norm_eps": epsilon,
        "is_decoder": False,
        "add_cross_attention": False,
    }
    for key, value in expected.items():
        if values.get(key, value) != value:
            raise ValueError(
                f"{path}: {key}={values[key]!r} is not BERT as computed here, "
                f"where it is {value!r}."
            )
    activation = values.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{path}: hidden_act={activation!r} is not one of: "
            f"{', '.join(_ACTIVATIONS)}."
        )
    values = {"type_vocab_size": 2} | values
    ours = {key: values[key] for key in _CONFIG_KEYS if key in values}
    ours["hidden_act"] = _ACTIVATIONS[activation]
    return ours
