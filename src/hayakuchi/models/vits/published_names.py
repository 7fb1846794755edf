"""Every tensor of the published PyTorch VITS and its place here, both ways (names of the code of arXiv 2106.06103).

PyTorch keeps a convolution as [O, I, W] (a transposed one as [I, O, W], a two-dimensional one with a width of 1
more), one tensor a layer; here kernels are [W, I, O] ([W, O, I]), and equal layers lie in one stack.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from flax import traverse_util

from hayakuchi.config.vits import VitsConfig
from hayakuchi.errors import UserError
from hayakuchi.models.vits.discriminators import PERIODS

Path = tuple[str | int, ...]
Layout = Literal["same", "first", "last", "gain", "plane_gain", "matrix", "depthwise", "convolution", "plane"]

# For each layout: the permutation of the published axes, and how many axes of size 1 stand before and after the rest
# once permuted. "convolution" also serves transposed ones: both reverse the axes.
_LAYOUTS: dict[Layout, tuple[tuple[int, ...] | None, int, int]] = {
    "same": (None, 0, 0),
    "first": (None, 1, 0),  # [1, R, K] -> [R, K]
    "last": (None, 0, 1),  # [C, 1] -> [C]
    "gain": (None, 0, 2),  # [O, 1, 1] -> [O]
    "plane_gain": (None, 0, 3),  # [O, 1, 1, 1] -> [O]
    "matrix": ((1, 0, 2), 0, 1),  # [O, I, 1] -> [I, O]
    "depthwise": ((2, 0, 1), 0, 1),  # [C, 1, W] -> [W, C]
    "convolution": ((2, 1, 0), 0, 0),  # [O, I, W] -> [W, I, O]
    "plane": ((2, 1, 0, 3), 0, 1),  # [O, I, W, 1] -> [W, I, O]
}


class Name(NamedTuple):
    """One tensor in both worlds.

    Attributes:
      published: its name in the published code.
      path: its path in `nnx.to_pure_dict` of the model's parameters.
      place: its place in the stack that lies there; () where there is no stack.
      layout: how its axes differ.
    """

    published: str
    path: Path
    place: tuple[int, ...]
    layout: Layout


def generator_names(config: VitsConfig) -> list[Name]:
    """Every tensor of `Vits`, published as SynthesizerTrn."""
    names = [
        *_text_encoder(config),
        *_pointwise("enc_q.pre", ("posterior_encoder", "enter")),
        *_wavenet("enc_q.enc", ("posterior_encoder", "wavenet"), (), config.posterior_layers, config),
        *_pointwise("enc_q.proj", ("posterior_encoder", "projection")),
        *_decoder(config),
    ]
    for coupling in range(config.flow_couplings):
        # The published list holds a flip after every coupling.
        theirs, ours = f"flow.flows.{2 * coupling}", ("flow", "couplings")
        names += _pointwise(f"{theirs}.pre", (*ours, "enter"), (coupling,))
        names += _wavenet(f"{theirs}.enc", (*ours, "wavenet"), (coupling,), config.flow_layers, config)
        names += _pointwise(f"{theirs}.post", (*ours, "leave"), (coupling,))
    names += _stochastic_durations() if config.stochastic_durations else _deterministic_durations()
    if config.speakers:
        names += _pointwise("dp.cond", ("durations", "condition"))
        names.append(Name("emb_g.weight", ("speakers",), (), "same"))
    return names


def discriminator_names() -> list[Name]:
    """Every tensor of `Discriminators`, published as MultiPeriodDiscriminator."""
    names = []
    for layer in range(7):
        theirs = f"discriminators.0.{'conv_post' if layer == 6 else f'convs.{layer}'}"
        names += _weight_normed(theirs, ("scale", "layers", layer))
    for period in range(len(PERIODS)):
        for layer in range(6):
            theirs = f"discriminators.{period + 1}.{'conv_post' if layer == 5 else f'convs.{layer}'}"
            ours = ("periods", "layers", layer)
            names.append(Name(f"{theirs}.weight_v", (*ours, "direction"), (period,), "plane"))
            names.append(Name(f"{theirs}.weight_g", (*ours, "gain"), (period,), "plane_gain"))
            names.append(Name(f"{theirs}.bias", (*ours, "bias"), (period,), "same"))
    return names


def to_published(parameters: Mapping[Any, Any], names: Iterable[Name]) -> dict[str, np.ndarray]:
    """The published tensors.

    Args:
      parameters: as `nnx.to_pure_dict(nnx.state(model))` gives them; gradients in that structure do as well.
      names: those of the model.
    """
    flat = {path: np.asarray(leaf) for path, leaf in traverse_util.flatten_dict(parameters).items()}
    tensors = {}
    for name in names:
        permutation, before, after = _LAYOUTS[name.layout]
        array = flat[name.path][name.place]
        array = array.reshape((1,) * before + array.shape + (1,) * after)
        if permutation is not None:
            array = array.transpose(np.argsort(permutation))
        tensors[name.published] = np.ascontiguousarray(array)
    return tensors


def from_published(tensors: Mapping[str, np.ndarray], names: Sequence[Name]) -> dict[Any, Any]:
    """Inverse of `to_published`: parameters for `nnx.merge`.

    Weight-normalised layers may be folded, as `remove_weight_norm` leaves them: with `weight` in place of `weight_v`
    and `weight_g`.

    Raises:
      UserError: a tensor is missing.
    """
    stacks: dict[Path, dict[tuple[int, ...], np.ndarray]] = {}
    for name in names:
        permutation, before, after = _LAYOUTS[name.layout]
        array = _published_tensor(tensors, name.published)
        if permutation is not None:
            array = array.transpose(permutation)
        array = array.reshape(array.shape[before : array.ndim - after])
        stacks.setdefault(name.path, {})[name.place] = array
    nested = traverse_util.unflatten_dict({path: _stacked(parts) for path, parts in stacks.items()})
    return dict(nested)


def _published_tensor(tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name in tensors:
        return np.asarray(tensors[name])
    layer, _, part = name.rpartition(".")
    if part not in ("weight_v", "weight_g") or f"{layer}.weight" not in tensors:
        raise UserError(
            f"the checkpoint has no tensor {name!r}: it is not of a VITS model of these sizes, or cut short"
        )
    weight = np.asarray(tensors[f"{layer}.weight"], np.float32)
    norm = np.sqrt(np.sum(np.square(weight), axis=tuple(range(1, weight.ndim)), keepdims=True))
    # A channel that is off has any direction but 0, which has no norm to be divided by.
    return norm if part == "weight_g" else np.where(norm > 0, weight, np.float32(1))


def _stacked(parts: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    """One array of parts that are known by their place in it."""
    last = max(parts)
    shape = tuple(place + 1 for place in last)
    stack = np.empty(shape + parts[last].shape, parts[last].dtype)
    for place, part in parts.items():
        stack[place] = part
    return stack


def _pointwise(theirs: str, ours: Path, index: tuple[int, ...] = ()) -> list[Name]:
    return [
        Name(f"{theirs}.weight", (*ours, "kernel"), index, "matrix"),
        Name(f"{theirs}.bias", (*ours, "bias"), index, "same"),
    ]


def _convolution(theirs: str, ours: Path, index: tuple[int, ...] = ()) -> list[Name]:
    return [
        Name(f"{theirs}.weight", (*ours, "kernel"), index, "convolution"),
        Name(f"{theirs}.bias", (*ours, "bias"), index, "same"),
    ]


def _norm(theirs: str, ours: Path, index: tuple[int, ...] = ()) -> list[Name]:
    return [
        Name(f"{theirs}.gamma", (*ours, "scale"), index, "same"),
        Name(f"{theirs}.beta", (*ours, "bias"), index, "same"),
    ]


def _weight_normed(theirs: str, ours: Path, index: tuple[int, ...] = (), layout: Layout = "convolution") -> list[Name]:
    return [
        Name(f"{theirs}.weight_v", (*ours, "direction"), index, layout),
        Name(f"{theirs}.weight_g", (*ours, "gain"), index, "gain"),
        Name(f"{theirs}.bias", (*ours, "bias"), index, "same"),
    ]


def _text_encoder(config: VitsConfig) -> list[Name]:
    names = [
        Name("enc_p.emb.weight", ("text_encoder", "embedding"), (), "same"),
        *_pointwise("enc_p.proj", ("text_encoder", "projection")),
    ]
    ours = ("text_encoder", "layers")
    for layer in range(config.text_layers):
        theirs, index = f"enc_p.encoder.attn_layers.{layer}", (layer,)
        attention = (*ours, "attention")
        for theirs_part, part in (("conv_q", "query"), ("conv_k", "key"), ("conv_v", "value"), ("conv_o", "output")):
            names += _pointwise(f"{theirs}.{theirs_part}", (*attention, part), index)
        names.append(Name(f"{theirs}.emb_rel_k", (*attention, "relative_keys"), index, "first"))
        names.append(Name(f"{theirs}.emb_rel_v", (*attention, "relative_values"), index, "first"))
        names += _norm(f"enc_p.encoder.norm_layers_1.{layer}", (*ours, "attention_norm"), index)
        names += _convolution(f"enc_p.encoder.ffn_layers.{layer}.conv_1", (*ours, "expand"), index)
        names += _convolution(f"enc_p.encoder.ffn_layers.{layer}.conv_2", (*ours, "contract"), index)
        names += _norm(f"enc_p.encoder.norm_layers_2.{layer}", (*ours, "feed_forward_norm"), index)
    return names


def _wavenet(theirs: str, ours: Path, index: tuple[int, ...], layers: int, config: VitsConfig) -> list[Name]:
    names = []
    for layer in range(layers):
        names += _weight_normed(f"{theirs}.in_layers.{layer}", (*ours, "inner"), (*index, layer))
    for layer in range(layers - 1):
        names += _weight_normed(f"{theirs}.res_skip_layers.{layer}", (*ours, "outer"), (*index, layer), "matrix")
    names += _weight_normed(f"{theirs}.res_skip_layers.{layers - 1}", (*ours, "last"), index, "matrix")
    if config.speakers:
        names += _weight_normed(f"{theirs}.cond_layer", (*ours, "condition"), index, "matrix")
    return names


def _decoder(config: VitsConfig) -> list[Name]:
    names = [
        *_convolution("dec.conv_pre", ("decoder", "enter")),
        Name("dec.conv_post.weight", ("decoder", "leave", "kernel"), (), "convolution"),
    ]
    if config.speakers:
        names += _pointwise("dec.cond", ("decoder", "condition"))
    for stage in range(len(config.upsample_rates)):
        names += _weight_normed(f"dec.ups.{stage}", ("decoder", "upsamples", stage))
        for branch, dilations in enumerate(config.resblock_dilations):
            block = stage * len(config.resblock_dilations) + branch
            ours = ("decoder", "blocks", block, "convolutions")
            for place in range(len(dilations)):
                if config.resblock == "1":
                    names += _weight_normed(f"dec.resblocks.{block}.convs1.{place}", ours, (2 * place,))
                    names += _weight_normed(f"dec.resblocks.{block}.convs2.{place}", ours, (2 * place + 1,))
                else:
                    names += _weight_normed(f"dec.resblocks.{block}.convs.{place}", ours, (place,))
    return names


def _separable_stack(theirs: str, ours: Path, index: tuple[int, ...] = ()) -> list[Name]:
    names = []
    layers = (*ours, "layers")
    for layer in range(3):
        place = (*index, layer)
        names.append(Name(f"{theirs}.convs_sep.{layer}.weight", (*layers, "depthwise"), place, "depthwise"))
        names.append(Name(f"{theirs}.convs_sep.{layer}.bias", (*layers, "depthwise_bias"), place, "same"))
        names += _pointwise(f"{theirs}.convs_1x1.{layer}", (*layers, "pointwise"), place)
        names += _norm(f"{theirs}.norms_1.{layer}", (*layers, "depthwise_norm"), place)
        names += _norm(f"{theirs}.norms_2.{layer}", (*layers, "pointwise_norm"), place)
    return names


def _stochastic_durations() -> list[Name]:
    names = []
    for prefix, part in (("", ""), ("post_", "posterior_")):
        names += _pointwise(f"dp.{prefix}pre", ("durations", f"{part}enter"))
        names += _separable_stack(f"dp.{prefix}convs", ("durations", f"{part}stack"))
        names += _pointwise(f"dp.{prefix}proj", ("durations", f"{part}leave"))
        ours = ("durations", f"{part}flows")
        names.append(Name(f"dp.{prefix}flows.0.m", (*ours, "mean"), (), "last"))
        names.append(Name(f"dp.{prefix}flows.0.logs", (*ours, "log_scale"), (), "last"))
        for flow in range(4):
            # Item 0 of the published list is the affine map; a flip follows every spline flow.
            theirs, flows = f"dp.{prefix}flows.{2 * flow + 1}", (*ours, "flows")
            names += _pointwise(f"{theirs}.pre", (*flows, "enter"), (flow,))
            names += _separable_stack(f"{theirs}.convs", (*flows, "stack"), (flow,))
            names += _pointwise(f"{theirs}.proj", (*flows, "leave"), (flow,))
    return names


def _deterministic_durations() -> list[Name]:
    ours = "durations"
    return [
        *_convolution("dp.conv_1", (ours, "first")),
        *_norm("dp.norm_1", (ours, "first_norm")),
        *_convolution("dp.conv_2", (ours, "second")),
        *_norm("dp.norm_2", (ours, "second_norm")),
        *_pointwise("dp.proj", (ours, "leave")),
    ]
