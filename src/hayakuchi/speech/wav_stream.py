"""A WAV file that grows while it is made, so that it can be heard before it is done."""

import itertools
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hayakuchi.errors import UserError
from hayakuchi.speech.audio import to_int16

STDOUT = Path("-")
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_PCM, _CHANNELS, _SAMPLE_BYTES = 1, 1, 2
# A length that is not known yet: players go on to the end of the file.
_OPEN_BYTES = 0xFFFFFFFF
_BEFORE_DATA = _HEADER.size - 8  # what the length of the whole counts beside the samples


def stream_wav(out: Path, pieces: Iterable[np.ndarray], sample_rate_hz: int) -> int:
    """Writes 16-bit mono WAV piece by piece; returns the number of samples.

    The file stands under its own name from the first piece on, not under a temporary one, for whoever listens while it
    grows; before that piece nothing is touched. Its header gets the lengths at the end, also when the pieces end with
    an error: what was said until then is a whole file.

    Args:
      out: the file; - for standard output, whose header leaves the lengths open.
      pieces: float [S] in [-1, 1]; what goes beyond is cut.
      sample_rate_hz: of the pieces.

    Raises:
      UserError: the file cannot be written.
    """
    stream = iter(pieces)
    first = next(stream, np.zeros(0, np.float32))
    samples = 0
    try:
        with _opened(out) as file:
            file.write(_header(None, sample_rate_hz))
            try:
                for piece in itertools.chain((first,), stream):
                    file.write(to_int16(piece).astype("<i2").tobytes())
                    file.flush()
                    samples += len(piece)
            finally:
                if out != STDOUT and file.seekable():
                    file.seek(0)
                    file.write(_header(samples, sample_rate_hz))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{out}: cannot write it ({error.strerror})") from error
    return samples


@contextmanager
def _opened(out: Path) -> Iterator[BinaryIO]:
    if out == STDOUT:
        yield sys.stdout.buffer
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as file:
        yield file


def _header(samples: int | None, sample_rate_hz: int) -> bytes:
    # Over 4 GiB the lengths stay open.
    size = _OPEN_BYTES if samples is None else min(samples * _SAMPLE_BYTES, _OPEN_BYTES)
    header: bytes = _HEADER.pack(
        b"RIFF", min(size + _BEFORE_DATA, _OPEN_BYTES), b"WAVE",
        b"fmt ", 16, _PCM, _CHANNELS, sample_rate_hz, sample_rate_hz * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES,
        b"data", size,
    )  # fmt: skip
    return header
