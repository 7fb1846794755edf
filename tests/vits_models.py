"""A small VITS that several tests share."""

import jax
import jax.numpy as jnp
from flax import nnx

from hayakuchi.config.vits import AudioConfig, VitsConfig
from hayakuchi.models.vits.model import Vits

SMALL_AUDIO = AudioConfig(sample_rate_hz=8_000, fft_samples=64, window_samples=64, hop_samples=16, mel_bins=8)


def small_config(**changes):
    sizes = {
        "audio": SMALL_AUDIO,
        "vocabulary_size": 20,
        "speakers": 2,
        "speaker_channels": 4,
        "latent_channels": 8,
        "hidden_channels": 8,
        "filter_channels": 16,
        "text_layers": 2,
        "posterior_layers": 3,
        "flow_layers": 2,
        "duration_channels": 8,
        "resblock_kernels": (3, 5),
        "resblock_dilations": ((1,), (3,)),
        "upsample_rates": (4, 4),
        "upsample_kernels": (8, 8),
        "upsample_channels": 16,
        "segment_samples": 64,
    }
    return VitsConfig(**{**sizes, **changes})


def shaken(model, scale=0.1):
    """The model with noise on every parameter, so that flows which start as the identity are none."""
    graph, state = nnx.split(model, nnx.Param)
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(99), len(leaves))
    noisy = [leaf + scale * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return nnx.merge(graph, jax.tree.unflatten(tree, noisy))


def small_vits(dtype=jnp.float32, **changes):
    # Compiled as a whole: each of the hundreds of small operations would else be compiled alone.
    return nnx.jit(lambda key: shaken(Vits(small_config(**changes), key, dtype)))(jax.random.key(0))


def moved_start(task):
    """A task's first state with all parameters moved: what starts as 0 keeps the gradient from what is before it."""

    @jax.jit
    def make(key):
        state = task.init(key)
        return state._replace(parameters=jax.tree.map(lambda leaf: leaf + 0.01, state.parameters))

    return make(jax.random.key(0))
