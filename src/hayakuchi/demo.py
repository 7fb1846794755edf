"""`demo`: the whole way from text to a model that writes, and from speech to a voice that reads it aloud."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.corpora.embedded_voice import EmbeddedVoiceReader
from hayakuchi.data.prepare_speech import SpeechOptions, prepare_speech
from hayakuchi.data.prepare_text import PrepareOptions, prepare_text
from hayakuchi.errors import UserError
from hayakuchi.evaluate.text import evaluate_text
from hayakuchi.infer.generate import generate
from hayakuchi.infer.run import load_run
from hayakuchi.infer.sampling import SamplingConfig
from hayakuchi.infer.to_wav import speak_to_wav
from hayakuchi.infer.voice import load_voice
from hayakuchi.recipes import CTRL_NANO, VITS_NANO
from hayakuchi.speech.sentences import split_sentences
from hayakuchi.train.train_ctrl import train_ctrl
from hayakuchi.train.train_vits import train_vits

CODES = ("story", "howto", "letter")
SPOKEN_CODE = "story"
HELD_OUT = 0.05
PROBE_STEPS = 12
_MARKER = "hayakuchi-demo.txt"
_MADE = ("text", "voice", "text-data", "voice-data", "probe")
_WAV = "demo.wav"
_SAMPLE_TOKENS = 160
_SPOKEN_CHARACTERS = 120
# Short sentences of one speaker, so that there is one shape to compile.
_VOICE = EmbeddedVoiceReader(speakers=1, sentences=150)
_LONGEST_CLIP_SECONDS = 6.0
_TEXT_SHARE = 0.25
_RESERVED_SECONDS = 40.0  # evaluating and writing; each of two
Trainer = Callable[[int, Path, Path], dict[str, Any]]


def run_demo(out: Path, minutes: float) -> dict[str, Any]:
    """Trains ctrl-nano and vits-nano on the embedded corpora for the time there is; one writes, the other reads it.

    Args:
      out: folder; a former demo in it is replaced.
      minutes: time for everything, 2 to 1,440.

    Returns:
      Sizes, losses, times, the texts and the path of the sound, as plain values.

    Raises:
      UserError: too little time, or `out` holds something else or cannot be written.
      KeyboardInterrupt: a signal ended a training.
    """
    started = time.monotonic()
    if not 2 <= minutes <= 24 * 60:
        raise UserError(f"--minutes {minutes:g}: must be 2 to {24 * 60}")
    _clear(out)

    def left() -> float:
        return 60 * minutes - (time.monotonic() - started) - _RESERVED_SECONDS

    _step(1, "preparing the embedded corpus: documents -> tokenizer -> token shards")
    text_report = prepare_text(
        out / "text-data",
        [EmbeddedReader()],
        PrepareOptions(vocabulary_size=CTRL_NANO.model.vocabulary_size, heldout_fraction=HELD_OUT),
    )
    _step(2, "preparing the embedded voice: sentences of that corpus, read aloud -> symbols and sound")
    voice_report = prepare_speech(
        out / "voice-data",
        [_VOICE],
        SpeechOptions(sample_rate_hz=VITS_NANO.model.audio.sample_rate_hz, max_seconds=_LONGEST_CLIP_SECONDS),
    )
    text = _trained(3, CTRL_NANO.name, _train_text, out, "text", _TEXT_SHARE * left(), CTRL_NANO.train.steps)
    _step(4, "measuring it on the documents it has not seen, and writing")
    run = load_run(out / "text")
    measured = evaluate_text(run, out / "text-data")
    print(f"  {measured['bits_per_character']:.3f} bits per character, perplexity {measured['perplexity']:.1f}")
    samples: dict[str, str] = {}
    for code in CODES:
        [sample] = generate(run, "", code, max_tokens=_SAMPLE_TOKENS, sampling=SamplingConfig(temperature=0.7), seed=1)
        samples[code] = sample.text
        print(f"\n[{code}]\n{sample.text.strip()}")
    print()
    voice = _trained(5, VITS_NANO.name, _train_voice, out, "voice", left(), VITS_NANO.train.steps)
    _step(6, f"reading the {SPOKEN_CODE} aloud")
    spoken = speak_to_wav(load_voice(out / "voice"), _beginning(samples[SPOKEN_CODE]), out / _WAV)
    print(f"  {out / _WAV}: {spoken['seconds']:.1f} s of sound")
    print(f"\nMore: hayakuchi generate {out / 'text'} --code diary")
    print(f"      hayakuchi speak {out / 'voice'} こんにちは。 --out {out / 'hello.wav'}")
    return {
        "seconds": round(time.monotonic() - started, 1),
        "prepare": text_report,
        "prepare_speech": voice_report,
        "train": text,
        "train_voice": voice,
        "evaluate": measured,
        "samples": samples,
        "spoken": spoken,
        "wav": str(out / _WAV),
    }


def _clear(out: Path) -> None:
    """Makes the folder; removes what a former demo made, and nothing else."""
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / _MARKER).exists():
            raise UserError(f"--out {out}: not empty and not of a former demo; choose another folder")
        for made in _MADE:
            shutil.rmtree(out / made, ignore_errors=True)
        (out / _WAV).unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        told = (
            f"Made by `hayakuchi demo`, which replaces {', '.join(_MADE[:-1])} and {_WAV} when it is run again.\n"
            "The voice is trained on sentences read by the HTS voice mei, (c) 2009-2013 Nagoya Institute of "
            "Technology, under CC BY 3.0.\n"
        )
        (out / _MARKER).write_text(told)
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror})") from error


def _trained(
    number: int, recipe: str, train: Trainer, out: Path, name: str, seconds: float, most: int
) -> dict[str, Any]:
    """Trains into `out`/`name` for as many steps as fit into the time, and tells how it went."""
    data = out / f"{name}-data"
    steps = _steps_in(train, out / "probe", data, seconds, most)
    _step(number, f"training {recipe} for {steps} steps")
    trained = train(steps, out / name, data)
    unit = next(unit for unit in ("tokens", "frames") if unit in trained)
    print(
        f"  {trained['parameters']:,} parameters, {trained[f'{unit}_per_second']:,.0f} {unit}/s, "
        f"loss {trained['loss']:.3f}, held out {trained['held_out_loss']:.3f}"
    )
    return trained


def _steps_in(train: Trainer, probe: Path, data: Path, seconds: float, most: int) -> int:
    """How many steps fit into the time, by a short run; `most` at most."""
    tried = train(PROBE_STEPS, probe, data)
    shutil.rmtree(probe)
    seconds -= 2 * tried["compile_seconds"] + tried["seconds"]
    step_seconds = tried["seconds"] / PROBE_STEPS
    return max(PROBE_STEPS, min(most, int(seconds / step_seconds)))


def _train_text(steps: int, run: Path, data: Path) -> dict[str, Any]:
    settings = dataclasses.replace(CTRL_NANO.train, steps=steps, batch=_batch(CTRL_NANO.train.batch))
    return _finished(train_ctrl(dataclasses.replace(CTRL_NANO, train=settings), run, data))


def _train_voice(steps: int, run: Path, data: Path) -> dict[str, Any]:
    settings = dataclasses.replace(VITS_NANO.train, steps=steps, batch=_batch(VITS_NANO.train.batch))
    one_shape = dataclasses.replace(VITS_NANO.data, buckets=1)
    return _finished(train_vits(dataclasses.replace(VITS_NANO, train=settings, data=one_shape), run, data))


def _batch(least: int) -> int:
    devices = jax.device_count()
    return -(-least // devices) * devices  # on 3 GPUs too


def _finished(trained: dict[str, Any]) -> dict[str, Any]:
    if trained["stopped_by"]:  # training ends in order there; the demo must end too
        raise KeyboardInterrupt
    return trained


def _beginning(text: str) -> str:
    """The first sentences of a text, about as much as one reads in twenty seconds."""
    chosen: list[str] = []
    for sentence in split_sentences(text):
        if not any(map(str.isalpha, sentence)):  # a model trained for minutes may write signs alone
            continue
        if chosen and len("".join(chosen)) + len(sentence) > _SPOKEN_CHARACTERS:
            break
        chosen.append(sentence)
    return "\n".join(chosen) or "こんにちは。"


def _step(number: int, text: str) -> None:
    print(f"[{number}/6] {text}", flush=True)
