"""Weights of CTRL under the names and in the layout of `transformers`' CTRLLMHeadModel, both ways."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from hayakuchi.config import CtrlConfig
from hayakuchi.models.ctrl_blocks import unshared


class WeightName(NamedTuple):
    """One tensor in both worlds.

    Attributes:
      path: its path in `nnx.to_pure_dict` of a model whose blocks are not scanned.
      name: its name in a CTRLLMHeadModel.
      transpose: whether it is a matrix that lies transposed there: Linear weights are [out, in].
    """

    path: tuple[str | int, ...]
    name: str
    transpose: bool


_BLOCK_LAYERS = (
    (("attention", "query"), "multi_head_attention.Wq"),
    (("attention", "key"), "multi_head_attention.Wk"),
    (("attention", "value"), "multi_head_attention.Wv"),
    (("attention", "output"), "multi_head_attention.dense"),
    (("feed_forward", "expand"), "ffn.0"),
    (("feed_forward", "contract"), "ffn.2"),
)
_BLOCK_NORMS = (("attention_norm", "layernorm1"), ("feed_forward_norm", "layernorm2"))


def name_map(config: CtrlConfig) -> list[WeightName]:
    """Every tensor of a plain model. The output's weight is not listed: both sides tie it to the embedding."""
    names = [
        WeightName(("embedding",), "transformer.w.weight", False),
        WeightName(("vocabulary_bias",), "lm_head.bias", False),
        *_norm(("norm",), "transformer.layernorm"),
    ]
    for index in range(config.layers):
        block, prefix = ("blocks", index), f"transformer.h.{index}"
        for path, name in _BLOCK_LAYERS:
            names.append(WeightName((*block, *path, "kernel"), f"{prefix}.{name}.weight", True))
            names.append(WeightName((*block, *path, "bias"), f"{prefix}.{name}.bias", False))
        for norm, name in _BLOCK_NORMS:
            names += _norm((*block, norm), f"{prefix}.{name}")
    return names


def to_hf(parameters: Mapping[str, Any], config: CtrlConfig) -> dict[str, np.ndarray]:
    """The tensors of a CTRLLMHeadModel.

    It knows neither shared layers, which are repeated, nor a factorised embedding, whose products become an embedding
    and an output of their own ("lm_head.weight", else tied to the embedding).

    Args:
      parameters: float32 parameters as `nnx.to_pure_dict(nnx.state(model))` gives them, blocks scanned or not.
      config: sizes of the model.
    """
    parameters = unshared(dict(parameters), config)
    tensors = {}
    if config.embedding_width:
        # By NumPy: an accelerator would multiply float32 arrays in less.
        table, bias = (np.asarray(parameters[name]) for name in ("embedding", "vocabulary_bias"))
        widen, narrow = (
            {part: np.asarray(array) for part, array in parameters[name].items()} for name in ("widen", "narrow")
        )
        tensors["lm_head.weight"] = table @ narrow["kernel"].T
        # The model multiplies the embedding by the root of the width before it is widened and the bias added.
        parameters["embedding"] = table @ widen["kernel"] + widen["bias"] / math.sqrt(config.width)
        parameters["vocabulary_bias"] = bias + table @ narrow["bias"]
    flat = traverse_util.flatten_dict(parameters)
    for path, name, transpose in name_map(config):
        if config.scan_layers and path[0] == "blocks":
            _, index, *rest = path
            array = np.asarray(flat["blocks", *rest][index])
        else:
            array = np.asarray(flat[path])
        tensors[name] = np.ascontiguousarray(array.T if transpose else array)
    return tensors


def from_hf(tensors: Mapping[str, np.ndarray], config: CtrlConfig) -> dict[str, Any]:
    """Inverse of `to_hf` for a model that shares and factorises nothing.

    Gives parameters for `nnx.replace_by_pure_dict`, stacked where `config` scans the blocks.
    """
    flat: dict[tuple[str | int, ...], Any] = {}
    for path, name, transpose in name_map(config):
        array = tensors[name].T if transpose else tensors[name]
        if config.scan_layers and path[0] == "blocks":
            _, _, *rest = path
            flat.setdefault(("blocks", *rest), []).append(array)
        else:
            flat[path] = array
    nested = traverse_util.unflatten_dict(
        {path: np.stack(array) if isinstance(array, list) else array for path, array in flat.items()}
    )
    return dict(nested)


def _norm(path: tuple[str | int, ...], name: str) -> list[WeightName]:
    return [WeightName((*path, "scale"), f"{name}.weight", False), WeightName((*path, "bias"), f"{name}.bias", False)]
