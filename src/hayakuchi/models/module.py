"""Modules whose operations carry the module's path, so that profiles and reports can name them."""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from flax import nnx

from hayakuchi.tracing.source import leave_out

leave_out(__file__)

# Of each module below the one that was called first, who holds it and under which name; and whose method is running.
_holders: ContextVar[dict[int, tuple[int, str]]] = ContextVar("_holders")
_running: ContextVar[int] = ContextVar("_running", default=0)


class Module(nnx.Module):
    """An `nnx.Module` whose public methods compute inside `jax.named_scope`s: "ctrl/blocks/0/attention".

    The name is the attribute under which the module that was called first, or one below it, holds this one. One that is
    made or merged on the way, such as the block in a scan, goes by its class. Scopes change no number and no parameter.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            if callable(method) and not isinstance(method, type) and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, _scoped(method))


@contextmanager
def within(module: Module, name: str) -> Iterator[None]:
    """Names what is computed in the block after a module whose parts are called from outside of it."""
    running = _running.set(id(module))
    try:
        with jax.named_scope(name):
            yield
    finally:
        _running.reset(running)


def _scoped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Module, *arguments: Any, **named: Any) -> Any:
        running = _running.get()
        if running == id(self):
            return method(self, *arguments, **named)
        holders = _holders.get(None)
        first = _holders.set(dict(_below(self))) if holders is None else None
        mine = _running.set(id(self))
        try:
            with jax.named_scope(_path(self, running, holders or {})):
                return method(self, *arguments, **named)
        finally:
            _running.reset(mine)
            if first is not None:
                _holders.reset(first)

    return call


def _path(module: Module, running: int, holders: dict[int, tuple[int, str]]) -> str:
    """The names from the module whose method is running, or from the first one, to this one."""
    parts: list[str] = []
    at = id(module)
    while at in holders and at != running:
        at, name = holders[at]
        parts.insert(0, name)
    return "/".join(parts) or _snake(type(module).__name__)


def _below(module: Module) -> Iterator[tuple[int, tuple[int, str]]]:
    """The modules in a module, each with who holds it and the attribute: "norm", "blocks/0"."""
    for name, value in vars(module).items():
        held = [(name, value)]
        if isinstance(value, list | tuple | nnx.List):
            held = [(f"{name}/{place}", each) for place, each in enumerate(value)]
        for told, each in held:
            if isinstance(each, Module):
                yield id(each), (id(module), told)
                yield from _below(each)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("_")).lower()
