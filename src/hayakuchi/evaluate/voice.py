"""`evaluate` for voices: held-out sentences spoken by the model, beside their recordings.

Each is spoken from the symbols that stand in the data set, as its own speaker and with the noise that `speak` has by
default. Beside that stands what the model makes of the recording itself, through the posterior encoder and the decoder:
no text is involved there, so it shows the best that the decoder allows.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hayakuchi import progress
from hayakuchi.data.speech_shards import SpeechClips, open_speech_split
from hayakuchi.errors import UserError, require
from hayakuchi.evaluate.voice_measures import (
    Analysis,
    Measures,
    analyse,
    check_speakers,
    compare,
    load_world,
    speaker_features,
)
from hayakuchi.infer.speak_options import SpeakOptions
from hayakuchi.infer.synthesis import (
    FRAME_STEPS,
    LEAST_FRAMES,
    MAX_SYMBOLS,
    Utterance,
    bucket,
    finite,
    padded,
    synthesize,
)
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.models.vits.spectral import linear_spectrogram

_FULL_SCALE = 32_768
_KEPT = 4


@dataclass(frozen=True)
class Sound:
    """A clip's samples, float32 [S] in [-1, 1], and its frames."""

    audio: np.ndarray
    analysis: Analysis


@dataclass(frozen=True)
class Example:
    """A sentence three times, for eyes and ears.

    Attributes:
      name: of the clip.
      recorded: as it stands in the data set.
      spoken: from its symbols.
      reconstructed: from its recording.
    """

    name: str
    recorded: Sound
    spoken: Sound
    reconstructed: Sound


@dataclass(frozen=True)
class VoiceEvaluation:
    """What `evaluate_voice` finds.

    Attributes:
      run: the voice.
      report: plain values: "step", "data", "seconds"; "spoken" and "reconstructed", the means of `Measures` over all
        clips, with the standard deviation of MCD; "speakers", those of "spoken" for each; "speaker_check", the
        `SpeakerCheck` of "spoken" and of "recorded", or None; "clips", the measures of each; "too_long", the number of
        clips with more symbols than are spoken at a go.
      examples: the first few clips.
    """

    run: VoiceRun
    report: dict[str, Any]
    examples: list[Example]


def evaluate_voice(run: VoiceRun, data: Path, *, clips: int = 32) -> VoiceEvaluation:
    """Measures a voice on the held-out split of a data set.

    Args:
      run: the voice.
      data: data set directory; another than the voice was trained on if need be, but of its speakers.
      clips: how many are measured, if the split has more: two of each speaker first, then two more and so on. Which
        ones is always the same, and fewer clips are some of the more.

    Raises:
      UserError: a data set of another sample rate, with an unknown speaker, of devoiced vowels where the voice has none
        or the reverse, damaged or without held-out clips; `clips` below 1; a duration without end.
      MissingExtraError: `pyworld` is not installed.
      RuntimeError: the voice gives no finite numbers.
    """
    require(clips >= 1, "clips", clips, "must be 1 or more")
    load_world()
    split = _heldout(run, data)
    chosen, too_long = _chosen(split, clips)
    if not chosen:
        raise UserError(f"{data}: all its held-out clips have over {MAX_SYMBOLS} symbols; prepare it from sentences")
    examples: list[Example] = []
    entries: list[dict[str, Any]] = []
    features: dict[str, list[np.ndarray]] = {"recorded": [], "spoken": []}
    measures: dict[str, list[Measures]] = {"spoken": [], "reconstructed": []}
    with progress.bar("evaluating", len(chosen)) as bar:
        for index in chosen:
            example = _example(run, split, index)
            features["recorded"].append(speaker_features(example.recorded.analysis))
            features["spoken"].append(speaker_features(example.spoken.analysis))
            measures["spoken"].append(compare(example.recorded.analysis, example.spoken.analysis))
            measures["reconstructed"].append(compare(example.recorded.analysis, example.reconstructed.analysis))
            entries.append(
                {
                    "name": example.name,
                    "speaker": split.info.speakers[split.speakers[index]],
                    "text": split.text(index),
                    "seconds": round(len(example.recorded.audio) / run.sample_rate_hz, 3),
                    **{way: of_clips[-1]._asdict() for way, of_clips in measures.items()},
                }
            )
            examples.extend([example] if len(examples) < _KEPT else [])
            bar.advance()
    speakers = split.speakers[chosen]
    recorded = np.array(features["recorded"])
    checks = {way: check_speakers(recorded, np.array(of_clips), speakers) for way, of_clips in features.items()}
    report = {
        "step": run.step,
        "data": str(data),
        "seconds": round(sum(entry["seconds"] for entry in entries), 3),
        **{way: _means(of_clips) for way, of_clips in measures.items()},
        "speakers": {
            split.info.speakers[speaker]: _means(
                [of_clip for of_clip, whose in zip(measures["spoken"], speakers, strict=True) if whose == speaker]
            )
            for speaker in np.unique(speakers).tolist()
        },
        "speaker_check": {way: check._asdict() for way, check in checks.items() if check is not None} or None,
        "too_long": too_long,
        "clips": entries,
    }
    return VoiceEvaluation(run, report, examples)


def voice_summary(report: dict[str, Any]) -> str:
    """The report of `evaluate_voice` as a table of text, and a line on the speakers."""
    lines = [" MCD dB   +/-  ln F0 RMSE  voicing error  length  clips"]
    rows = {
        "spoken": report["spoken"],
        "from the recording itself": report["reconstructed"],
        **{f"spoken, {name}": means for name, means in report["speakers"].items()},
    }
    for name, means in rows.items():
        f0 = "-" if means["log_f0_rmse"] is None else f"{means['log_f0_rmse']:.3f}"
        lines.append(
            f"{means['mcd_db']:7.2f} {means['mcd_db_deviation']:5.2f} {f0:>11} {means['voicing_error']:14.1%} "
            f"{means['length_ratio']:7.2f} {means['clips']:6}  {name}"
        )
    if check := report["speaker_check"]:
        told = (
            f"{way} {of_way['right']} of {of_way['clips']} ({of_way['own']:.1f} dB from it, {of_way['other']:.1f} dB "
            "from the next)"
            for way, of_way in reversed(check.items())
        )
        lines.append(f"nearest to the recordings of its own speaker: {'; '.join(told)}")
    return "\n".join(lines)


def _heldout(run: VoiceRun, data: Path) -> SpeechClips:
    split = open_speech_split(data, "heldout")
    info, ours = split.info, run.info
    if not len(split):
        raise UserError(f"{data}: has no held-out clips; prepare it from more sentences, or with a --heldout above 0")
    if info.sample_rate_hz != run.sample_rate_hz:
        raise UserError(
            f"{data}: {info.sample_rate_hz} samples a second, the voice has {run.sample_rate_hz}; prepare it with "
            f"--sample-rate {run.sample_rate_hz}"
        )
    if info.front_end["devoiced"] != ours.front_end["devoiced"]:
        raise UserError(
            f"{data}: was prepared with --devoiced {info.front_end['devoiced']}, the voice's data with "
            f"{ours.front_end['devoiced']}; prepare it with the same"
        )
    for speaker in np.unique(split.speakers).tolist():
        if (name := info.speakers[speaker]) not in ours.speakers:
            raise UserError(f"{data}: the voice does not know the speaker {name!r}; evaluate on clips of its speakers")
    return split


def _chosen(split: SpeechClips, count: int) -> tuple[list[int], int]:
    """Indices of the clips to measure, and how many had to be left out."""
    order = np.random.default_rng(0).permutation(len(split))
    order = order[split.symbols[order] <= MAX_SYMBOLS]
    speakers = split.speakers[order]
    # The how manieth of its speaker each one is.
    ranks = np.array([np.count_nonzero(speakers[:place] == speaker) for place, speaker in enumerate(speakers)], int)
    turn = np.lexsort((ranks, speakers, ranks // 2))
    return order[turn][:count].tolist(), len(split) - len(order)


def _example(run: VoiceRun, split: SpeechClips, index: int) -> Example:
    speaker = run.info.speakers.index(split.info.speakers[split.speakers[index]])
    # Of another version of the inventory, perhaps.
    symbols = [split.info.inventory.symbols[number] for number in split.ids(index).tolist()]
    utterance = Utterance(run.info.inventory.encode(symbols), index)
    recorded = split.audio(index).astype(np.float32) / _FULL_SCALE
    [spoken] = synthesize(run, [utterance], speaker, SpeakOptions())
    sounds = (recorded, spoken, reconstruct(run, recorded, speaker, seed=index))
    return Example(split.name(index), *(Sound(audio, analyse(audio, run.sample_rate_hz)) for audio in sounds))


def reconstruct(run: VoiceRun, audio: np.ndarray, speaker_id: int, *, seed: int = 0) -> np.ndarray:
    """What the model makes of a recording by way of its latent, float32, of whole frames and as long but for the last.

    Args:
      run: the voice.
      audio: float32 [S] in [-1, 1].
      speaker_id: whose recording it is.
      seed: the same seed gives the same result.
    """
    config = run.recipe.model
    hop = config.audio.hop_samples
    frames = max(len(audio) // hop, 1)
    room = bucket(frames, LEAST_FRAMES, steps=FRAME_STEPS)
    noise = np.random.default_rng(seed).standard_normal((frames, config.latent_channels), np.float32)
    speaker = np.array([speaker_id], np.int32) if config.speakers else None
    graph, parameters = nnx.split(run.model, nnx.Param)
    made = _reconstruct(
        graph, parameters, padded(audio, room * hop)[None], np.array([frames]), padded(noise, room)[None], speaker
    )
    return finite(made)[0, : frames * hop]


@partial(jax.jit, static_argnames="graph")
def _reconstruct(graph: Any, parameters: Any, audio: Any, frames: Any, noise: Any, speaker: Any) -> Any:
    model = nnx.merge(graph, parameters)
    spectrogram = linear_spectrogram(audio, model.config.audio)
    return model.convert(spectrogram, frames, noise, speaker, speaker).audio


def _means(clips: list[Measures]) -> dict[str, Any]:
    distortions = [clip.mcd_db for clip in clips]
    f0_errors = [clip.log_f0_rmse for clip in clips if clip.log_f0_rmse is not None]
    return {
        "clips": len(clips),
        "mcd_db": float(np.mean(distortions)),
        "mcd_db_deviation": float(np.std(distortions)),
        "log_f0_rmse": float(np.mean(f0_errors)) if f0_errors else None,
        "voicing_error": float(np.mean([clip.voicing_error for clip in clips])),
        "length_ratio": float(np.mean([clip.length_ratio for clip in clips])),
    }
