"""What a recipe's step takes on given devices: operations, bytes and memory, from one abstract trace of the step."""

import dataclasses
from typing import Any

from hayakuchi.config.recipe import Recipe
from hayakuchi.errors import UserError
from hayakuchi.plan.compile import digest, remember, remembered
from hayakuchi.plan.devices import Devices
from hayakuchi.runtime import set_up_jax


@dataclasses.dataclass(frozen=True)
class Cost:
    """A step's cost; the bytes are those of one device.

    Attributes:
      parameters: numbers that are trained, the running average of a voice left out.
      state_bytes: parameters, optimiser state and what else a checkpoint holds, on all devices together, each once.
      products: operations of matrix products and convolutions, over all devices.
      operations: all floating-point operations, over all devices.
      units: tokens or frames of a step, as `unit` says.
      unit: what they are.
      arguments: bytes of the state and the batch.
      temporaries: bytes that live besides at the worst moment.
      moved: bytes that are read and written.
      gradients: bytes that are summed over all devices.
    """

    parameters: int
    state_bytes: int
    products: int
    operations: int
    units: int
    unit: str
    arguments: int
    temporaries: int
    moved: int
    gradients: int

    @property
    def memory(self) -> int:
        return self.arguments + self.temporaries


def check_batch(recipe: Recipe, devices: Devices) -> None:
    """Raises a UserError where the batch cannot be divided as the recipe says."""
    parts = devices.count * recipe.train.accumulate
    if recipe.train.batch % parts:
        near = max(recipe.train.batch // parts, 1) * parts
        raise UserError(
            f"--batch {recipe.train.batch} must be a multiple of devices x accumulate "
            f"({devices.count} x {recipe.train.accumulate}); {near} is near"
        )


def with_train(recipe: Recipe, **settings: Any) -> Recipe:
    """The recipe with other settings of its section `train`."""
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **settings))


def cost_of(recipe: Recipe, devices: Devices) -> Cost:
    """The cost of a recipe's step; known from the last time where nothing has changed since.

    Raises:
      UserError: the batch or the mesh does not suit the devices.
    """
    check_batch(recipe, devices)
    name = digest(recipe, "cost", devices.platform, devices.count)
    known = remembered(name)
    if known is not None:
        return Cost(**known)
    cost = _trace(recipe, devices)
    remember(name, dataclasses.asdict(cost))
    return cost


def _trace(recipe: Recipe, devices: Devices) -> Cost:
    set_up_jax()  # here, since a cost that is known needs no JAX
    import jax
    from jax.sharding import AbstractMesh

    from hayakuchi.models.ops import traced_for
    from hayakuchi.models.sharding import mesh_sizes, spec_of
    from hayakuchi.plan.flops import count_flops
    from hayakuchi.plan.memory import estimate_memory
    from hayakuchi.train.tasks import TYPICAL_BUCKET, make_task

    sizes = mesh_sizes(recipe.train.mesh, devices.count)
    # Each device computes its rows of the batch, so one device's step is traced.
    rows = with_train(recipe, batch=recipe.train.batch // devices.count, mesh="")
    with traced_for(devices.platform):
        task = make_task(rows)
        key = jax.random.key(0)
        state = jax.eval_shape(task.init, key, task.frozen)
        batch = task.batch_specs()[0]
        jaxpr = jax.make_jaxpr(task.step)(state, batch, key)
    mesh, shares = AbstractMesh(sizes, ("data", "fsdp")), {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        place = jax.tree_util.keystr(path, simple=True, separator=".")
        if any(spec_of(place, leaf.shape, task.rules(), mesh)):
            shares[tuple(leaf.shape)] = sizes[1]
    estimate = estimate_memory(jaxpr, devices.platform, shares)
    flops = count_flops(jaxpr)
    trained = state.parameters
    if recipe.task == "vits":
        trained = {name: part for name, part in trained.items() if name != "average"}
    leaves = jax.tree.leaves(trained)
    if recipe.task == "vits":
        units = recipe.train.batch * TYPICAL_BUCKET.frames
    else:
        units = recipe.train.batch * recipe.model.length
    return Cost(
        parameters=sum(leaf.size for leaf in leaves),
        state_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        products=flops.products * devices.count,
        operations=flops.total * devices.count,
        units=units,
        unit=task.unit,
        arguments=estimate.arguments,
        temporaries=estimate.temporaries,
        moved=estimate.moved,
        gradients=4 * sum(leaf.size for leaf in leaves) if devices.count > 1 else 0,
    )
