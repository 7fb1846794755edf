"""The CTRL training step: next-token loss of packed windows, accumulated by token count."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int, Key

from hayakuchi.config import CtrlConfig, CtrlRecipe
from hayakuchi.data.batch import Batch
from hayakuchi.models import ops
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.models.ctrl_blocks import RULES
from hayakuchi.models.sharding import Rule
from hayakuchi.train.optimizer import make_optimizer, make_schedule, used_rate
from hayakuchi.train.precision import (
    compute_dtype,
    first_scale,
    guarded,
    next_scale,
    scale_metrics,
    told_norm,
    unscaled,
)
from hayakuchi.train.task import Metrics, TrainState
from hayakuchi.train.teacher import Teacher, started
from hayakuchi.train.watch import tap


def targets(batch: Batch) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """Labels and weights of a packed batch.

    The label of a position is the next token. It counts (weight 1) unless the next position belongs to another segment,
    is padding, or is past the window's end: a rolled label with weight 0 keeps the shape.
    """
    labels = jnp.roll(batch.tokens, -1, axis=1)
    following = jnp.roll(batch.segments, -1, axis=1).at[:, -1].set(0)
    weights = (batch.segments == following) & (batch.segments > 0)
    return labels, weights.astype(jnp.float32)


class CtrlTask:
    """CTRL under one recipe (see `Task`).

    Args:
      recipe: settings.
      teacher: whom the recipe's distillation learns from; None learns from the text alone.
    """

    unit = "tokens"

    def __init__(self, recipe: CtrlRecipe, teacher: Teacher | None = None) -> None:
        self.recipe = recipe
        self.teacher = teacher
        self.frozen = None if teacher is None else teacher.parameters
        self.schedule = make_schedule(recipe.optimizer, recipe.train.steps)
        self.optimizer = make_optimizer(recipe.optimizer, self.schedule)
        self.graph = self._graph(recipe.model)
        self.teacher_graph: Any = None if teacher is None else self._graph(teacher.config)

    def init(self, key: Key[Array, ""], frozen: Any = None) -> TrainState:
        parameters = nnx.to_pure_dict(nnx.state(self._model(key), nnx.Param))
        if self.teacher is not None:
            parameters = started(parameters, self.recipe.model, frozen, self.teacher.config)
        scaler = first_scale(self.recipe.train.precision)
        return TrainState(jnp.int32(0), parameters, self.optimizer.init(parameters), scaler, frozen)

    def step(self, state: TrainState, batch: Batch, key: Key[Array, ""]) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(key, state.step)
        labels, weights = targets(batch)
        tokens = jnp.sum(weights)
        # Weighted by the tokens of the whole batch, so that micro-batches of 1 and of 7 tokens give the gradient of the
        # one batch of 8. The loss scale comes in here, before any gradient is rounded.
        scale = 1.0 if state.scaler is None else state.scaler.scale
        weights *= scale / jnp.maximum(tokens, 1)
        sums = self._accumulate(state.parameters, (batch, labels, weights), key, state.frozen)
        losses, gradients = unscaled(sums, state.scaler)
        tap("gradients", gradients)
        with jax.named_scope("optimizer"):
            updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.parameters)
            parameters = optax.apply_updates(state.parameters, updates)
            norm = optax.tree.norm(gradients)
        before = (state.parameters, state.optimizer)
        (parameters, optimizer), finite = guarded(state.scaler, gradients, (parameters, optimizer), before)
        scaler = None if state.scaler is None else next_scale(state.scaler, finite)
        metrics = {
            **losses,
            "tokens": tokens,
            "gradient_norm": told_norm(norm, state.scaler),
            "learning_rate": used_rate(self.schedule, state.optimizer),
            **scale_metrics(scaler, state.scaler),
        }
        return TrainState(state.step + 1, parameters, optimizer, scaler, state.frozen), metrics

    def held_out_loss(self, parameters: Any, batch: Batch) -> Metrics:
        labels, weights = targets(batch)
        model = nnx.merge(self.graph, parameters)
        hidden = model.hidden(batch.tokens, batch.segments, batch.positions)
        return {"loss": model.loss(hidden, labels, weights), "tokens": jnp.sum(weights)}

    def show(self, parameters: Any, batch: Batch) -> dict[str, Array]:
        del parameters, batch  # text has nothing to look at
        return {}

    def batch_specs(self) -> list[Batch]:
        shape = (self.recipe.train.batch, self.recipe.model.length)
        return [Batch(*(jax.ShapeDtypeStruct(shape, jnp.int32) for _ in Batch._fields))]

    def example_batch(self, spec: Batch, seed: int = 0) -> Batch:
        rows, length = spec.tokens.shape
        tokens = np.random.default_rng(seed).integers(0, self.recipe.model.vocabulary_size, (rows, length), np.int32)
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
        return Batch(tokens, np.ones((rows, length), np.int32), positions)

    def rules(self) -> dict[str, Rule]:
        return RULES

    def _model(self, key: Key[Array, ""]) -> Ctrl:
        settings = self.recipe.train
        return Ctrl(self.recipe.model, key, compute_dtype(settings.precision), settings.remat)

    def _graph(self, config: CtrlConfig) -> Any:
        """A model's structure without its parameters, in the run's arithmetic."""
        settings = self.recipe.train
        dtype = compute_dtype(settings.precision)
        return jax.eval_shape(lambda: nnx.split(Ctrl(config, jax.random.key(0), dtype, settings.remat), nnx.Param)[0])

    def _loss(
        self, parameters: Any, inputs: tuple[Batch, Array, Array], key: Key[Array, ""], frozen: Any
    ) -> tuple[Float[Array, ""], Metrics]:
        """What is minimised, and what to log: "loss", the weighted sum of -log p(label) in nats, as held out.

        With a teacher another mixture is minimised, "distillation_loss" (see `ops.distilled_loss`).
        """
        batch, labels, weights = inputs
        model = nnx.merge(self.graph, parameters)
        hidden = model.hidden(batch.tokens, batch.segments, batch.positions, key)
        if self.teacher is None:
            loss = model.loss(hidden, labels, weights)
            return loss, {"loss": loss}
        teacher: Ctrl = nnx.merge(self.teacher_graph, frozen)
        told = ops.Teacher(
            teacher.hidden(batch.tokens, batch.segments, batch.positions),
            teacher.embedding[...],
            teacher.vocabulary_bias[...],
        )
        settings = self.recipe.distillation
        mixture, loss = model.distilled_loss(
            hidden, labels, weights, told, settings.soft_weight, settings.soft_temperature
        )
        return mixture, {"loss": loss, "distillation_loss": mixture}

    def _accumulate(
        self, parameters: Any, inputs: tuple[Batch, Array, Array], key: Key[Array, ""], frozen: Any
    ) -> tuple[Metrics, Any]:
        """Losses and gradient summed over micro-batches, one in memory at a time."""

        def differentiate(
            parameters: Any, inputs: tuple[Batch, Array, Array], key: Key[Array, ""]
        ) -> tuple[Metrics, Any]:
            gradients, losses = jax.grad(self._loss, has_aux=True)(parameters, inputs, key, frozen)
            return losses, gradients

        parts = self.recipe.train.accumulate
        if parts == 1:
            return differentiate(parameters, inputs, key)

        def add(sums: Any, part: tuple[Any, Key[Array, ""]]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, differentiate(parameters, *part)), None

        # Micro-batch a takes rows a, a + parts, ...: each keeps an equal share of every device's rows.
        split = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), inputs)
        names = ("loss",) if self.teacher is None else ("loss", "distillation_loss")
        zeros = (dict.fromkeys(names, jnp.float32(0)), jax.tree.map(jnp.zeros_like, parameters))
        sums, _ = lax.scan(add, zeros, (split, jax.random.split(key, parts)))
        return sums
