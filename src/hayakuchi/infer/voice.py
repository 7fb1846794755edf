"""A trained voice read back from its run directory, with all that speaking and converting need."""

import dataclasses
import difflib
import logging
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import jax
from flax import nnx

from hayakuchi import config
from hayakuchi.config import Precision
from hayakuchi.config.recipe import RECIPE_FILE
from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.speech_shards import INFO_FILE, SpeechInfo
from hayakuchi.errors import UserError
from hayakuchi.infer.run import task_of
from hayakuchi.models.vits.model import Vits
from hayakuchi.speech.frontend import Devoiced, FrontEnd, make_front_end
from hayakuchi.speech.symbols import INVENTORY_VERSION
from hayakuchi.train.precision import compute_dtype
from hayakuchi.train.restore import restore_newest

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 20


@dataclass(frozen=True)
class VoiceRun:
    """A VITS generator with its speakers and symbols.

    Attributes:
      model: the generator with the restored parameters, those of the running average if the run keeps one.
      recipe: the settings it was trained with.
      info: description of the data set: speakers, symbol inventory, front end.
      step: optimiser steps the parameters have behind them.
    """

    model: Vits
    recipe: VitsRecipe
    info: SpeechInfo
    step: int

    @property
    def sample_rate_hz(self) -> int:
        """Of all audio, in and out."""
        return self.recipe.model.audio.sample_rate_hz

    def speaker_id(self, speaker: str) -> int:
        """The index of a speaker given by name or, where no speaker has that name, by index; "" is the first one.

        Raises:
          UserError: no such speaker; the message lists them.
        """
        names = self.info.speakers
        if not speaker:
            return 0
        if speaker in names:
            return names.index(speaker)
        composed = [unicodedata.normalize("NFC", name) for name in names]
        if (same := unicodedata.normalize("NFC", speaker)) in composed:
            return composed.index(same)
        if speaker.isascii() and speaker.isdecimal() and len(speaker) < 10 and int(speaker) < len(names):
            return int(speaker)
        close = difflib.get_close_matches(speaker, names, 1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        raise UserError(
            f"speaker {speaker!r} is not one of this voice's{guess}: {', '.join(names[:_NAMES_SHOWN])}{more}; "
            f"or an index, 0 to {len(names) - 1}"
        )

    def front_end(self, user_dictionary: Path | None = None) -> FrontEnd:
        """What reads text for this voice: the engine and the options that read its training data.

        Raises:
          UserError: a user dictionary that cannot be used.
          MissingExtraError: the engine is not installed.
        """
        settings = self.info.front_end
        devoiced: Devoiced = "fold" if settings["devoiced"] == "fold" else "keep"
        front_end = make_front_end(
            settings["engine"], user_dictionary=user_dictionary, devoiced=devoiced, inventory=self.info.inventory
        )
        if front_end.version != settings["version"]:
            logger.warning(
                "%s reads for a voice that was trained with %s: some words may sound odd",
                front_end.version,
                settings["version"],
            )
        return front_end


def load_voice(run: Path, precision: Precision = "float32") -> VoiceRun:
    """Reads the newest checkpoint of a voice onto one device.

    Args:
      run: run directory of a VITS recipe.
      precision: arithmetic of the model, whatever it was trained in.

    Raises:
      UserError: not a run directory, a run of another task, no checkpoint yet, a damaged file, or files that do not
        belong together.
    """
    if (task := task_of(run)) != "vits":
        raise UserError(f"{run}: a {task} run has no voice; train one with a recipe such as vits-nano")
    recipe = config.read_json(VitsRecipe, run / RECIPE_FILE)
    info = SpeechInfo.load(run / INFO_FILE)
    _check(run, recipe, info)
    graph, abstract = nnx.split(
        nnx.eval_shape(lambda: Vits(recipe.model, jax.random.key(0), compute_dtype(precision))), nnx.Param
    )
    # Training keeps the running average beside the generator.
    part = "average" if recipe.optimizer.average_decay else "generator"
    layout = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    parameters = {"parameters": {part: nnx.to_pure_dict(abstract)}}
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout), parameters)
    state, step = restore_newest(run, target)
    model = nnx.merge(graph, state["parameters"][part])
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, precision=precision))
    return VoiceRun(model, recipe, info, step)


def _check(run: Path, recipe: VitsRecipe, info: SpeechInfo) -> None:
    """Raises UserError where recipe and data set contradict each other, or are of a later version of this program."""
    if info.inventory.version > INVENTORY_VERSION:
        raise UserError(
            f"{run / INFO_FILE}: symbol inventory version {info.inventory.version}, this program knows "
            f"{INVENTORY_VERSION}; use a newer Hayakuchi"
        )
    model = recipe.model
    for name, ours, theirs in (
        ("symbols", model.vocabulary_size, info.inventory.size),
        ("speakers", model.speakers or 1, len(info.speakers)),
        ("samples a second", model.audio.sample_rate_hz, info.sample_rate_hz),
    ):
        if ours != theirs:
            raise UserError(
                f"{run}: {RECIPE_FILE} has {ours} {name}, {INFO_FILE} {theirs}; one of the files is not of this run"
            )
