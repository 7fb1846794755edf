"""What a run leaves when its loss or gradient is no longer finite: the step as it was about to be made.

A step gives its memory to the next, so the state before the bad one is gone by the time it is found out. It is computed
again from the checkpoint before it, where the same data and the same key come again.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from hayakuchi import config, progress
from hayakuchi.config.recipe import RECIPE_FILE, Recipe, read_recipe
from hayakuchi.data.batch import Batch, SpeechBatch
from hayakuchi.data.batches import BatchIterator
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.errors import UserError
from hayakuchi.models.sharding import make_mesh
from hayakuchi.train.checkpoint import Checkpoints
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.loop import Compiled, abstract_state
from hayakuchi.train.task import Task, TrainState
from hayakuchi.train.tasks import make_task
from hayakuchi.train.teacher import adopt_teacher
from hayakuchi.train.vits_task import framing

logger = logging.getLogger(__name__)

_FOLDER = "nonfinite"
_LARGEST_BATCH_BYTES = 4 << 30

Start = tuple[TrainState, Any, int]


def dump_step(
    programs: Compiled,
    step: int,
    start: Callable[[], Start],
    batches: Callable[[int], BatchIterator[Any]],
    recipe: Recipe,
    run: Path,
) -> Path | None:
    """Keeps state, batch and key of a bad step in the run's directory.

    Args:
      programs: of the run.
      step: the first step that is known to be bad; the cause may lie before it, in a state that is not finite.
      start: gives the state of the newest checkpoint, or the first one, with key and position of the data.
      batches: gives the training stream from a position on.
      recipe: of the run.
      run: its directory.

    Returns:
      The folder, for `read_dump`; None, with a warning, where it could not be written or somebody did not want to wait.
    """
    try:
        state, key, position, batch = _before(programs, step, start, batches)
        folder = run / _FOLDER / f"step-{int(state.step) + 1}"
        _write(folder, state, key, position, batch, recipe)
    except KeyboardInterrupt:
        logger.warning("interrupted: the bad step is not kept")
        return None
    except (UserError, OSError) as error:
        logger.warning("the bad step could not be kept: %s", error)
        return None
    return folder


def _before(
    programs: Compiled, step: int, start: Callable[[], Start], batches: Callable[[int], BatchIterator[Any]]
) -> tuple[TrainState, Any, int, Any]:
    """State, key and position before the first step that gives something that is not finite, and that step's batch."""
    while True:
        state, key, position = start()
        first = int(state.step)
        stream = batches(position)
        with progress.bar("the state before the bad step", max(step - 1 - first, 1)) as bar:
            while int(state.step) < step - 1:
                state, _ = programs.step(state, programs.place(next(stream)), key)
                bar.advance(1)
                if not programs.finite(state):
                    break
            else:
                return state, key, stream.position, next(stream)
        step = int(state.step)  # the state was bad before the loss was


def _write(folder: Path, state: TrainState, key: Any, position: int, batch: Any, recipe: Recipe) -> None:
    if jax.process_index() == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of the same run, tried again
        folder.mkdir(parents=True)
        (folder / RECIPE_FILE).write_text(config.to_json(recipe), encoding="utf-8")
    multihost_utils.sync_global_devices("there is a folder for the bad step")
    np.savez(folder / f"batch-{jax.process_index()}.npz", **batch._asdict())
    with Checkpoints(folder / "state", keep=1) as checkpoints:
        saved = state._replace(frozen=None)
        checkpoints.save(int(state.step), saved, key, position, config.to_dict(recipe))


@dataclass(frozen=True)
class Dump:
    """A step as it was about to be made.

    Attributes:
      recipe: of the run.
      state: before the step, on the devices of this machine.
      batch: of all processes, as NumPy arrays.
      key: of the run.
      folder: where it is kept.
    """

    recipe: Recipe
    state: TrainState
    batch: Any
    key: Any
    folder: Path

    def task(self, recipe: Recipe | None = None) -> Task:
        """The run's task, or that of a `recipe` of other arithmetic."""
        return _task_of(recipe or self.recipe, self.batch, self.folder)


def read_dump(folder: Path) -> Dump:
    """Reads what `dump_step` wrote.

    Raises:
      UserError: it is no such folder, or a file of it is damaged.
    """
    if not (folder / RECIPE_FILE).is_file() or not (folder / "state").is_dir():
        raise UserError(f"{folder}: not a step that `train` kept (RUN/{_FOLDER}/step-N)")
    recipe = read_recipe(folder / RECIPE_FILE)
    batch = _read_batch(folder, SpeechBatch if recipe.task == "vits" else Batch)
    task = _task_of(recipe, batch, folder)
    target = abstract_state(task, make_mesh("data=1", jax.devices()[:1]))
    with Checkpoints(folder / "state", 1, read_only=True) as checkpoints:
        found = checkpoints.restore(target._replace(frozen=None))
    if found is None:
        raise UserError(f"{folder}: its state was not written whole; run `train` again")
    state, record = found
    key = jax.random.wrap_key_data(jnp.asarray(record["key"], jnp.uint32))
    return Dump(recipe, state._replace(frozen=task.frozen), batch, key, folder)


def _read_batch(folder: Path, kind: type[Batch | SpeechBatch]) -> Any:
    parts = []
    # By number: batch-10 comes after batch-2.
    for path in sorted(folder.glob("batch-*.npz"), key=lambda path: (len(path.name), path.name)):
        if path.stat().st_size > _LARGEST_BATCH_BYTES:
            raise UserError(f"{path}: over {_LARGEST_BATCH_BYTES:,} bytes; not a batch that `train` kept")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                parts.append([arrays[name] for name in kind._fields])
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise UserError(f"{path}: damaged ({error}); run `train` again") from error
    if not parts:
        raise UserError(f"{folder}: has no batch-0.npz; run `train` again")
    return kind(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _task_of(recipe: Recipe, batch: Any, folder: Path) -> Task:
    if recipe.task == "vits":
        frame = framing(recipe)
        frames = batch.audio.shape[1] // frame.hop - frame.margin
        return make_task(recipe, Bucket(symbols=batch.symbols.shape[1], frames=frames))
    source = recipe.distillation.teacher
    return CtrlTask(recipe, adopt_teacher(folder.parents[1], Path(source))) if source else make_task(recipe)
