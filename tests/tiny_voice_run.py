"""A tiny VITS of random parameters as a voice, in memory and as a run directory."""

import dataclasses
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hayakuchi import config
from hayakuchi.config import TrainConfig
from hayakuchi.config.vits import VitsOptimizerConfig, VitsRecipe
from hayakuchi.data.speech_shards import SpeechCounts, SpeechInfo
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.models.vits.model import Vits
from hayakuchi.speech.symbols import INVENTORY
from hayakuchi.train.checkpoint import Checkpoints
from hayakuchi.train.task import TrainState
from vits_models import small_config

NAMES = ("haru", "natsu", "aki")


def tiny_voice_run(*, names=NAMES, seed=0, **sizes):
    """Speaks 500 frames of 16 samples a second; a symbol takes a few frames."""
    speakers = len(names) if len(names) > 1 else 0
    model = small_config(vocabulary_size=INVENTORY.size, speakers=speakers, **sizes)
    front_end = {"engine": "haqumei", "version": f"haqumei {importlib.metadata.version('haqumei')}", "devoiced": "keep"}
    counts = {split: {name: SpeechCounts(1, 1.0) for name in names} for split in ("train", "heldout")}
    info = SpeechInfo(model.audio.sample_rate_hz, names, INVENTORY, front_end, counts)

    # Drawn by NumPy: the model's own start is many small programs, which take their time to compile.
    graph, parameters = nnx.split(nnx.eval_shape(lambda: Vits(model, jax.random.key(0))), nnx.Param)
    draw = np.random.default_rng(seed)

    def drawn(path, leaf):
        around = 1.0 if path[-1].key in ("gain", "scale") else 0.0
        return jnp.asarray(around + 0.2 * draw.standard_normal(leaf.shape, np.float32), leaf.dtype)

    parameters = jax.tree_util.tree_map_with_path(drawn, nnx.to_pure_dict(parameters))
    return VoiceRun(nnx.merge(graph, parameters), VitsRecipe(name="tiny", model=model), info, 7)


def save_voice(run, folder, average=None):
    """Writes the run directory that training would leave; with `average`, another voice as the running average."""
    recipe = dataclasses.replace(run.recipe, train=TrainConfig(batch=2, steps=7))
    parameters = {"generator": pure(run.model), "discriminators": {"scale": jnp.zeros(3)}}
    if average is not None:
        recipe = dataclasses.replace(recipe, optimizer=VitsOptimizerConfig(average_decay=0.9))
        parameters["average"] = pure(average.model)
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(config.to_json(recipe))
    run.info.save(folder / "dataset.json")
    with Checkpoints(folder / "checkpoints", keep=2) as checkpoints:
        state = TrainState(jnp.int32(run.step), parameters, {"mu": jnp.ones(2)})
        checkpoints.save(run.step, state, jax.random.key(0), 0, config.to_dict(recipe))
    return folder


def pure(model):
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))
