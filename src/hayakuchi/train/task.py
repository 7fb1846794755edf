"""What a model gives to whoever runs, costs, times or inspects its training."""

from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Float, Int, Key

Metrics = dict[str, Float[Array, ""]]


class TrainState(NamedTuple):
    """All that a step changes.

    Attributes:
      step: number of optimiser steps done.
      parameters: nested dict of float32 arrays.
      optimizer: optimiser state.
      scaler: state of the dynamic loss scale; None where the precision needs none.
      frozen: arrays that steps read and never change, such as a teacher's parameters. Not in checkpoints.
    """

    step: Int[Array, ""]
    parameters: Any
    optimizer: Any
    scaler: Any = None
    frozen: Any = None


class Task(Protocol):
    """A model with its loss and update rule, as pure functions of arrays.

    `train` runs `step`, `plan` costs it, `bench` times it, `inspect` lowers it.

    Attributes:
      unit: what the work of a step is counted in, "tokens" or "frames"; the name of a metric.
      frozen: what `TrainState.frozen` is to be, given to `init`; None where there is nothing of that kind.
    """

    unit: str
    frozen: Any

    def init(self, key: Key[Array, ""], frozen: Any = None) -> TrainState:
        """The state of step 0."""
        ...

    def step(self, state: TrainState, batch: Any, key: Key[Array, ""]) -> tuple[TrainState, Metrics]:
        """One optimiser step. Pure; the same key serves the whole run, since the step number is folded in.

        The metrics hold "loss" at least, which is what `held_out_loss` gives of other data, and `unit` for throughput;
        what is minimised may be more, and has a name of its own. Losses and gradient norms must stay finite.
        """
        ...

    def held_out_loss(self, parameters: Any, batch: Any) -> Metrics:
        """Sums over one held-out batch: "loss" and perhaps others, and `unit` (what to divide them by)."""
        ...

    def show(self, parameters: Any, batch: Any) -> dict[str, Array]:
        """Of one held-out batch what people would rather see or hear: [H, W] pictures and [S] sounds, by name."""
        ...

    def batch_specs(self) -> list[Any]:
        """The batches that come, one a shape, as ShapeDtypeStructs of their global shapes."""
        ...

    def example_batch(self, spec: Any, seed: int = 0) -> Any:
        """A full batch of random content for one of `batch_specs`, as NumPy arrays: work to time and to weigh."""
        ...

    def rules(self) -> Any:
        """Sharding rules by parameter name (`models.sharding.Rule`)."""
        ...
