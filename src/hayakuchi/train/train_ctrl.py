"""`train` for CTRL: a recipe, a prepared text data set and a run directory."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax

from hayakuchi.config import CtrlRecipe
from hayakuchi.data.batches import HeldoutBatches, TextBatches
from hayakuchi.data.shards import INFO_FILE, TOKENIZER_FILE, DatasetInfo, open_split
from hayakuchi.errors import UserError
from hayakuchi.train import session
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.teacher import adopt_teacher, check_teacher

DATA_FILES = (TOKENIZER_FILE, INFO_FILE)
HELD_OUT_BATCHES = 16  # enough for a curve; `evaluate` measures the whole split


def train_ctrl(recipe: CtrlRecipe, run: Path, data: Path, *, verify_data: bool = False) -> dict[str, Any]:
    """Trains CTRL, or goes on where the run in `run` stopped.

    Args:
      recipe: settings; the vocabulary size is the data set's.
      run: run directory, made if missing.
      data: data set directory of `prepare text`.
      verify_data: check its checksums even if that was done on this machine before.

    Returns:
      The session's summary (see `session.train`).

    Raises:
      UserError: the data set, the run directory or the recipe do not fit together.
    """
    session.connect_processes()
    info = DatasetInfo.load(data / INFO_FILE)
    model = dataclasses.replace(recipe.model, vocabulary_size=info.vocabulary_size)
    recipe = dataclasses.replace(recipe, model=model)
    try:
        files = {name: (data / name).read_bytes() for name in DATA_FILES}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror}); prepare the data set again") from error
    processes = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    length, batch = model.length, recipe.train.batch
    batches = TextBatches(
        open_split(data, "train", verify=verify_data), recipe.data, length, batch, codes=info.codes, **processes
    )
    heldout_shards = open_split(data, "heldout", verify=verify_data)
    held_out = list(itertools.islice(HeldoutBatches(heldout_shards, length, batch, **processes), HELD_OUT_BATCHES))
    source = recipe.distillation.teacher
    if source:
        check_teacher(run, Path(source), data)
    with session.open_run(run, recipe, files, data):
        teacher = adopt_teacher(run, Path(source)) if source else None
        return session.train(CtrlTask(recipe, teacher), recipe, run, batches.iterate, held_out)
