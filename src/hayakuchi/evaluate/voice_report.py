"""The report of a voice as files: the numbers, a picture, and sounds to compare by ear."""

from pathlib import Path
from typing import Any

import numpy as np

from hayakuchi.config.vits import AudioConfig
from hayakuchi.evaluate import charts
from hayakuchi.evaluate.report_folder import report_folder
from hayakuchi.evaluate.voice import Example, Sound, VoiceEvaluation
from hayakuchi.evaluate.voice_measures import FRAME_SECONDS
from hayakuchi.models.vits.spectral import mel_filters
from hayakuchi.speech.audio import write_wav

# Decibels below the brightest point of a picture that are drawn.
_RANGE_DB = 80


def write_voice_report(found: VoiceEvaluation, out: Path) -> None:
    """Writes `report.json`, the picture `voice.png` and, of each example, `NN_recorded.wav` and the like.

    Raises:
      UserError: a file cannot be written.
    """
    audio = found.run.recipe.model.audio
    with report_folder(out, found.report):
        for number, example in enumerate(found.examples):
            sounds = {
                "recorded": example.recorded,
                "spoken": example.spoken,
                "reconstructed": example.reconstructed,
            }
            for name, sound in sounds.items():
                write_wav(out / f"{number:02}_{name}.wav", sound.audio, audio.sample_rate_hz)
        _draw(out / "voice.png", found.examples, found.report["clips"], audio)


def _draw(path: Path, examples: list[Example], clips: list[dict[str, Any]], audio: AudioConfig) -> None:
    """One row an example, recorded and spoken, with F0; below, how the distortions of all clips are spread."""
    # Of an optional extra.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with charts.drawing():
        figure = Figure(figsize=(14, 2.6 * len(examples) + 3), layout="constrained")
        grid = figure.add_gridspec(len(examples) + 1, 2)
        for row, (example, clip) in enumerate(zip(examples, clips, strict=False)):
            left, right = (figure.add_subplot(grid[row, column]) for column in range(2))
            _draw_sound(left, example.recorded, audio)
            _draw_sound(right, example.spoken, audio)
            left.set_title(f"{example.name}, recorded", fontsize=9)
            right.set_title(f"spoken: MCD {clip['spoken']['mcd_db']:.2f} dB", fontsize=9)
            # On one scale of time.
            right.set_xlim(0, max(left.get_xlim()[1], right.get_xlim()[1]))
            left.set_xlim(right.get_xlim())
        axes = figure.add_subplot(grid[-1, :])
        ways = {"spoken": "spoken from text", "reconstructed": "from the recording itself"}
        distortions = [[clip[way]["mcd_db"] for clip in clips] for way in ways]
        axes.hist(distortions, bins=max(10, len(clips) // 3), label=list(ways.values()))
        axes.set_xlabel("mel-cepstral distortion, dB")
        axes.set_ylabel("clips")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        figure.savefig(path, dpi=100)


def _draw_sound(axes: Any, sound: Sound, audio: AudioConfig) -> None:
    """The log-mel spectrogram of a sound, and its F0 on an axis of its own at the right."""
    picture = _mel_db(sound.audio, audio)
    seconds = len(sound.audio) / audio.sample_rate_hz
    axes.imshow(
        picture.T,
        aspect="auto",
        origin="lower",
        extent=(0, seconds, 0, audio.mel_bins),
        vmin=picture.max() - _RANGE_DB,
    )
    axes.set_ylabel("mel band")
    axes.set_xlabel("s")
    f0_hz = sound.analysis.f0_hz
    pitch = axes.twinx()
    # A gap where nothing is voiced.
    pitch.plot(np.arange(len(f0_hz)) * FRAME_SECONDS, np.where(f0_hz > 0, f0_hz, np.nan), color="white", linewidth=1.2)
    pitch.set_ylim(50, 800)
    pitch.set_yscale("log")
    pitch.set_yticks([50, 100, 200, 400, 800], ["50", "100", "200", "400", "800"], minor=False)
    pitch.set_yticks([], minor=True)
    pitch.set_ylabel("F0, Hz")


def _mel_db(samples: np.ndarray, audio: AudioConfig) -> np.ndarray:
    """Mel bands in dB [T, M]: by NumPy, since every length would be another program to compile."""
    size = audio.fft_samples
    padding = (size - audio.hop_samples) // 2
    whole = np.pad(samples, (padding, max(size - audio.hop_samples - padding, size - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(whole, size)[:: audio.hop_samples]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(size + 1)[:-1]))
    decibels: np.ndarray = 20 * np.log10(np.maximum(spectrum @ mel_filters(audio), 1e-5))
    return decibels
