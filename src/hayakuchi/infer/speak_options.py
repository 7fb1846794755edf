"""What `speak` and `convert` are asked for, checked before JAX is loaded."""

from dataclasses import dataclass
from pathlib import Path

from hayakuchi.errors import UserError, require
from hayakuchi.speech.wav_stream import STDOUT


@dataclass(frozen=True)
class SpeakOptions:
    """How to speak.

    Attributes:
      speed: 2 is twice as fast, 0.5 half as fast.
      noise: scale of the noise of the voice.
      duration_noise: scale of the noise of the durations. With both at 0 the speech has no randomness.
      seed: the same seed gives the same speech.
      silence: seconds between sentences.
    """

    speed: float = 1.0
    noise: float = 0.667
    duration_noise: float = 0.8
    seed: int = 0
    silence: float = 0.25

    def __post_init__(self) -> None:
        require(0.1 <= self.speed <= 10, "speed", self.speed, "must be 0.1 to 10; 1 is as trained")
        for name in ("noise", "duration_noise"):
            require(0 <= getattr(self, name) <= 10, name, getattr(self, name), "must be 0 to 10")
        require(0 <= self.seed < 2**32, "seed", self.seed, "must be 0 to 2**32 - 1")
        require(0 <= self.silence <= 60, "silence", self.silence, "must be 0 to 60 seconds")


def check_out(out: Path) -> None:
    """Raises UserError unless `out` can be a WAV file: to be called before anything slow is done."""
    if out != STDOUT and out.suffix.lower() != ".wav":
        raise UserError(f"--out {out}: must end with .wav, the one format that is written; - is standard output")
    if out.is_dir():
        raise UserError(f"--out {out}: is a directory; name a file")
