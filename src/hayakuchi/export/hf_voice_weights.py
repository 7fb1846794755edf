"""Weights of VITS under the names and in the layout of `transformers`' VitsModel.

Against the published code the flips of the flows have no place in the lists, the convolutions of the attention are
Linear layers, weight norm stands as a parametrisation, and the decoder's is folded.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hayakuchi.config.vits import VitsConfig
from hayakuchi.models.vits.published_names import generator_names, to_published

_LAYER = r"text_encoder.encoder.layers.\1."
# Rewritten one after another, from names of the published code. Conditioning, embeddings of offsets and the WaveNets'
# lists are called alike on both sides.
_RENAMES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^enc_p\.emb\.", "text_encoder.embed_tokens."),
        (r"^enc_p\.proj\.", "text_encoder.project."),
        (r"^enc_p\.encoder\.norm_layers_1\.(\d+)", f"{_LAYER}layer_norm"),
        (r"^enc_p\.encoder\.norm_layers_2\.(\d+)", f"{_LAYER}final_layer_norm"),
        (r"^enc_p\.encoder\.ffn_layers\.(\d+)", f"{_LAYER}feed_forward"),
        (r"^enc_p\.encoder\.attn_layers\.(\d+)", f"{_LAYER}attention"),
        (r"\.attention\.conv_([qkv])", r".attention.\1_proj"),
        (r"\.attention\.conv_o", ".attention.out_proj"),
        (r"^enc_q\.", "posterior_encoder."),
        (r"^(posterior_encoder|flow\.flows\.\d+)\.enc\.", r"\1.wavenet."),
        (r"^(posterior_encoder|flow\.flows\.\d+)\.(pre|post|proj)\.", r"\1.conv_\2."),
        (r"^dec\.ups\.", "decoder.upsampler."),
        (r"^dec\.", "decoder."),
        (r"^dp\.", "duration_predictor."),
        (r"\.convs_sep\.", ".convs_dilated."),
        (r"\.convs_1x1\.", ".convs_pointwise."),
        (r"\.m$", ".translate"),
        (r"\.logs$", ".log_scale"),
        (r"^emb_g\.", "embed_speaker."),
        (r"\.weight_g$", ".parametrizations.weight.original0"),
        (r"\.weight_v$", ".parametrizations.weight.original1"),
        (r"\.gamma$", ".weight"),
        (r"\.beta$", ".bias"),
    )
)
# Of the stochastic durations only: the last layer of the deterministic ones is called `proj` on both sides.
_FLOW_RENAMES = (
    (re.compile(r"^(duration_predictor\.(?:\w*flows\.\d+\.)?(?:post_)?)(pre|proj)\."), r"\1conv_\2."),
    (re.compile(r"^(duration_predictor\.(?:\w*flows\.\d+\.)?(?:post_)?)convs\."), r"\1conv_dds."),
)
_FLOW_INDEX = re.compile(r"flows\.(\d+)")


def to_hf_voice(parameters: Mapping[Any, Any], config: VitsConfig) -> dict[str, np.ndarray]:
    """The tensors of a VitsModel with one row of the embedding for each symbol id.

    Args:
      parameters: float32 parameters as `nnx.to_pure_dict(nnx.state(model))` gives them.
      config: sizes of the model, with residual blocks of kind 1.
    """
    published = to_published(parameters, generator_names(config))
    for name in [name for name in published if name.startswith("dec.") and name.endswith(".weight_v")]:
        layer = name.removesuffix("_v")
        published[layer] = folded(published.pop(name), published.pop(f"{layer}_g"))
    tensors = {}
    for name, array in published.items():
        theirs = hf_name(name, config)
        linear = ".attention." in theirs and theirs.endswith("_proj.weight")
        tensors[theirs] = array[..., 0].copy() if linear else array
    return tensors


def hf_name(published: str, config: VitsConfig) -> str:
    """The name in a VitsModel of a tensor of the published generator."""
    name = published
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    if name.startswith("duration_predictor."):
        for pattern, replacement in _FLOW_RENAMES if config.stochastic_durations else ():
            name = pattern.sub(replacement, name)
        # The affine map comes first here, then a flow and a flip in turn.
        return _FLOW_INDEX.sub(lambda match: f"flows.{(int(match[1]) + 1) // 2}", name)
    return _FLOW_INDEX.sub(lambda match: f"flows.{int(match[1]) // 2}", name)


def folded(direction: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """gain * direction / ||direction||, the norm over all axes but the first; `gain` has 1 in their place."""
    axes = tuple(range(1, direction.ndim))
    norm = np.sqrt(np.sum(np.square(direction, dtype=np.float64), axis=axes, keepdims=True))
    return np.asarray(direction * (gain / norm), direction.dtype)
