"""Distillation: a larger run as the teacher of a smaller one (arXiv 1503.02531; layers as in 1910.01108, section 3).

The run keeps a copy of the teacher's parameters, so that it can be resumed wherever the teacher has gone.
"""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.experimental import multihost_utils

from hayakuchi import config
from hayakuchi.config import CtrlConfig, CtrlRecipe
from hayakuchi.config.recipe import RECIPE_FILE, recipe_file
from hayakuchi.data.shards import DatasetInfo
from hayakuchi.errors import UserError
from hayakuchi.train.checkpoint import Checkpoints
from hayakuchi.train.restore import restore_ctrl

_FOLDER = "teacher"


class Teacher(NamedTuple):
    """A trained model to learn from.

    Attributes:
      config: its sizes.
      parameters: nested dict of float32 arrays.
    """

    config: CtrlConfig
    parameters: Any


def check_teacher(run: Path, source: Path, data: Path) -> None:
    """Whether the run `source` can teach one on this data set. A run that has its copy already needs no `source`.

    Raises:
      UserError: no trained CTRL run, or one of another tokenizer or other control codes.
    """
    if _adopted(run):
        return
    config.read_json(CtrlRecipe, recipe_file(source))
    if not (source / "checkpoints").is_dir():
        raise UserError(f"--teacher {source}: has no checkpoint yet; train it first")
    try:
        same = (source / "tokenizer.model").read_bytes() == (data / "tokenizer.model").read_bytes()
    except OSError as error:
        raise UserError(f"--teacher {source}: {error.filename}: cannot read it ({error.strerror})") from error
    if not same:
        raise UserError(
            f"--teacher {source}: has another tokenizer than {data}; prepare the data with `--tokenizer "
            f"{source / 'tokenizer.model'}`"
        )
    theirs, ours = (DatasetInfo.open(folder).codes.slots for folder in (source, data))
    if theirs != ours:
        raise UserError(f"--teacher {source}: has other control codes ({theirs}) than {data} ({ours})")


def adopt_teacher(run: Path, source: Path) -> Teacher:
    """The teacher of a run, from the run's own copy, which is made of the newest checkpoint of `source` if missing.

    Raises:
      UserError: `source` is no trained CTRL run, or the copy cannot be written.
    """
    folder = run / _FOLDER
    if not _adopted(run):
        recipe, parameters, step = restore_ctrl(source)
        if jax.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # a copy that was cut short
        multihost_utils.sync_global_devices("there is no half copy of the teacher")
        with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
            checkpoints.save(step, {"parameters": parameters}, jax.random.key(0), 0, config.to_dict(recipe))
        if jax.process_index() == 0:
            try:
                (folder / RECIPE_FILE).write_text(config.to_json(recipe), encoding="utf-8")
            except OSError as error:
                raise UserError(f"{folder}: cannot write there ({error.strerror})") from error
        multihost_utils.sync_global_devices("the teacher is copied")
    recipe, parameters, _ = restore_ctrl(folder)
    return Teacher(recipe.model, parameters)


def _adopted(run: Path) -> bool:
    return (run / _FOLDER / RECIPE_FILE).is_file()


def started(student: Any, config: CtrlConfig, teacher: Any, teacher_config: CtrlConfig) -> Any:
    """The student's parameters, those of the teacher in place of all that have the same name and shape.

    Layer i of the student starts as the teacher's layer i * L' // L, of L' layers. What the teacher lacks, or has in
    another size, stays as it was initialised.

    Args:
      student: initialised parameters, a pure dict.
      config: the student's sizes.
      teacher: the teacher's parameters.
      teacher_config: its sizes.
    """
    theirs = traverse_util.flatten_dict(teacher)

    def of_layer(index: int, rest: tuple[Any, ...]) -> Any:
        """One array of the teacher's layer for the student's layer `index`, or None."""
        layer = index * teacher_config.layers // config.layers
        if not teacher_config.scan_layers:
            # A listed block lacks what it shares: that stands in an earlier block of its group.
            owners = (theirs.get(("blocks", i, *rest)) for i in range(layer, -1, -1))
            return next((owner for owner in owners if owner is not None), None)
        stacked = theirs.get(("blocks", *rest))
        return None if stacked is None else stacked[layer * stacked.shape[0] // teacher_config.layers]

    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        if path[0] != "blocks":
            found = theirs.get(path)
        elif config.scan_layers:
            size = config.layers // leaf.shape[0]
            layers = [of_layer(index * size, path[1:]) for index in range(leaf.shape[0])]
            same = all(layer is not None and layer.shape == leaf.shape[1:] for layer in layers)
            found = jnp.stack(layers) if same else None
        else:
            found = of_layer(path[1], path[2:])
        return leaf if found is None or found.shape != leaf.shape else found

    flat = traverse_util.flatten_dict(student)
    return traverse_util.unflatten_dict({path: one(path, leaf) for path, leaf in flat.items()})
