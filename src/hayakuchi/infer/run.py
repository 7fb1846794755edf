"""A trained text model read back from its run directory, with all that generation and evaluation need."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
from flax import nnx

from hayakuchi import config
from hayakuchi.config import CtrlRecipe, Precision
from hayakuchi.config.recipe import read_recipe
from hayakuchi.data.shards import DatasetInfo
from hayakuchi.errors import UserError
from hayakuchi.models.ctrl import RULES, Ctrl
from hayakuchi.models.sharding import make_mesh, shardings
from hayakuchi.text.codes import CodeBook
from hayakuchi.text.tokenizer import Tokenizer
from hayakuchi.train.checkpoint import Checkpoints
from hayakuchi.train.precision import compute_dtype
from hayakuchi.train.session import RECIPE_FILE


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
    return read_recipe(_recipe_file(run)).task


def load_run(run: Path, precision: Precision = "float32") -> TextRun:
    """Reads the newest checkpoint of a run.

    Args:
      run: run directory of a CTRL recipe.
      precision: arithmetic of the model, whatever it was trained in.

    Raises:
      UserError: not a run directory, no checkpoint yet, or a damaged file.
    """
    recipe = config.read_json(CtrlRecipe, _recipe_file(run))
    info = DatasetInfo.load(run / "dataset.json")
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    graph, abstract = nnx.split(
        nnx.eval_shape(lambda: Ctrl(recipe.model, jax.random.key(0), compute_dtype(precision))), nnx.Param
    )
    parameters = {"parameters": nnx.to_pure_dict(abstract)}
    layout = shardings(parameters, RULES, make_mesh())
    target = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), parameters, layout)
    if not (run / "checkpoints").is_dir():
        raise UserError(f"{run}: has no checkpoint yet; train it first")
    with Checkpoints(run / "checkpoints", recipe.train.keep_checkpoints, read_only=True) as checkpoints:
        restored = checkpoints.restore(target)
    if restored is None:
        raise UserError(f"{run}: has no checkpoint yet; train it first")
    state, saved = restored
    model = nnx.merge(graph, state["parameters"])
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, precision=precision))
    return TextRun(model, recipe, tokenizer, info, saved["step"])


def _recipe_file(run: Path) -> Path:
    path = run / RECIPE_FILE
    if not path.is_file():
        raise UserError(f"{run}: not a run directory (no {RECIPE_FILE}); make one with `hayakuchi train`")
    return path
