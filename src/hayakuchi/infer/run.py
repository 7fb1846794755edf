"""A trained text model read back from its run directory, with all that generation and evaluation need."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
from flax import nnx

from hayakuchi.config import CtrlRecipe, Precision
from hayakuchi.config.recipe import RECIPE_FILE, read_recipe, recipe_file
from hayakuchi.data.shards import INFO_FILE, TOKENIZER_FILE, DatasetInfo
from hayakuchi.errors import UserError
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.text.codes import CodeBook
from hayakuchi.text.tokenizer import Tokenizer
from hayakuchi.train.precision import compute_dtype
from hayakuchi.train.restore import restore_ctrl


@dataclass(frozen=True)
class TextRun:
    """A language model with its tokenizer and codes.

    Attributes:
      model: CTRL with the restored parameters.
      recipe: the settings it was trained with.
      tokenizer: the data set's.
      info: the data set's description; its normalisation is due to every prompt.
      step: optimiser steps the parameters have behind them.
    """

    model: Ctrl
    recipe: CtrlRecipe
    tokenizer: Tokenizer
    info: DatasetInfo
    step: int

    @property
    def codes(self) -> CodeBook:
        """Names and slots of the control codes."""
        return self.info.codes


def task_of(run: Path) -> Literal["ctrl", "vits"]:
    """What a run was trained for.

    Raises:
      UserError: not a run directory, or its recipe is damaged.
    """
    return read_recipe(recipe_file(run)).task


def load_run(run: Path, precision: Precision = "float32") -> TextRun:
    """Reads the newest checkpoint of a run.

    Args:
      run: run directory of a CTRL recipe.
      precision: arithmetic of the model, whatever it was trained in.

    Raises:
      UserError: not a run directory, no checkpoint yet, or a damaged file.
    """
    recipe, parameters, step = restore_ctrl(run)
    info = DatasetInfo.open(run)
    if info.vocabulary_size != recipe.model.vocabulary_size:
        raise UserError(
            f"{run}: {RECIPE_FILE} has {recipe.model.vocabulary_size} token ids, {INFO_FILE} {info.vocabulary_size}; "
            "one of the files is not of this run"
        )
    tokenizer = Tokenizer.load(run / TOKENIZER_FILE)
    graph = jax.eval_shape(
        lambda: nnx.split(Ctrl(recipe.model, jax.random.key(0), compute_dtype(precision)), nnx.Param)[0]
    )
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, precision=precision))
    return TextRun(nnx.merge(graph, parameters), recipe, tokenizer, info, step)
