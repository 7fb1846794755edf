"""Meshes, and rules that say how a parameter starts and how it is laid over devices.

A mesh has two axes: `data` splits the batch, `fsdp` splits the batch too, and with it the parameters and
optimiser state.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hayakuchi.errors import UserError

Initializer = Callable[[Any, tuple[int, ...], Any], jax.Array]
BATCH = P(("data", "fsdp"))


@dataclass(frozen=True)
class Rule:
    """How the parameters under one name start and lie.

    Attributes:
      init: initialiser, called with (key, shape, dtype).
      spec: mesh axis of each array axis. A stacked parameter (scan over layers) has its layer axis in front, never
        split.
    """

    init: Initializer
    spec: P


@dataclass(frozen=True)
class Layout:
    """How parameters lie that start otherwise than by a rule.

    Attributes:
      spec: mesh axis of the last array axes; those before are whole.
      least: arrays of fewer elements stay whole: a message for each would cost more than its memory.
    """

    spec: P
    least: int


def make_mesh(description: str = "", devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Builds the mesh "data=N,fsdp=M" of `devices`, all there are by default.

    A missing axis is 1; "" puts all devices on `data`.

    Raises:
      UserError: another axis, a size that is no positive integer, or a product that is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices).reshape(mesh_sizes(description, len(devices))), ("data", "fsdp"))


def mesh_sizes(description: str, count: int) -> tuple[int, int]:
    """The sizes of the axes `data` and `fsdp` of the mesh of that description over `count` devices.

    Raises:
      UserError: as `make_mesh`.
    """
    sizes = {"data": 1, "fsdp": 1}
    if not description:
        sizes["data"] = count
    for part in filter(None, description.split(",")):
        match = re.fullmatch(r"\s*(data|fsdp)\s*=\s*([1-9][0-9]{0,5})\s*", part)
        if match is None:
            raise UserError(f"--mesh {description!r}: {part!r} is not data=N or fsdp=N")
        sizes[match[1]] = int(match[2])
    if sizes["data"] * sizes["fsdp"] != count:
        wanted = f"{sizes['data']} x {sizes['fsdp']} devices"
        raise UserError(f"--mesh {description!r} asks for {wanted}; there are {count}")
    return sizes["data"], sizes["fsdp"]


def spec_of(path: str, shape: tuple[int, ...], rules: Mapping[str, Rule | Layout], mesh: Mesh | AbstractMesh) -> P:
    """The partition of the array at `path` ("blocks.0.query.kernel"): that of the longest rule that ends it.

    Without a rule the array is replicated. An axis that the mesh does not divide evenly stays whole.
    """
    name = max((rule for rule in rules if f".{path}".endswith(f".{rule}")), key=len, default=None)
    if name is None:
        return P()
    rule = rules[name]
    if isinstance(rule, Layout) and math.prod(shape) < rule.least:
        return P()
    spec = tuple(rule.spec)
    spec = (None,) * (len(shape) - len(spec)) + spec
    return P(*(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(spec, shape, strict=True)))


def shardings(tree: Any, rules: Mapping[str, Rule | Layout], mesh: Mesh) -> Any:
    """NamedShardings in the structure of `tree` (parameters, or an optimiser state that repeats their paths)."""

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(
            mesh, spec_of(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape, rules, mesh)
        )

    return jax.tree_util.tree_map_with_path(one, tree)


def whole(tree: Any) -> Any:
    """Parameters gathered on every device for use, or gradients summed over all, under `jax.set_mesh`.

    Left to itself XLA would now and then split a layer's activations by channels, as its kernel is, and not by rows.
    Without a mesh, or with no axis that parameters are split over, the tree itself.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["fsdp"] == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, P())


def by_rows(function: Callable[..., Any], x: Any) -> Any:
    """function(x) of an array whose rows do not depend on each other, each device for its own rows.

    For what XLA would gather the rows of: it splits no Fourier transform over devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if _one_device(mesh, x):
        return function(x)
    return jax.shard_map(function, in_specs=BATCH, out_specs=BATCH)(x)


def mean_by_rows(function: Callable[..., Any], parameters: Any, *rows: Any) -> Any:
    """function(parameters, *rows), scalars that are means over the rows, each device for its own rows.

    Nothing but the means and, in the backward pass, the parameters' gradients then goes from device to device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if _one_device(mesh, *rows):
        return function(parameters, *rows)
    axes = mesh.axis_names

    def local(parameters: Any, *rows: Any) -> Any:
        # The sum over devices of the gradient stands here, once, and not at each use of a parameter.
        return jax.lax.pmean(function(jax.lax.pcast(parameters, axes, to="varying"), *rows), axes)

    return jax.shard_map(local, in_specs=(P(), *(BATCH for _ in rows)), out_specs=P())(parameters, *rows)


def _one_device(mesh: Any, *rows: Any) -> bool:
    """Whether there is nothing to divide: no mesh in context, one of one device, or rows that it does not divide."""
    return mesh.empty or mesh.size == 1 or any(len(x) % mesh.size for x in rows)
