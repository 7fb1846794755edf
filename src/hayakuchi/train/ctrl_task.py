"""The CTRL training step: next-token loss of packed windows, accumulated by token count."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int, Key

from hayakuchi.config import CtrlRecipe
from hayakuchi.data.batch import Batch
from hayakuchi.models.ctrl import RULES, Ctrl
from hayakuchi.models.sharding import Rule
from hayakuchi.train.optimizer import make_optimizer, make_schedule
from hayakuchi.train.precision import compute_dtype
from hayakuchi.train.task import Metrics, TrainState


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
    """CTRL under one recipe (see `Task`)."""

    unit = "tokens"

    def __init__(self, recipe: CtrlRecipe) -> None:
        self.recipe = recipe
        self.schedule = make_schedule(recipe.optimizer, recipe.train.steps)
        self.optimizer = make_optimizer(recipe.optimizer, self.schedule)
        self.graph = jax.eval_shape(lambda: nnx.split(self._model(jax.random.key(0)), nnx.Param)[0])

    def init(self, key: Key[Array, ""]) -> TrainState:
        parameters = nnx.to_pure_dict(nnx.state(self._model(key), nnx.Param))
        return TrainState(jnp.int32(0), parameters, self.optimizer.init(parameters))

    def step(self, state: TrainState, batch: Batch, key: Key[Array, ""]) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(key, state.step)
        labels, weights = targets(batch)
        tokens = jnp.sum(weights)
        # Weighted by the tokens of the whole batch, so that micro-batches of 1 and of 7 tokens give the gradient of the
        # one batch of 8.
        loss, gradients = self._accumulate(state.parameters, (batch, labels, weights / jnp.maximum(tokens, 1)), key)
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        metrics = {
            "loss": loss,
            "tokens": tokens,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": jnp.asarray(self.schedule(state.step), jnp.float32),
        }
        return TrainState(state.step + 1, parameters, optimizer), metrics

    def held_out_loss(self, parameters: Any, batch: Batch) -> Metrics:
        labels, weights = targets(batch)
        return {"loss": self._loss(parameters, (batch, labels, weights), None), "tokens": jnp.sum(weights)}

    def show(self, parameters: Any, batch: Batch) -> dict[str, Array]:
        del parameters, batch  # text has nothing to look at
        return {}

    def batch_specs(self) -> list[Batch]:
        shape = (self.recipe.train.batch, self.recipe.model.length)
        return [Batch(*(jax.ShapeDtypeStruct(shape, jnp.int32) for _ in Batch._fields))]

    def rules(self) -> dict[str, Rule]:
        return RULES

    def _model(self, key: Key[Array, ""]) -> Ctrl:
        return Ctrl(self.recipe.model, key, compute_dtype(self.recipe.train.precision))

    def _loss(
        self, parameters: Any, inputs: tuple[Batch, Array, Array], key: Key[Array, ""] | None
    ) -> Float[Array, ""]:
        """Weighted sum of -log p(label) in nats."""
        batch, labels, weights = inputs
        model = nnx.merge(self.graph, parameters)
        hidden = model.hidden(batch.tokens, batch.segments, batch.positions, key)
        loss: Float[Array, ""] = model.loss(hidden, labels, weights)
        return loss

    def _accumulate(
        self, parameters: Any, inputs: tuple[Batch, Array, Array], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], Any]:
        """Loss and gradient summed over micro-batches, one in memory at a time."""
        differentiate = jax.value_and_grad(self._loss)
        parts = self.recipe.train.accumulate
        if parts == 1:
            return differentiate(parameters, inputs, key)

        def add(sums: Any, part: tuple[Any, Key[Array, ""]]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, differentiate(parameters, *part)), None

        # Micro-batch a takes rows a, a + parts, ...: each keeps an equal share of every device's rows.
        split = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), inputs)
        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, parameters))
        sums, _ = lax.scan(add, zeros, (split, jax.random.split(key, parts)))
        return sums
