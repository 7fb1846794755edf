"""The compiled half of `speak`: symbols of sentences to waveforms, in a few fixed shapes.

What is compiled depends on shapes only: choosing durations on the number of symbols (a power of two from 64 to 1,024),
decoding on the number of frames (four sizes a doubling from 128 on, which waste 11% of the work on padding where powers
of two alone would waste 44%), both on the number of sentences in a batch. Another text, seed, speaker, speed or noise
compiles nothing. Since every symbol gets a frame at least, a plan is brought to the length of its frames, and decoding
knows one length only.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from hayakuchi.errors import UserError
from hayakuchi.infer.speak_options import SpeakOptions
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.models.vits.model import Plan, Speech
from hayakuchi.speech.symbols import with_blanks

# With blanks, the largest bucket of symbols but one. No sentence of a corpus comes near it; 100 Ws (ダブリュー) do.
MAX_SYMBOLS = 511
MAX_FRAMES = 16_384
_LEAST_SYMBOLS = 64
LEAST_FRAMES, FRAME_STEPS = 128, 4


class Utterance(NamedTuple):
    """Symbol ids of a sentence, without blanks, and its number in the text, which with the seed decides its noise."""

    ids: list[int]
    number: int


def synthesize(
    run: VoiceRun, utterances: Sequence[Utterance], speaker_id: int, options: SpeakOptions
) -> list[np.ndarray]:
    """Waveforms float32 [S] of utterances, computed as one batch; each is what it would be alone, but for rounding.

    Args:
      run: the voice.
      utterances: one or more, each of 1 to MAX_SYMBOLS ids.
      speaker_id: index of the speaker.
      options: see `SpeakOptions`.

    Raises:
      UserError: an utterance would take more than MAX_FRAMES frames.
      RuntimeError: the voice gives no finite numbers.
    """
    model = run.recipe.model
    texts = [np.array(with_blanks(utterance.ids), np.int32) for utterance in utterances]
    # Each row draws by itself, first for its symbols and then for its frames: no bucket and no neighbour has a say.
    draws = [np.random.default_rng((options.seed, utterance.number)) for utterance in utterances]
    rows = bucket(len(texts), 1)
    speaker = np.full(rows, speaker_id, np.int32) if model.speakers else None
    graph, parameters = nnx.split(run.model, nnx.Param)

    room = bucket(max(map(len, texts)), _LEAST_SYMBOLS)
    lengths = padded(np.array([len(text) for text in texts], np.int32), rows)
    noise = _stacked(_noise(draws, [len(text) for text in texts], 2, options.duration_noise), rows, room)
    text, scale = _stacked(texts, rows, room), np.float32(1 / options.speed)
    # On the host, where its arrays change their length without a program for it.
    plan = jax.device_get(_plan(graph, parameters, text, lengths, noise, speaker, scale))
    frames = _frames(run, plan.durations[: len(texts)])

    # In a voice that is hardly trained a duration may vanish: then there are more symbols than frames.
    room = bucket(max(*frames, *lengths.tolist()), LEAST_FRAMES, steps=FRAME_STEPS)
    noise = _stacked(_noise(draws, frames, model.latent_channels, options.noise), rows, room)
    plan = jax.tree.map(lambda part: _stacked(part, rows, room), plan)
    audio = finite(_decode(graph, parameters, plan, noise, speaker).audio)
    hop = model.audio.hop_samples
    return [row[: count * hop] for row, count in zip(audio, frames, strict=False)]


def bucket(size: int, least: int, *, steps: int = 1) -> int:
    """The smallest size of a compiled program that holds `size`: `least`, or on each doubling of it one of `steps`."""
    if size <= least:
        return least
    step = (least << ((size - 1) // least).bit_length() - 1) // steps
    return -(-size // step) * step


def padded(x: np.ndarray, size: int) -> np.ndarray:
    """The first `size` rows of `x`, zeros after its end."""
    room = np.zeros((size, *x.shape[1:]), x.dtype)
    room[: min(len(x), size)] = x[:size]
    return room


def finite(values: Any) -> np.ndarray:
    """What the model made, on the host; RuntimeError where it is no sound."""
    found = np.asarray(values)
    if not np.isfinite(found).all():
        raise RuntimeError("the voice gives no finite numbers: its training has diverged; use an earlier checkpoint")
    return found


def _frames(run: VoiceRun, durations: np.ndarray) -> list[int]:
    """Frames of each row of durations [B, L]."""
    totals = finite(durations).sum(axis=1, dtype=np.float64)
    if (longest := totals.max()) > MAX_FRAMES:
        frame_seconds = run.recipe.model.audio.hop_samples / run.sample_rate_hz
        raise UserError(
            f"a sentence would take {longest * frame_seconds:.0f} s, {MAX_FRAMES * frame_seconds:.0f} s is the most: "
            "raise --speed, lower --duration-noise, or train the voice further"
        )
    return [max(int(total), 1) for total in totals]


def _noise(
    draws: Sequence[np.random.Generator], lengths: Sequence[int], channels: int, scale: float
) -> list[np.ndarray]:
    """Normal noise [its length, channels] of each row."""
    return [
        scale * draw.standard_normal((length, channels), np.float32)
        for draw, length in zip(draws, lengths, strict=True)
    ]


def _stacked(rows: Sequence[np.ndarray] | np.ndarray, count: int, size: int) -> np.ndarray:
    """Rows of any length as one array [count, size, ...]; zeros in what they leave."""
    return padded(np.stack([padded(row, size) for row in rows]), count)


@partial(jax.jit, static_argnames="graph")
def _plan(graph: Any, parameters: Any, text: Any, lengths: Any, noise: Any, speaker: Any, length_scale: Any) -> Plan:
    plan: Plan = nnx.merge(graph, parameters).plan(text, lengths, noise, speaker, length_scale)
    return plan


@partial(jax.jit, static_argnames="graph")
def _decode(graph: Any, parameters: Any, plan: Plan, noise: Any, speaker: Any) -> Speech:
    speech: Speech = nnx.merge(graph, parameters).speak(plan, noise, speaker)
    return speech
