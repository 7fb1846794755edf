"""Learning-rate schedules and update rules: a choice among Optax's."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from optax.contrib import MuonDimensionNumbers, muon

from hayakuchi.config import OptimizerConfig

_NOT_DECAYED = ("bias", "vocabulary_bias", "scale")
_ADAGRAD_INITIAL_ACCUMULATOR = 0.1
_MUON_ADAMW_RMS = 0.2  # makes Muon's updates as large as AdamW's (arXiv 2502.16982, section 2.2)


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate as a function of the number of optimiser steps done, over a run of `steps` steps."""
    warmup = min(config.warmup_steps, steps)
    peak, final = config.learning_rate, config.learning_rate * config.final_fraction
    rest = max(steps - warmup - 1, 1)  # the last step is number steps - 1
    match config.schedule:
        case "cosine":
            after = optax.cosine_decay_schedule(peak, rest, alpha=config.final_fraction)
        case "wsd":
            decay = max(round(steps * config.decay_fraction), 1)
            after = optax.linear_schedule(peak, final, min(decay, rest), transition_begin=max(rest - decay, 0))
        case "constant":
            after = optax.constant_schedule(peak)
    if warmup == 0:
        return after
    # The first step already moves: (step + 1) / warmup of the peak.
    rise = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, after], [warmup])


def used_rate(schedule: optax.Schedule, state: optax.OptState) -> Float[Array, ""]:
    """The learning rate of the update that an optimiser in this state makes next.

    By the optimiser's own count of updates, which steps that float16 skips do not raise.
    """
    counts = optax.tree.get_all_with_path(state, "count")
    count = next(count for path, count in counts if path[-1].tuple_name == "ScaleByScheduleState")
    return jnp.asarray(schedule(count), jnp.float32)


def decay_mask(parameters: Any) -> Any:
    """True for the matrices, which are decayed; False for biases and LayerNorm scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _name(path) not in _NOT_DECAYED, parameters)


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clipping by global norm, then the named rule under `schedule`."""
    match config.optimizer:
        case "adamw":
            rule = optax.adamw(
                schedule, config.beta1, config.beta2, config.epsilon, weight_decay=config.weight_decay, mask=decay_mask
            )
        case "adagrad":
            # As CTRL was trained (arXiv 1909.05858, section 3.2); no weight decay.
            rule = optax.adagrad(schedule, _ADAGRAD_INITIAL_ACCUMULATOR, eps=config.epsilon)
        case "muon":
            # Optax's muon has no mask for the decay of what it leaves to Adam, so the decay is a step of its own.
            rule = optax.chain(
                muon(
                    schedule,
                    eps=config.epsilon,
                    adam_b1=config.beta1,
                    adam_b2=config.beta2,
                    muon_weight_dimension_numbers=_muon_matrices,
                    consistent_rms=_MUON_ADAMW_RMS,
                ),
                optax.add_decayed_weights(lambda count: -config.weight_decay * schedule(count), decay_mask),
            )
    clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    return optax.chain(clip, rule)


def _muon_matrices(parameters: Any) -> Any:
    """Muon's axes for the kernels of the blocks; None (AdamW) for the embedding and all vectors."""

    def axes(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        if _name(path) != "kernel":
            return None
        # A scanned model stacks its layers in front; they are separate matrices.
        return MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, parameters)


def _name(path: Any) -> str:
    return str(path[-1].key)
