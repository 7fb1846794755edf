"""The task of a recipe, for whoever times, costs or inspects its step without its data."""

from hayakuchi.config.recipe import Recipe
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.train.ctrl_task import CtrlTask
from hayakuchi.train.task import Task
from hayakuchi.train.vits_task import VitsTask

# A middling clip: 400 frames are 4.3 seconds of 24 kHz, in which some 60 symbols are said, blanks between them.
TYPICAL_BUCKET = Bucket(symbols=128, frames=400)
_EPOCH_STEPS = 1_000  # decides nothing but when the learning rate falls


def make_task(recipe: Recipe, bucket: Bucket = TYPICAL_BUCKET) -> Task:
    """The task of a recipe; a voice's batches are of one `bucket`."""
    if recipe.task == "vits":
        return VitsTask(recipe, [bucket], _EPOCH_STEPS)
    return CtrlTask(recipe)
