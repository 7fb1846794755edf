"""What a variant runs on: its task, and batches of random content or those of a data set."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayakuchi.config.recipe import Recipe
from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.batches import TextBatches
from hayakuchi.data.shards import DatasetInfo, open_split
from hayakuchi.data.speech_batches import SpeechBatches
from hayakuchi.data.speech_shards import INFO_FILE, SpeechInfo, open_speech_split
from hayakuchi.train import train_vits
from hayakuchi.train.task import Task
from hayakuchi.train.tasks import make_task
from hayakuchi.train.vits_task import VitsTask, framing


@dataclass(frozen=True)
class Work:
    """A task and what it is fed.

    Attributes:
      task: the task.
      draw: batches from a given one on, drawn and assembled as `train` does it; None where the one example batch is
        used again and again.
    """

    task: Task
    draw: Callable[[int], Iterator[Any]] | None


def fitted(recipe: Recipe, data: Path) -> Recipe:
    """The recipe with the sizes that a data set decides, as `train` takes them.

    Raises:
      UserError: the data set is of another kind than the recipe, or damaged.
    """
    if recipe.task == "vits":
        return train_vits.fitted(recipe, SpeechInfo.load(data / INFO_FILE), data)
    size = DatasetInfo.load(data / "dataset.json").vocabulary_size
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocabulary_size=size))


def make_work(recipe: Recipe, data: Path | None) -> Work:
    """The work of a recipe, `fitted` where there is a data set.

    Raises:
      UserError: the recipe does not suit its task or the data set.
    """
    if data is None:
        return Work(make_task(recipe), None)
    if isinstance(recipe, VitsRecipe):
        clips = open_speech_split(data, "train")
        speech = SpeechBatches(clips, recipe.data, recipe.train.batch, framing(recipe))
        return Work(VitsTask(recipe, speech.buckets, speech.epoch_batches), speech.iterate)
    info = DatasetInfo.load(data / "dataset.json")
    shards = open_split(data, "train")
    text = TextBatches(shards, recipe.data, recipe.model.length, recipe.train.batch, codes=info.codes)
    return Work(make_task(recipe), text.iterate)


def heaviest(recipe: Recipe, work: Work) -> Work:
    """The same work under another recipe, in the largest of its shapes of batch: the one that needs most memory."""
    if isinstance(work.task, VitsTask):
        return Work(make_task(recipe, work.task.buckets[-1]), None)
    return Work(make_task(recipe), None)
