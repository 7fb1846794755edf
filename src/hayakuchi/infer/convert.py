"""Voice conversion between the speakers of one model (arXiv 2106.06103, section 2.5).

A recording of any length is computed in windows of one shape. They overlap by as many frames as a sample of the result
can depend on, so that the windows together are what the whole would be.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from hayakuchi.config.vits import VitsConfig
from hayakuchi.errors import UserError, require
from hayakuchi.infer.synthesis import FRAME_STEPS, LEAST_FRAMES, bucket, finite, padded
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.models.vits.spectral import linear_spectrogram

WINDOW_FRAMES = 2_048
_NOISE_FRAMES = 1_024  # drawn at once


def convert(
    run: VoiceRun, audio: np.ndarray, source: str, target: str, *, seed: int = 0, window: int = WINDOW_FRAMES
) -> Iterator[np.ndarray]:
    """What `source` says in `audio`, in the voice of `target`: pieces float32 in [-1, 1], as long as `audio` together.

    Args:
      run: a voice of several speakers.
      audio: float32 [S] in [-1, 1], at the voice's sample rate.
      source: the speaker heard, by name or index.
      target: the speaker wanted.
      seed: the same seed gives the same result.
      window: frames computed at once, if the audio has more. The result does not depend on it, but for rounding.

    Raises:
      UserError: at the call: an unknown speaker, a voice of one speaker, or no audio.
    """
    require(0 <= seed < 2**32, "seed", seed, "must be 0 to 2**32 - 1")
    if not run.recipe.model.speakers:
        raise UserError(f"this voice has one speaker ({run.info.speakers[0]}): there is no other to convert to")
    speakers = tuple(map(run.speaker_id, (source, target)))
    if not len(audio):
        raise UserError("the recording is empty")
    return _windows(run, audio, speakers, seed, max(window, 4 * reach_frames(run.recipe.model)))


def reach_frames(config: VitsConfig) -> int:
    """Most frames to either side that a frame of the result depends on, the spectrogram's window not counted."""
    layers = config.posterior_layers + 2 * config.flow_couplings * config.flow_layers
    reach, rate = 3.0, 1.0
    for factor, kernel in zip(config.upsample_rates, config.upsample_kernels, strict=True):
        reach += kernel / factor / rate
        rate *= factor
        plain = 1 if config.resblock == "1" else 0
        blocks = zip(config.resblock_kernels, config.resblock_dilations, strict=True)
        reach += max(width // 2 * sum(dilation + plain for dilation in dilations) for width, dilations in blocks) / rate
    # The last layer, and of the iSTFT decoders the transform and the filters that join the streams.
    ending = 3 / rate + (0 if config.decoder == "hifigan" else 4)
    return layers * (config.wavenet_kernel // 2) + math.ceil(reach + ending)


def _windows(
    run: VoiceRun, audio: np.ndarray, speakers: tuple[int, ...], seed: int, window: int
) -> Iterator[np.ndarray]:
    config = run.recipe.model
    hop = config.audio.hop_samples
    # Frames of samples beside a window: as many as the edge of the spectrogram has, mirrored at the recording's ends.
    side = -(-config.audio.fft_samples // hop)
    frames = -(-len(audio) // hop)
    whole = np.pad(padded(audio.astype(np.float32), frames * hop), side * hop, mode="reflect")
    reach = reach_frames(config)
    if frames <= window:
        window, reach = bucket(frames, LEAST_FRAMES, steps=FRAME_STEPS), 0
    core = window - 2 * reach
    source, target = (np.array([speaker], np.int32) for speaker in speakers)
    graph, parameters = nnx.split(run.model, nnx.Param)
    for start in range(0, frames, core):
        first, last = max(start - reach, 0), min(start + core + reach, frames)
        count = np.array([last - first], np.int32)
        samples = padded(whole[first * hop : (last + 2 * side) * hop], (window + 2 * side) * hop)
        noise = padded(_noise(seed, first, last, config.latent_channels), window)
        made = _convert(graph, parameters, samples[None], count, noise[None], source, target, side=side)
        piece = finite(made)[0, (start - first) * hop : (min(start + core, frames) - first) * hop]
        yield piece[: len(audio) - start * hop]


def _noise(seed: int, first: int, last: int, channels: int) -> np.ndarray:
    """Standard normal [last - first, C] for the frames of that number, whatever window asks."""
    blocks = range(first // _NOISE_FRAMES, -(-last // _NOISE_FRAMES))
    drawn = [
        np.random.default_rng((seed, block)).standard_normal((_NOISE_FRAMES, channels), np.float32) for block in blocks
    ]
    skipped = blocks.start * _NOISE_FRAMES
    return np.concatenate(drawn)[first - skipped : last - skipped]


@partial(jax.jit, static_argnames=("graph", "side"))
def _convert(
    graph: Any, parameters: Any, audio: Any, frames: Any, noise: Any, source: Any, target: Any, *, side: int
) -> Any:
    model = nnx.merge(graph, parameters)
    spectrogram = linear_spectrogram(audio, model.config.audio)[:, side:-side]
    return model.convert(spectrogram, frames, noise, source, target).audio
