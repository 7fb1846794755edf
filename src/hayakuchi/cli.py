"""The command line: verb -> function. Imports are inside the verbs, so that each starts as fast as it can."""

import contextlib
import dataclasses
import difflib
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeVar

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from hayakuchi import strict_json
from hayakuchi.config import (
    CtrlConfig,
    CtrlRecipe,
    DistillationConfig,
    OptimizerConfig,
    Precision,
    Remat,
    SpeechDataConfig,
    TextDataConfig,
    TrainConfig,
)
from hayakuchi.config.recipe import RECIPE_FILE, Recipe, read_recipe, recipe_file
from hayakuchi.config.vits import VitsConfig, VitsOptimizerConfig, VitsRecipe
from hayakuchi.directories import check_output
from hayakuchi.errors import UserError
from hayakuchi.recipes import RECIPES, find_recipe
from hayakuchi.runtime import set_up_jax, set_up_logging

Json = Annotated[Path | None, arg(metavar="PATH")]
Run = Positional[Annotated[Path, arg(metavar="RUN")]]
Out = Positional[Annotated[Path, arg(metavar="OUT")]]
ResultT = TypeVar("ResultT")
_STDIN_LIMIT_BYTES = 64 << 20
_SIGPIPE = 13  # signal.SIGPIPE, which Windows lacks


def demo(*, out: Path = Path("demo"), minutes: float = 7.5, json: Json = None) -> None:
    """Embedded corpora -> trained ctrl-nano and vits-nano -> Japanese text, and its first lines read aloud.

    Example: hayakuchi demo --out demo

    Args:
      out: folder for data sets, runs and demo.wav.
      minutes: time the whole demo may take.
      json: write the result as JSON to this file; - for standard output.
    """
    set_up_jax()
    from hayakuchi.demo import run_demo

    with contextlib.redirect_stdout(sys.stderr if _to_stdout(json) else sys.stdout):
        result = run_demo(out, minutes)
    _finish(json, result, "")


def prepare_text(
    out: Out,
    /,
    *,
    source: UseAppendAction[tuple[str, ...]] = (),
    vocab_size: int | None = None,
    tokenizer: Path | None = None,
    workers: int | None = None,
    normalisation: Literal["nfkc", "nfc", "none"] = "nfkc",
    deduplicate: Literal["near", "exact", "none"] = "near",
    heldout: float = 0.01,
    subcodes: str = "",
    minimum_characters: int = 1,
    engine: Literal["local"] = "local",
    json: Json = None,
) -> None:
    """Corpora -> tokenizer, token shards and report.json.

    Example: hayakuchi prepare text data/aozora --source aozora:aozora.tar.xz --source jsonl:wiki.jsonl.xz

    Args:
      out: data set directory to make; must not exist.
      source: KIND:PATH[,code=NAME][,option=value]; KIND is aozora, wikipedia, cirrus, jsonl, plain or embedded
        (embedded has no PATH). Repeat for more sources.
      vocab_size: pieces of the tokenizer; by default chosen from the size of the corpus, 32,000 at most.
      tokenizer: use this tokenizer.model instead of training one.
      workers: worker processes; by default one a core.
      normalisation: nfkc (with exceptions that keep Japanese punctuation), nfc, or none.
      deduplicate: drop near-duplicate documents, exact copies only, or nothing.
      heldout: share of documents held out for evaluation, chosen by a hash of their text.
      subcodes: "title", "author" or "title,author": put them as text in front of every document that has them.
      minimum_characters: drop shorter documents.
      engine: where the work runs.
      json: write report.json to this file too; - for standard output.
    """
    del engine  # one value so far
    from hayakuchi.corpora.sources import parse_source
    from hayakuchi.data import prepare_text as preparation

    if not source:
        raise UserError("--source is missing: name a corpus as KIND:PATH, or `--source embedded`")
    options = preparation.PrepareOptions(
        vocabulary_size=vocab_size,
        tokenizer=tokenizer,
        workers=workers,
        normalisation=normalisation,
        deduplicate=deduplicate,
        heldout_fraction=heldout,
        subcodes=tuple(filter(None, subcodes.split(","))),
        minimum_characters=minimum_characters,
    )
    report = preparation.prepare_text(out, [parse_source(spec) for spec in source], options)
    _finish(json, report, preparation.summary(report))


def prepare_speech(
    out: Out,
    /,
    *,
    source: UseAppendAction[tuple[str, ...]] = (),
    sample_rate: int = 24_000,
    workers: int | None = None,
    trim: bool = False,
    loudness: Literal["warn", "drop", "off"] = "warn",
    normalise: bool = False,
    engine: Literal["haqumei", "pyopenjtalk-plus"] = "haqumei",
    devoiced: Literal["keep", "fold"] = "keep",
    user_dictionary: Path | None = None,
    heldout: float = 0.01,
    min_seconds: float = 0.4,
    max_seconds: float = 15.0,
    json: Json = None,
) -> None:
    """Recordings with transcripts -> audio and symbol shards and report.json.

    Example: hayakuchi prepare speech data/jvs --source jvs:jvs_ver1 --sample-rate 24000 --trim

    Args:
      out: data set directory to make, or one made by this verb: what is whole and unchanged in it is used again.
      source: KIND:PATH[,option=value]; KIND is jvs, jsut, ljspeech, common_voice, esd or embedded. Repeat for more.
      sample_rate: of the data set, in Hz; any other sound is resampled.
      workers: worker processes; by default one a core.
      trim: cut silence at the ends of each clip, all but a tenth of a second.
      loudness: warn of clips that are clipped or far from the usual level, drop them, or off.
      normalise: bring all clips to one level.
      engine: what reads the transcripts.
      devoiced: keep devoiced vowels as symbols of their own, or fold them into the others.
      user_dictionary: CSV file of surface,reading,accent.
      heldout: share of sentences held out for evaluation, chosen by a hash of their text; a corpus's own split goes
        before.
      min_seconds: drop shorter clips.
      max_seconds: drop longer clips.
      json: write report.json to this file too; - for standard output.
    """
    from hayakuchi.corpora.speech_sources import parse_speech_source
    from hayakuchi.data import prepare_speech as preparation

    if not source:
        raise UserError("--source is missing: name a corpus as KIND:PATH, or `--source embedded`")
    options = preparation.SpeechOptions(
        sample_rate_hz=sample_rate,
        workers=workers,
        trim=trim,
        loudness=loudness,
        normalise=normalise,
        engine=engine,
        devoiced=devoiced,
        user_dictionary=user_dictionary,
        heldout_fraction=heldout,
        min_seconds=min_seconds,
        max_seconds=max_seconds,
    )
    report = preparation.prepare_speech(out, [parse_speech_source(spec) for spec in source], options)
    _finish(json, report, preparation.summary(report))


@dataclass(frozen=True)
class TrainArguments:
    """Arguments of `train` behind RECIPE.

    Attributes:
      run: run directory, made if missing.
      data: data set directory of `hayakuchi prepare`.
      model: sizes of the model.
      optimizer: update rule and schedule.
      text: how batches are drawn.
      train: length, batch and bookkeeping.
      distillation: learning from a larger run.
      verify_data: verify the checksums of the data set even if that was done on this machine before.
      json: write the summary as JSON to this file; - for standard output.
    """

    run: Run
    data: Path
    model: CtrlConfig
    optimizer: OptimizerConfig
    text: TextDataConfig
    train: TrainConfig
    distillation: DistillationConfig
    verify_data: bool = False
    json: Json = None


@dataclass(frozen=True)
class VitsTrainArguments:
    """Arguments of `train` behind the RECIPE of a voice.

    Attributes:
      run: run directory, made if missing.
      data: data set directory of `hayakuchi prepare speech`.
      model: sizes of the model.
      optimizer: update rule and schedule.
      speech: how batches are drawn.
      train: length, batch and bookkeeping.
      verify_data: verify the checksums of the data set even if that was done on this machine before.
      json: write the summary as JSON to this file; - for standard output.
    """

    run: Run
    data: Path
    model: VitsConfig
    optimizer: VitsOptimizerConfig
    speech: SpeechDataConfig
    train: TrainConfig
    verify_data: bool = False
    json: Json = None


TRAIN_DESCRIPTION = f"""Trains RECIPE on a data set; run again with the same RUN it goes on where it stopped.

RECIPE comes first: {", ".join(RECIPES)}, or a .json file. It gives the defaults of the options below.

Example: hayakuchi train ctrl-small runs/first --data data/aozora --steps 20000 --precision bfloat16"""


def train(recipe: Recipe, arguments: TrainArguments | VitsTrainArguments) -> None:
    """Trains a recipe; run again with the same RUN it goes on where it stopped."""
    set_up_jax()
    if isinstance(arguments, VitsTrainArguments):
        from hayakuchi.train.train_vits import train_vits

        voice = VitsRecipe(recipe.name, "vits", arguments.model, arguments.optimizer, arguments.speech, arguments.train)
        result = train_vits(voice, arguments.run, arguments.data, verify_data=arguments.verify_data)
        unit = "frames"
    else:
        from hayakuchi.train.train_ctrl import train_ctrl

        text = CtrlRecipe(
            recipe.name,
            "ctrl",
            arguments.model,
            arguments.optimizer,
            arguments.text,
            arguments.train,
            arguments.distillation,
        )
        result = train_ctrl(text, arguments.run, arguments.data, verify_data=arguments.verify_data)
        unit = "tokens"
    from hayakuchi.plan.measure import after_training

    planned = after_training(read_recipe(Path(result["run"]) / RECIPE_FILE), result)
    if planned is not None:
        result["planned"] = planned
    losses = [f"{name.replace('_', ' ')} {result[name]:.4f}" for name in ("loss", "held_out_loss") if name in result]
    ending = f" (stopped by {result['stopped_by']}; the same command goes on)" if result["stopped_by"] else ""
    speed = f"{result[f'{unit}_per_second']:,.0f} {unit}/s, data wait {100 * result['data_wait_share']:.2f}%"
    if result["first_step"] == result["steps"]:
        told = f"has its {result['steps']} steps already"
    else:
        told = ", ".join([f"step {result['steps']}", *losses, speed])
    if planned is not None:
        low, high = planned["step_seconds"]
        told += f"; a step {planned['actual_step_seconds']:.3g} s, planned {low:.3g} to {high:.3g} s"
    _finish(arguments.json, result, f"{result['run']}: {told}{ending}")


def generate(
    run: Run,
    prompt: Positional[Annotated[str, arg(metavar="PROMPT")]] = "",
    /,
    *,
    code: str = "",
    max_tokens: int = 256,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 0.95,
    penalty: float = 1.2,
    penalty_mode: Literal["paper", "hf", "shift_invariant"] = "shift_invariant",
    ban_ngram: int = 0,
    stop: UseAppendAction[tuple[str, ...]] = (),
    n: int = 1,
    seed: int = 0,
    strict_window: bool = False,
    precision: Precision = "float32",
    json: Json = None,
) -> None:
    """Text from a trained model, written as it comes.

    Example: hayakuchi generate runs/first 昔、ある村に --code story --penalty 1.2 --seed 7

    Args:
      run: run directory.
      prompt: text to go on from.
      code: control code; by default none (unconditional).
      max_tokens: most tokens of a sample.
      temperature: 0 always takes the likeliest token.
      top_k: draw from the k likeliest tokens only; 0 turns it off.
      top_p: draw from the fewest tokens that hold this much probability.
      penalty: theta of penalised sampling; 1 turns it off.
      penalty_mode: how the penalty is applied; "paper" and "hf" as published there.
      ban_ngram: never repeat a run of this many tokens; 0 turns it off.
      stop: end before this string; repeat for more.
      n: samples, drawn as one batch.
      seed: the same seed gives the same text.
      strict_window: refuse a prompt longer than the model's window; by default its newest tokens are kept.
      precision: arithmetic of the model.
      json: write the samples as JSON to this file; - for standard output, in place of the text.
    """
    set_up_jax()
    from hayakuchi.infer.generate import Generation, Piece, generations, stream
    from hayakuchi.infer.run import load_run
    from hayakuchi.infer.sampling import SamplingConfig

    sampling = SamplingConfig(temperature, top_k, top_p, penalty, penalty_mode, ban_ngram)
    loaded = load_run(run, precision)
    pieces = stream(
        loaded,
        prompt,
        code,
        max_tokens=max_tokens,
        sampling=sampling,
        stop=stop,
        n=n,
        seed=seed,
        strict_window=strict_window,
    )

    def shown() -> Iterator[Piece]:
        """The pieces as they pass, written to the terminal where there is one sample to read."""
        for piece in pieces:
            if n == 1 and not _to_stdout(json):
                _say(piece.text, end="")
            yield piece

    if n == 1 and not _to_stdout(json):
        _say(prompt, end="")
    samples: list[Generation] = generations(shown(), n)
    if n == 1:
        text = ""
    else:
        text = "\n".join(f"--- {index + 1} ---\n{prompt}{sample.text}" for index, sample in enumerate(samples))
    result = {
        "prompt": prompt,
        "code": code,
        "seed": seed,
        "samples": [dataclasses.asdict(sample) for sample in samples],
    }
    _finish(json, result, text)


def attribute(
    run: Run,
    text: Positional[Annotated[str, arg(metavar="TEXT")]],
    /,
    *,
    priors: Literal["uniform", "training"] = "uniform",
    temperature: float = 1.0,
    json: Json = None,
) -> None:
    """Which control code a text most likely belongs to: p(code | text).

    Example: hayakuchi attribute runs/first 拝啓　若葉の候、いかがお過ごしでしょうか。

    Args:
      run: run directory.
      text: the text; - reads standard input.
      priors: p(code) before the text is read: equal, or the codes' shares of the training tokens.
      temperature: above 1 makes the answer less certain.
      json: write the result as JSON to this file; - for standard output.
    """
    set_up_jax()
    from hayakuchi.infer.attribute import attribute as attribute_text
    from hayakuchi.infer.attribute import training_priors
    from hayakuchi.infer.run import load_run

    loaded = load_run(run)
    shares = training_priors(loaded) if priors == "training" else None
    found = attribute_text(loaded, _argument_or_stdin(text), shares, temperature=temperature)
    ranked = sorted(found.probabilities.items(), key=lambda item: -item[1])
    _finish(json, dataclasses.asdict(found), "\n".join(f"{100 * share:6.2f}%  {name}" for name, share in ranked))


def speak(
    run: Run,
    text: Positional[Annotated[str, arg(metavar="TEXT")]],
    /,
    *,
    out: Path,
    speaker: str = "",
    speed: float = 1.0,
    noise: float = 0.667,
    duration_noise: float = 0.8,
    seed: int = 0,
    silence: float = 0.25,
    user_dictionary: Path | None = None,
    precision: Precision = "float32",
    json: Json = None,
) -> None:
    """Text to speech: a WAV file that grows sentence by sentence.

    Example: hayakuchi speak runs/voice 今日は良い天気です。 --out hello.wav --speaker jvs001

    Args:
      run: run directory of a voice.
      text: the text; - reads standard input.
      out: the WAV file; - is standard output.
      speaker: name or index; by default the first.
      speed: 2 is twice as fast, 0.5 half as fast.
      noise: scale of the noise of the voice.
      duration_noise: scale of the noise of the durations; with both at 0 nothing is random.
      seed: the same seed gives the same speech.
      silence: seconds between sentences.
      user_dictionary: CSV file of surface,reading,accent.
      precision: arithmetic of the model.
      json: write sentences and what was not read as JSON to this file; - for standard output.
    """
    if out == json == Path("-"):
        raise UserError("--out and --json are both -: standard output takes one of them")
    from hayakuchi.infer.speak_options import SpeakOptions, check_out

    options = SpeakOptions(speed, noise, duration_noise, seed, silence)
    check_out(out)
    said = _argument_or_stdin(text)
    if not said.strip():
        raise UserError("TEXT is empty: give something to say")
    recipe_file(run)
    set_up_jax()
    from hayakuchi.infer.to_wav import speak_to_wav
    from hayakuchi.infer.voice import load_voice

    result = speak_to_wav(load_voice(run, precision), said, out, speaker, options, user_dictionary=user_dictionary)
    told = f"{out}: {result['seconds']:.2f} s, speaker {result['speaker']}"
    _finish(json, result, told, sys.stderr if _to_stdout(out) else None)


def convert(
    run: Run,
    recording: Positional[Annotated[Path, arg(metavar="IN.wav")]],
    /,
    *,
    source: Annotated[str, arg(name="from")],
    target: Annotated[str, arg(name="to")],
    out: Path,
    seed: int = 0,
    precision: Precision = "float32",
    json: Json = None,
) -> None:
    """What one speaker of a voice says, in the voice of another.

    Example: hayakuchi convert runs/voice in.wav --from jvs001 --to jvs002 --out out.wav

    Args:
      run: run directory of a voice of several speakers.
      recording: sound file (WAV, FLAC, OGG or MP3) of the speaker heard.
      source: the speaker heard, by name or index.
      target: the speaker wanted.
      out: the WAV file; - is standard output.
      seed: the same seed gives the same result.
      precision: arithmetic of the model.
      json: write a summary as JSON to this file; - for standard output.
    """
    if out == json == Path("-"):
        raise UserError("--out and --json are both -: standard output takes one of them")
    from hayakuchi.infer.speak_options import check_out

    check_out(out)
    set_up_jax()
    from hayakuchi.infer.to_wav import convert_to_wav
    from hayakuchi.infer.voice import load_voice

    result = convert_to_wav(load_voice(run, precision), recording, out, source, target, seed=seed)
    told = f"{out}: {result['seconds']:.2f} s, {result['from']} as {result['to']}"
    _finish(json, result, told, sys.stderr if _to_stdout(out) else None)


def evaluate(
    run: Run,
    /,
    *,
    data: Path,
    out: Path | None = None,
    batch: int | None = None,
    clips: int | None = None,
    json: Json = None,
) -> None:
    """How good a model is on the held-out split: bits per character of text; for a voice, distances to the recordings.

    Of text: loss, perplexity and bits per character and byte, in all and per code. Of a voice: mel-cepstral distortion,
    errors of F0 and voicing, length, and whether it sounds like its speaker.

    Example: hayakuchi evaluate runs/first --data data/aozora --out report

    Args:
      run: run directory.
      data: data set directory whose held-out split is measured.
      out: folder for report.json and a picture; of a voice, for sounds too.
      batch: windows of text computed at once; by default 32.
      clips: most clips that a voice is measured on; by default 32.
      json: write the report as JSON to this file; - for standard output.
    """
    set_up_jax()
    from hayakuchi.evaluate.report_folder import make_report_folder
    from hayakuchi.infer.run import load_run, task_of

    task = task_of(run)
    for option, value, meant in (("--batch", batch, "ctrl"), ("--clips", clips, "vits")):
        if value is not None and task != meant:
            raise UserError(f"{option}: {run} is a {task} run, the option is for {meant} runs; leave it out")
    if out is not None:
        make_report_folder(out)
    if task == "vits":
        from hayakuchi.evaluate.voice import evaluate_voice, voice_summary
        from hayakuchi.evaluate.voice_report import write_voice_report
        from hayakuchi.infer.voice import load_voice

        found = evaluate_voice(load_voice(run), data, clips=32 if clips is None else clips)
        report, told, write = found.report, voice_summary(found.report), functools.partial(write_voice_report, found)
    else:
        from hayakuchi.evaluate.text import evaluate_text, summary, write_text_report

        report = evaluate_text(load_run(run), data, batch=32 if batch is None else batch)
        told, write = summary(report), functools.partial(write_text_report, report)
    try:
        # First, and then the other whatever comes of this one: what took long to measure is not lost to a full disk.
        _finish(json, report, told)
    finally:
        if out is not None:
            write(out)


def export(
    run: Run,
    out: Out,
    /,
    *,
    format: Literal["hf"] = "hf",  # noqa: A002 - the option is called --format
    json: Json = None,
) -> None:
    """A trained model in another format: hf is a directory that Hugging Face transformers loads.

    Example: hayakuchi export runs/first exported --format hf

    Args:
      run: run directory.
      out: directory to make.
      format: hf.
      json: write what was made as JSON to this file; - for standard output.
    """
    del format  # one value so far
    set_up_jax()
    from hayakuchi.infer.run import load_run, task_of

    if task_of(run) == "vits":
        from hayakuchi.export.hf_voice import export_hf_voice
        from hayakuchi.infer.voice import load_voice

        result, loader = export_hf_voice(load_voice(run), out), "VitsModel"
    else:
        from hayakuchi.export.hf import export_hf

        result, loader = export_hf(load_run(run), out), "AutoModelForCausalLM"
    _finish(json, result, f"{out}: {result['parameters']:,} parameters; load it with {loader}")


def bench(
    recipe: Positional[Annotated[str, arg(metavar="RECIPE")]],
    /,
    *,
    compare: UseAppendAction[tuple[tuple[str, ...], ...]] = (),
    rounds: int = 4,
    seconds: float = 2.0,
    data: Path | None = None,
    largest_batch: bool = False,
    memory_limit: str = "",
    out: Path | None = None,
    json: Json = None,
) -> None:
    """Times a recipe's training step over a grid of settings: speed, memory, share of what the device can do.

    Example: hayakuchi bench ctrl-small --compare precision=float32,bfloat16 batch=8,16,32 sharing=none,all

    Args:
      recipe: name of a recipe, or a .json file.
      compare: FIELD=V1,V2 of any field of the recipe; every combination is a variant. One value sets the field. In a
        mesh or a list a plus stands for the comma: mesh=data=2,data=1+fsdp=2.
      rounds: turns that each variant has.
      seconds: length of a turn.
      data: data set directory to draw batches from, as training does; by default random content.
      largest_batch: look for the largest batch that has room, for each variant.
      memory_limit: room on each device, such as 15GiB; by default what it has.
      out: folder for bench.json and a picture.
      json: write the result as JSON to this file; - for standard output.
    """
    found = find_recipe(recipe)
    set_up_jax()
    from hayakuchi.bench.report import table, write_report
    from hayakuchi.bench.run import BenchOptions, run_bench
    from hayakuchi.evaluate.report_folder import make_report_folder

    options = BenchOptions(rounds, seconds, data, largest_batch, memory_limit)
    if out is not None:
        make_report_folder(out)
    result = run_bench(found, [word for words in compare for word in words], options)
    try:
        _finish(json, result, table(result))
    finally:
        if out is not None:
            write_report(result, out)


def plan(
    recipe: Positional[Annotated[str, arg(metavar="RECIPE")]] = "ctrl-small",
    /,
    *,
    device: str = "cpu",
    batch: int | None = None,
    accumulate: int | None = None,
    precision: Precision | None = None,
    remat: Remat | None = None,
    mesh: str | None = None,
    steps: int | None = None,
    data: Path | None = None,
    budget: str = "",
    usd: float | None = None,
    max_devices: int | None = None,
    out: Path | None = None,
    prices: Path | None = None,
    compiler: bool = True,
    verify: bool = False,
    calibrate: bool = False,
    json: Json = None,
) -> None:
    """What a run takes, found without the devices: does it fit, which batch, step time, days, cost.

    Example: hayakuchi plan ctrl-base --device v3-8 --batch 1024 --precision bfloat16

    Example: hayakuchi plan ctrl-base --device t4 --max-devices 2 --budget 14d --data data/wiki

    Args:
      recipe: name of a recipe, or a .json file.
      device: what to plan for, with its number: v3-8, v5e-4, t4x2, a100, cpu. An unknown name tells those known.
      batch: rows of a step; by default the recipe's.
      accumulate: micro-batches of a step.
      precision: arithmetic; by default the recipe's, or the nearest that the device has.
      remat: what the backward pass computes anew.
      mesh: devices as "data=N,fsdp=M".
      steps: of the run; by default the recipe's.
      data: prepared data set: a search then knows how often it would be read.
      budget: time to spend, such as 14d or 36h: the search for the model and settings that make most of it.
      usd: money to spend, in US dollars, alone or beside a budget.
      max_devices: search with up to this many GPUs; by default the number in --device.
      out: folder for the search's table, picture and recipe file; by default RECIPE-DEVICE-plan.
      prices: your own table of prices, in the form of the package's prices.toml.
      compiler: ask the real compiler for the memory, where the extra plan-tpu or plan-gpu is installed.
      verify: on a machine that has the device: run some steps and compare.
      calibrate: run for 30 seconds on the device of this machine, to narrow the range of all later plans.
      json: write the plan as JSON to this file; - for standard output.
    """
    found = find_recipe(recipe)
    from hayakuchi.plan.run import PlanOptions, run_plan

    settings = {"batch": batch, "accumulate": accumulate, "precision": precision, "remat": remat, "mesh": mesh}
    options = PlanOptions(
        settings={**settings, "steps": steps},
        data=data,
        budget=budget,
        usd=usd,
        max_devices=max_devices,
        out=out,
        prices=prices,
        compiler=compiler,
        verify=verify,
        calibrate=calibrate,
    )
    result, text = run_plan(found, device, options)
    _finish(json, result, text)


def inspect(
    target: Positional[Annotated[str, arg(metavar="RECIPE|FILE.py:FUNCTION")]] = "",
    /,
    *,
    device: str = "",
    batch: int | None = None,
    precision: Precision | None = None,
    top: int = 10,
    compile: bool = True,  # noqa: A002 - the option is called --compile
    patience: float = 300.0,
    numerics: bool = False,
    replay: Path | None = None,
    diff: Path | None = None,
    out: Path | None = None,
    json: Json = None,
) -> None:
    """What the compiler is given, by source line: equations, unrolled loops, constants, dtypes, retraces; and NaN.

    Of a recipe it looks at the training step; of FILE.py at FUNCTION, whose arguments the file gives in `example_args`:
    a tuple, a list of tuples (several calls: are they traced anew?), a function that returns either, or a dict of these
    by function.

    Example: hayakuchi inspect vits-jvs --out report

    Example: hayakuchi inspect --replay runs/first/nonfinite/step-812

    Args:
      target: name of a recipe, a .json file of one, or a function in a file.
      device: compile for this device too, without it, as `hayakuchi plan` does: v3-8, t4, ...
      batch: rows of the recipe's step; by default its own.
      precision: arithmetic of the recipe's step; by default its own.
      top: lines and findings to show.
      compile: lower and compile for this machine.
      patience: seconds after which a compile is given up.
      numerics: run the function and tell which line gives the first NaN or infinity.
      replay: make the step again that a run kept when its loss was not finite: RUN/nonfinite/step-N.
      diff: a former result (of --json or --out) to compare with.
      out: folder for inspect.json and inspect.html, a page with a treemap and the source.
      json: write the result as JSON to this file; - for standard output.
    """
    if bool(target) == bool(replay):
        raise UserError(
            "inspect: name a recipe or FILE.py:FUNCTION, or give --replay RUN/nonfinite/step-N; one of them"
        )
    if top < 1:
        raise UserError(f"--top {top} must be 1 or more")
    if not patience > 0:
        raise UserError(f"--patience {patience} must be above 0")
    set_up_jax()
    if replay is not None:
        from hayakuchi.inspect.numerics_text import replay_text
        from hayakuchi.inspect.replay import replay as make_again

        found = make_again(replay)
        _finish(json, found, replay_text(found, top))
        return
    from hayakuchi.inspect import run as inspection
    from hayakuchi.inspect import target as targets
    from hayakuchi.inspect.diff import diff as difference
    from hayakuchi.inspect.report import text, write_report

    before = inspection.read_result(diff) if diff is not None else None
    if targets.is_file(target):
        if batch is not None or precision is not None:
            raise UserError(f"--batch and --precision are of recipes; {target} gives its own arguments in example_args")
        looked_at = targets.of_file(target)
    else:
        from hayakuchi.plan.plan import with_settings

        recipe = _recipe_to_inspect(target)
        looked_at = targets.of_recipe(with_settings(recipe, batch=batch, precision=precision))
    result = inspection.inspect_target(looked_at, device=device, compiled=compile, patience=patience, numerics=numerics)
    if before is not None:
        result["diff"] = difference(before, result, str(diff))
    try:
        _finish(json, result, text(result, top))
    finally:
        if out is not None:
            write_report(result, out)
    inspection.tell_failure(result)


def _recipe_to_inspect(name: str) -> Recipe:
    try:
        return find_recipe(name)
    except UserError as error:
        if name.endswith(".json"):
            raise
        raise UserError(f"{error}; nor is it a function of a file, which is written FILE.py:FUNCTION") from error


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "prepare text": prepare_text,
    "prepare speech": prepare_speech,
    "train": train,
    "generate": generate,
    "attribute": attribute,
    "speak": speak,
    "convert": convert,
    "evaluate": evaluate,
    "export": export,
    "bench": bench,
    "plan": plan,
    "inspect": inspect,
}
PLANNED = ("import", "serve", "launch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 done, 2 the user's mistake, 1 anything else.

    Where the reader of the output has gone (`| head`), it ends quietly with 141, as a shell says of SIGPIPE.
    """
    try:
        try:
            return _main(arguments)
        finally:
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()  # of --help too: at exit Python would report the broken pipe itself
    except BrokenPipeError:
        _drop_unread_output()
        return 128 + _SIGPIPE


def _drop_unread_output() -> None:
    """Sends what a broken pipe left in the buffers to nowhere, so that Python's flush at exit succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _main(arguments: Sequence[str] | None) -> int:
    set_up_logging()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Japanese goes through whatever the terminal says of itself
            stream.reconfigure(encoding="utf-8", errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command(words)()
    except UserError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # an OSError, but of `main`
        raise
    except (RuntimeError, OSError, MemoryError) as error:
        # A run that failed, a full disk, no memory: one line. Everything else is our mistake and shows its traceback.
        return _fail(str(error).strip() or type(error).__name__, 1)
    return 0


def command(words: Sequence[str]) -> Callable[[], None]:
    """The call that a command line asks for; nothing is done yet.

    Raises:
      UserError: an unknown verb or option, or a bad value.
    """
    for word in words:
        if word.startswith("gs://") or ":gs://" in word:
            raise UserError(
                f"{word}: gs:// paths are planned, not built yet; copy to a local folder, or mount the bucket"
            )
    for count in (2, 1):
        verb, rest = " ".join(words[:count]), words[count:]
        if verb in PLANNED:
            raise UserError(f"{verb}: planned, not built yet (README.md has the table of what is)")
        if verb == "train":
            return _train_command(rest)
        if verb in VERBS:
            return _parse(_deferred(VERBS[verb]), f"hayakuchi {verb}", rest)
    if not words or words[0] in ("-h", "--help"):
        return _usage
    if words[0] in ("-V", "--version"):
        return lambda: _say(version("hayakuchi"))
    close = difflib.get_close_matches(" ".join(words[:2]), VERBS, 1, 0.4) or ["--help"]
    raise UserError(f"{words[0]!r} is not a verb; did you mean `hayakuchi {close[0]}`?")


def _train_command(words: Sequence[str]) -> Callable[[], None]:
    """`train RECIPE RUN ...`: the recipe gives the defaults of all other options."""
    name = next((word for word in words if not word.startswith("-")), "")
    asks_help = "-h" in words or "--help" in words
    if not asks_help and (not name or words[0] != name):
        raise UserError(f"train: RECIPE must come first; known are {', '.join(RECIPES)}")
    for word in words:
        if word.split("=")[0].replace("_", "-") in ("--vocabulary-size", "--speakers"):
            raise UserError(f"{word.split('=')[0]}: the data set decides it; see `hayakuchi prepare --help`")
    recipe = find_recipe(name) if name else RECIPES["ctrl-small"]
    missing = tyro.MISSING, tyro.MISSING  # RUN and --data
    default: TrainArguments | VitsTrainArguments
    if isinstance(recipe, VitsRecipe):
        default = VitsTrainArguments(*missing, recipe.model, recipe.optimizer, recipe.data, recipe.train)
    else:
        default = TrainArguments(
            *missing, recipe.model, recipe.optimizer, recipe.data, recipe.train, recipe.distillation
        )
    arguments: Any = _parse(
        type(default),
        f"hayakuchi train {name or 'RECIPE'}",
        ["--help"] if asks_help else words[1:],
        description=TRAIN_DESCRIPTION,
        default=default,
        config=(OmitArgPrefixes,),
    )
    _check_outputs({"recipe": name, "data": arguments.data, "json": arguments.json})
    return functools.partial(train, recipe, arguments)


def _usage() -> None:
    lines = (f"  {name:14} {(function.__doc__ or '').splitlines()[0]}" for name, function in VERBS.items())
    _say("usage: hayakuchi VERB ...\n\n" + "\n".join(lines) + "\n\n`hayakuchi VERB --help` tells a verb's options.")


def _deferred(verb: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The verb with its signature, but giving a call to make in place of making it."""

    @functools.wraps(verb)
    def bind(*arguments: Any, **named: Any) -> Callable[[], None]:
        given = signature(verb).bind(*arguments, **named).arguments
        # OUT of `prepare` and `export` is positional: it must be new, which these check themselves.
        _check_outputs({name: value for name, value in given.items() if name != "out" or name in named})
        return functools.partial(verb, *arguments, **named)

    return bind


def _check_outputs(given: dict[str, Any]) -> None:
    """Refuses an --out or --json that would overwrite a run, a data set or an input; before anything slow is done."""
    inputs = [value for name, value in given.items() if isinstance(value, Path) and name not in ("out", "json")]
    inputs += [Path(spec.partition(":")[2].split(",")[0]) for spec in given.get("source", ())]  # KIND:PATH,...
    for name in ("recipe", "target"):  # a file, or FILE.py:FUNCTION
        word = given.get(name, "")
        inputs += [Path(word), Path(word.rpartition(":")[0])]
    for name in ("out", "json"):
        target = given.get(name)
        if target is not None and target != Path("-"):
            check_output(f"--{name}", target, inputs)


def _parse(target: Callable[..., ResultT], prog: str, words: Sequence[str], **options: Any) -> ResultT:
    """Parses a command line; what tyro says of a mistake, in a box of many lines, becomes one."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed: ResultT = tyro.cli(target, prog=prog, args=words, **options)
            return parsed
    except SystemExit as ending:
        if ending.code == 0:  # --help
            raise
        lines = (line.strip("│╰╯─ ") for line in said.getvalue().splitlines() if not line.startswith("╭"))
        reason = re.split("For full helptext|Argument helptext", " ".join(filter(None, lines)))[0]
        raise UserError(f"{reason.strip(' .')}; `{prog} --help` tells the options") from None


def _finish(target: Path | None, result: dict[str, Any], text: str, file: TextIO | None = None) -> None:
    """Prints `text` (to `file`), or the result as JSON in its place; and writes the JSON file that was asked for."""
    encoded = strict_json.dumps(result)
    if _to_stdout(target):
        _say(encoded)
        return
    try:
        print(text, file=file, flush=True)
    finally:  # also where nobody reads the text
        if target is not None:
            _write_json(target, encoded)


def _write_json(target: Path, encoded: str) -> None:
    check_output("--json", target)  # again: what the command itself made is there now
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(encoded + "\n", encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"--json {target}: cannot write it ({error.strerror})") from error


def _to_stdout(target: Path | None) -> bool:
    return target == Path("-")


def _say(text: str, end: str = "\n") -> None:
    """Prints at once."""
    print(text, end=end, flush=True)


def _argument_or_stdin(text: str) -> str:
    if text != "-":
        return text
    data = sys.stdin.buffer.read(_STDIN_LIMIT_BYTES + 1)
    if len(data) > _STDIN_LIMIT_BYTES:
        raise UserError(f"standard input: over {_STDIN_LIMIT_BYTES:,} bytes; give a shorter text")
    return data.decode("utf-8", errors="replace")


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    sys.stderr.write(f"hayakuchi: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
