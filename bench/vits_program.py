"""Our VITS training step as a compiled program, for the cases that time, weigh or take it apart."""

import dataclasses
import time
from typing import Any, NamedTuple

import jax
from tests.helpers import count_equations

from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.batch import SpeechBatch
from hayakuchi.data.speech_batches import Bucket
from hayakuchi.train.task import TrainState
from hayakuchi.train.vits_task import VitsTask


class Program(NamedTuple):
    """A step and what it cost to make. Memory is the compiler's account: arguments are kept in place by donation."""

    step: Any
    state: TrainState
    batch: SpeechBatch
    key: Any
    facts: dict[str, Any]


def resized(recipe: VitsRecipe, *, batch: int, precision: str = "float32", **model: Any) -> VitsRecipe:
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, **model),
        train=dataclasses.replace(recipe.train, batch=batch, precision=precision),
    )


def compile_step(recipe: VitsRecipe, bucket: Bucket) -> Program:
    """Traces and compiles the step as `loop.compile_task` does, for one shape; the state and batch are not yet made."""
    jax.config.update("jax_enable_compilation_cache", False)
    task = VitsTask(recipe, [bucket], epoch_steps=1)
    key = jax.random.key(0)
    state, [batch] = jax.eval_shape(task.init, key), task.batch_specs()
    started = time.perf_counter()
    traced = jax.jit(task.step, donate_argnums=0).trace(state, batch, key)
    traced_at = time.perf_counter()
    compiled = traced.lower().compile()
    done = time.perf_counter()
    memory = compiled.memory_analysis()
    facts = {
        "equations": count_equations(traced.jaxpr.jaxpr),
        "trace_seconds": round(traced_at - started, 2),
        "lower_and_compile_seconds": round(done - traced_at, 2),
        "start_seconds": round(done - started, 2),
        "arguments_megabytes": round(memory.argument_size_in_bytes / 1e6),
        "temporaries_megabytes": round(memory.temp_size_in_bytes / 1e6),
        "outputs_not_in_place_megabytes": round((memory.output_size_in_bytes - memory.alias_size_in_bytes) / 1e6),
    }
    return Program(compiled, state, batch, key, facts)


def filled(program: Program, recipe: VitsRecipe, batch: SpeechBatch) -> Program:
    """The program with a state of step 0 and this batch, both on the device."""
    task = VitsTask(recipe, [], epoch_steps=1)
    return program._replace(state=jax.jit(task.init)(program.key), batch=jax.tree.map(jax.numpy.asarray, batch))


def full_batch(recipe: VitsRecipe, bucket: Bucket, seed: int = 0) -> SpeechBatch:
    """Random symbols and noise; every clip fills its row, so that no work is padding."""
    task = VitsTask(recipe, [bucket], epoch_steps=1)
    [spec] = task.batch_specs()
    return task.example_batch(spec, seed)
