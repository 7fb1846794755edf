"""Pictures and sounds of a run: the file's content, its suffix, and the same for TensorBoard."""

import importlib.util
import io
from typing import Any

import numpy as np
from tensorboardX.proto.summary_pb2 import Summary

from hayakuchi.errors import MissingExtraError
from hayakuchi.speech.audio import wav_bytes


def check_installed() -> None:
    """Raises MissingExtraError where what pictures and sounds need is not installed: at a run's start, not later."""
    for library in ("matplotlib", "soundfile"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, "speech", "showing a voice in training")


def picture(name: str, values: np.ndarray) -> tuple[bytes, str, Summary]:
    """A PNG of [H, W] numbers, from the least (dark) to the largest (bright); row 0 is at the bottom.

    Rows and columns at the end that repeat the one before them are padding, and left out.
    """
    from matplotlib import image

    values = values[:, : _used(values.T)]
    values = values[: _used(values)]
    file = io.BytesIO()
    image.imsave(file, values.astype(np.float32), cmap="viridis", origin="lower", format="png")
    content = file.getvalue()
    height, width = values.shape
    shown = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
    return content, ".png", Summary(value=[Summary.Value(tag=name, image=shown)])


def sound(name: str, samples: np.ndarray, sample_rate_hz: int) -> tuple[bytes, str, Summary]:
    """A 16-bit WAV of samples in [-1, 1]; zeros at the end are padding, and left out."""
    samples = np.trim_zeros(samples, "b")
    content = wav_bytes(samples, sample_rate_hz)
    heard: Any = Summary.Audio(
        sample_rate=sample_rate_hz,
        num_channels=1,
        length_frames=len(samples),
        encoded_audio_string=content,
        content_type="audio/wav",
    )
    return content, ".wav", Summary(value=[Summary.Value(tag=name, audio=heard)])


def _used(values: np.ndarray) -> int:
    """Number of rows [N, ...] up to the first of those equal ones that stand at the end."""
    differing = np.flatnonzero((values != values[-1]).any(axis=1))
    return int(differing[-1]) + 2 if len(differing) else 1
