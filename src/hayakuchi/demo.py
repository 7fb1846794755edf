"""`demo`: the whole way from text to a model that writes, on the corpus that comes with the package."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import jax

from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.data.prepare_text import PrepareOptions, prepare_text
from hayakuchi.errors import UserError
from hayakuchi.evaluate.text import evaluate_text
from hayakuchi.infer.generate import generate
from hayakuchi.infer.run import load_run
from hayakuchi.infer.sampling import SamplingConfig
from hayakuchi.recipes import CTRL_NANO
from hayakuchi.train.train_ctrl import train_ctrl

CODES = ("story", "howto", "letter")
HELD_OUT = 0.05
PROBE_STEPS = 12
_MARKER = "hayakuchi-demo.txt"
_SAMPLE_TOKENS = 160
_RESERVED_SECONDS = 60.0  # compiling a second time, evaluating and writing


def run_demo(out: Path, minutes: float) -> dict[str, Any]:
    """Prepares the embedded corpus, trains ctrl-nano for the time there is, and prints text for three codes.

    Args:
      out: folder; a former demo in it is replaced.
      minutes: time for everything, 2 to 1,440.

    Returns:
      Sizes, losses, times and the texts, as plain values.

    Raises:
      UserError: too little time, or `out` holds something else or cannot be written.
      KeyboardInterrupt: a signal ended the training.
    """
    started = time.monotonic()
    if not 2 <= minutes <= 24 * 60:
        raise UserError(f"--minutes {minutes:g}: must be 2 to {24 * 60}")
    _clear(out)
    _step(1, "preparing the embedded corpus: documents -> tokenizer -> token shards")
    report = prepare_text(
        out / "data",
        [EmbeddedReader()],
        PrepareOptions(vocabulary_size=CTRL_NANO.model.vocabulary_size, heldout_fraction=HELD_OUT),
    )
    steps = _steps_in(out, 60 * minutes - (time.monotonic() - started) - _RESERVED_SECONDS)
    _step(2, f"training {CTRL_NANO.name} for {steps} steps")
    trained = _train(steps, out / "run", out / "data")
    print(
        f"  {trained['parameters']:,} parameters, {trained['tokens_per_second']:,.0f} tokens/s, "
        f"loss {trained['loss']:.3f}, on held-out documents {trained['held_out_loss']:.3f}"
    )
    _step(3, "measuring it on the documents it has not seen")
    run = load_run(out / "run")
    measured = evaluate_text(run, out / "data")
    print(f"  {measured['bits_per_character']:.3f} bits per character, perplexity {measured['perplexity']:.1f}")
    _step(4, "writing")
    samples: dict[str, str] = {}
    for code in CODES:
        [sample] = generate(run, "", code, max_tokens=_SAMPLE_TOKENS, sampling=SamplingConfig(temperature=0.7), seed=1)
        samples[code] = sample.text
        print(f"\n[{code}]\n{sample.text.strip()}")
    print(f"\nMore: hayakuchi generate {out / 'run'} --code diary")
    return {
        "seconds": round(time.monotonic() - started, 1),
        "prepare": report,
        "train": trained,
        "evaluate": measured,
        "samples": samples,
    }


def _clear(out: Path) -> None:
    """Makes the folder; removes what a former demo made, and nothing else."""
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / _MARKER).exists():
            raise UserError(f"--out {out}: not empty and not of a former demo; choose another folder")
        for made in ("data", "run", "probe"):
            shutil.rmtree(out / made, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARKER).write_text("Made by `hayakuchi demo`, which replaces data/ and run/ when it is run again.\n")
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror})") from error


def _steps_in(out: Path, seconds: float) -> int:
    """How many steps fit into the time, by a short run; never more than the recipe's."""
    probe = _train(PROBE_STEPS, out / "probe", out / "data")
    shutil.rmtree(out / "probe")
    seconds -= 2 * probe["compile_seconds"] + probe["seconds"]
    step_seconds = probe["seconds"] / PROBE_STEPS
    return max(PROBE_STEPS, min(CTRL_NANO.train.steps, int(seconds / step_seconds)))


def _train(steps: int, run: Path, data: Path) -> dict[str, Any]:
    devices = jax.device_count()
    batch = -(-CTRL_NANO.train.batch // devices) * devices  # on 3 GPUs too
    recipe = dataclasses.replace(CTRL_NANO, train=dataclasses.replace(CTRL_NANO.train, steps=steps, batch=batch))
    trained = train_ctrl(recipe, run, data)
    if trained["stopped_by"]:  # training ends in order there; the demo must end too
        raise KeyboardInterrupt
    return trained


def _step(number: int, text: str) -> None:
    print(f"[{number}/4] {text}", flush=True)
