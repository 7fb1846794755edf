"""`train` for VITS: a recipe, a prepared speech data set and a run directory."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax

from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.speech_batches import SpeechBatches, heldout_batches
from hayakuchi.data.speech_shards import INFO_FILE, SpeechInfo, open_speech_split
from hayakuchi.errors import UserError
from hayakuchi.train import media, session
from hayakuchi.train.vits_task import VitsTask, framing

logger = logging.getLogger(__name__)

HELD_OUT_BATCHES = 4


def fitted(recipe: VitsRecipe, info: SpeechInfo, data: Path) -> VitsRecipe:
    """The recipe with the symbols and speakers of the data set `data`; UserError where that is of another rate."""
    rate = recipe.model.audio.sample_rate_hz
    if info.sample_rate_hz != rate:
        raise UserError(
            f"{data}: prepared at {info.sample_rate_hz} Hz, {recipe.name} has {rate} Hz: prepare it anew with "
            f"--sample-rate {rate}"
        )
    speakers = len(info.speakers) if len(info.speakers) > 1 else 0
    model = dataclasses.replace(recipe.model, vocabulary_size=info.inventory.size, speakers=speakers)
    return dataclasses.replace(recipe, model=model)


def train_vits(recipe: VitsRecipe, run: Path, data: Path, *, verify_data: bool = False) -> dict[str, Any]:
    """Trains VITS, or goes on where the run in `run` stopped.

    Args:
      recipe: settings; symbols and speakers are the data set's.
      run: run directory, made if missing.
      data: data set directory of `prepare speech`.
      verify_data: check its checksums even if that was done on this machine before.

    Returns:
      The session's summary (see `session.train`).

    Raises:
      UserError: the data set, the run directory or the recipe do not fit together.
    """
    session.connect_processes()
    info = SpeechInfo.load(data / INFO_FILE)
    recipe = fitted(recipe, info, data)
    processes = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    frames, batch = framing(recipe), recipe.train.batch
    clips = open_speech_split(data, "train", verify=verify_data)
    batches = SpeechBatches(clips, recipe.data, batch, frames, **processes)
    task = VitsTask(recipe, batches.buckets, batches.epoch_batches)
    held_out_clips = open_speech_split(data, "heldout", verify=verify_data)
    devices = session.fitting_mesh(recipe.train).size
    held_out = list(
        heldout_batches(held_out_clips, batches.buckets[-1], batch, frames, HELD_OUT_BATCHES, devices, **processes)
    )
    if not held_out:
        logger.warning(
            "%s: no held-out clip to measure and to show: there will be no held-out loss and no samples", data
        )
    media.check_installed()
    with session.open_run(run, recipe, {INFO_FILE: (data / INFO_FILE).read_bytes()}, data):
        return session.train(task, recipe, run, batches.iterate, held_out)
