"""The command line: verb -> function. Imports are inside the verbs, so that each starts as fast as it can."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import FlagConversionOff, OmitArgPrefixes, Positional, UseAppendAction, arg

from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, Precision, TextDataConfig, TrainConfig
from hayakuchi.errors import UserError
from hayakuchi.recipes import RECIPES, find_recipe
from hayakuchi.runtime import set_up_jax, set_up_logging

Json = Annotated[Path | None, arg(metavar="PATH")]
PLANNED = ("speak", "convert", "plan", "bench", "inspect", "import", "serve", "launch")


def demo(*, out: Path = Path("demo"), minutes: float = 5.0, json: Json = None) -> None:
    """Embedded corpus -> tokenizer -> trained ctrl-nano -> Japanese text for three control codes.

    Example: hayakuchi demo --out demo

    Args:
      out: folder for the data set and the run.
      minutes: time the whole demo may take.
      json: write the result as JSON to this file; - for standard output.
    """
    set_up_jax()
    from hayakuchi.demo import run_demo  # noqa: PLC0415

    _write(json, run_demo(out, minutes))


def prepare_text(
    out: Positional[Path],
    /,
    *,
    source: UseAppendAction[tuple[str, ...]],
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

    Example: hayakuchi prepare text data/aozora --source aozora:aozora.tar.xz --source jsonl:wiki.jsonl.xz,code=wikipedia

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
    from hayakuchi.corpora.sources import parse_source  # noqa: PLC0415
    from hayakuchi.data.prepare_text import PrepareOptions, prepare_text  # noqa: PLC0415

    options = PrepareOptions(
        vocabulary_size=vocab_size,
        tokenizer=tokenizer,
        workers=workers,
        normalisation=normalisation,
        deduplicate=deduplicate,
        heldout_fraction=heldout,
        subcodes=tuple(filter(None, subcodes.split(","))),
        minimum_characters=minimum_characters,
    )
    report = prepare_text(out, [parse_source(spec) for spec in source], options)
    if json is None:
        from hayakuchi.data.prepare_text import summary  # noqa: PLC0415

        print(summary(report))
    _write(json, report)


@dataclass(frozen=True)
class TrainArguments:
    """Trains RECIPE on a data set; run again with the same RUN it goes on where it stopped.

    Example: hayakuchi train ctrl-small runs/first --data data/aozora --steps 20000 --precision bfloat16

    Attributes:
      run: run directory, made if missing.
      data: data set directory of `hayakuchi prepare`.
      model: sizes of the model.
      optimizer: update rule and schedule.
      text: how batches are drawn.
      train: length, batch and bookkeeping.
      json: write the summary as JSON to this file; - for standard output.
    """

    run: Positional[Path]
    data: Path
    model: OmitArgPrefixes[CtrlConfig]
    optimizer: OmitArgPrefixes[OptimizerConfig]
    text: OmitArgPrefixes[TextDataConfig]
    train: OmitArgPrefixes[TrainConfig]
    json: Json = None


def train(arguments: Sequence[str]) -> None:
    """`train RECIPE RUN ...`: the recipe gives the defaults of all other options."""
    name = next(iter(arguments), "--help")
    recipe = RECIPES["ctrl-small"] if name.startswith("-") else find_recipe(name)
    parsed = tyro.cli(
        OmitArgPrefixes[TrainArguments],
        prog="hayakuchi train RECIPE",
        description=f"{TrainArguments.__doc__}\nRECIPE is one of {', '.join(RECIPES)}, or a .json file.",
        args=arguments if name.startswith("-") else arguments[1:],
        default=TrainArguments(
            tyro.MISSING, tyro.MISSING, recipe.model, recipe.optimizer, recipe.data, recipe.train
        ),
    )
    if name.startswith("-"):
        raise UserError(f"train: RECIPE must come first; known are {', '.join(RECIPES)}")
    set_up_jax()
    from hayakuchi.train.train_ctrl import train_ctrl  # noqa: PLC0415

    chosen = CtrlRecipe(recipe.name, "ctrl", parsed.model, parsed.optimizer, parsed.text, parsed.train)
    result = train_ctrl(chosen, parsed.run, parsed.data)
    if parsed.json is None:
        ending = f" (stopped by {result['stopped_by']}; the same command goes on)" if result["stopped_by"] else ""
        losses = ", ".join(f"{key.replace('_', ' ')} {result[key]:.4f}" for key in ("loss", "held_out_loss") if key in result)
        print(
            f"{result['run']}: step {result['steps']}, {losses}, {result['tokens_per_second']:,.0f} tokens/s, "
            f"data wait {100 * result['data_wait_share']:.2f}%{ending}"
        )
    _write(parsed.json, result)
