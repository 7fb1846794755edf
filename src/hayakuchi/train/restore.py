"""The parameters of a trained run, read back for whoever goes on with them."""

from pathlib import Path
from typing import Any

import jax
from flax import nnx

from hayakuchi import config
from hayakuchi.config import CtrlRecipe
from hayakuchi.config.recipe import recipe_file
from hayakuchi.errors import UserError
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.models.ctrl_blocks import RULES
from hayakuchi.models.sharding import make_mesh, shardings
from hayakuchi.train.checkpoint import Checkpoints


def restore_ctrl(run: Path) -> tuple[CtrlRecipe, Any, int]:
    """Recipe, parameters (a pure dict, laid over all devices) and step of a run's newest whole checkpoint.

    Raises:
      UserError: not a CTRL run, no checkpoint yet, or a damaged file.
    """
    recipe = config.read_json(CtrlRecipe, recipe_file(run))
    abstract = nnx.eval_shape(lambda: nnx.state(Ctrl(recipe.model, jax.random.key(0)), nnx.Param))
    parameters = {"parameters": nnx.to_pure_dict(abstract)}
    layout = shardings(parameters, RULES, make_mesh())
    target = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), parameters, layout)
    state, step = restore_newest(run, target)
    return recipe, state["parameters"], step


def restore_newest(run: Path, target: Any) -> tuple[Any, int]:
    """What `target` describes (see `Checkpoints.restore`) of a run's newest whole checkpoint, and its step.

    Raises:
      UserError: no checkpoint yet, or one of another recipe.
    """
    restored = None
    if (run / "checkpoints").is_dir():
        with Checkpoints(run / "checkpoints", 1, read_only=True) as checkpoints:
            restored = checkpoints.restore(target)
    if restored is None:
        raise UserError(f"{run}: has no checkpoint yet; train it first")
    state, saved = restored
    return state, saved["step"]
