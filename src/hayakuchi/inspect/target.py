"""What `inspect` looks at: a recipe's training step, or a function in a user's file."""

import functools
import importlib.util
import inspect as python_inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from hayakuchi import config
from hayakuchi.config.recipe import Recipe
from hayakuchi.errors import UserError
from hayakuchi.inspect.loops import source_of

PACKAGE = str(Path(__file__).parents[1])
# Code of ours that looks on while a step is traced, and is no part of it.
_ONLOOKERS = tuple(f"{PACKAGE}/{name}" for name in ("inspect", "tracing", "cli.py", "__main__.py"))
_INSTALLED = ("/site-packages/", "/dist-packages/", sysconfig.get_path("stdlib") + "/")
_ARGUMENTS = "example_args"


@dataclass(frozen=True)
class Target:
    """Something to trace.

    Attributes:
      name: for people.
      trace: gives the traced programs: one of a recipe, one a call of a function.
      is_own: whether a file is of the code that is looked at.
      calls: of a user's function the arguments of each call.
      function: of a user's file, else None.
      place: "FILE:LINE" of the function's `def`; "" of a recipe.
      recipe: None of a user's file.
      request: what another process makes the same target of.
    """

    name: str
    trace: Callable[[], list[jax.stages.Traced]]
    is_own: Callable[[str], bool]
    calls: Sequence[tuple[Any, ...]] = ()
    function: Any = None
    place: str = ""
    recipe: Recipe | None = None
    request: dict[str, Any] = field(default_factory=dict)


def is_file(target: str) -> bool:
    """Whether a target names a function in a file, and not a recipe."""
    path, _, function = target.rpartition(":")
    return (path.endswith(".py") and function.isidentifier()) or target.endswith(".py")


def of_recipe(recipe: Recipe) -> Target:
    """The training step of a recipe on one device of this machine."""
    from hayakuchi.models.sharding import make_mesh
    from hayakuchi.train.loop import trace_steps
    from hayakuchi.train.tasks import make_task

    def trace() -> list[jax.stages.Traced]:
        mesh = make_mesh(recipe.train.mesh or "data=1", None if recipe.train.mesh else jax.devices()[:1])
        return [traced for _, traced in trace_steps(make_task(recipe), mesh)]

    return Target(recipe.name, trace, is_ours, recipe=recipe, request={"recipe": config.to_dict(recipe)})


def is_ours(file: str) -> bool:
    """Whether a file is of this package's models and training."""
    return file.startswith(PACKAGE + "/") and not file.startswith(_ONLOOKERS)


def of_file(target: str) -> Target:
    """A function of a user's file, with the arguments that the file gives in `example_args`.

    `example_args` is a tuple of arguments, a list of such tuples (several calls), a function that returns either, or a
    dict of these by the function's name.

    Raises:
      UserError: the file cannot be run, or lacks the function or its arguments.
    """
    path, _, name = target.rpartition(":")
    if not path:
        raise UserError(f"{target}: which function of it? say {target}:FUNCTION")
    module = _load(Path(path))
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UserError(f"{path} has no function {name!r}; it has {', '.join(known) or 'none'}")
    calls = _calls(module, path, name)
    jitted = function if hasattr(function, "trace") else jax.jit(function)

    def trace() -> list[jax.stages.Traced]:
        with telling(target):
            return [jitted.trace(*arguments) for arguments in calls]

    return Target(target, trace, _is_users, calls, function, _definition(function, path), request={"file": target})


def _definition(function: Any, path: str) -> str:
    """Where a function is defined: the line of its `def`, below its decorators."""
    plain = python_inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = python_inspect.unwrap(plain.func)
    code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
    if code is None:
        return f"{Path(path).resolve()}:1"
    first = code.co_firstlineno
    head = re.compile(rf"\s*(?:async\s+)?def\s+{re.escape(code.co_name)}\b")
    below = enumerate(source_of(code.co_filename)[first - 1 :], first)
    return f"{code.co_filename}:{next((number for number, text in below if head.match(text)), first)}"


def _is_users(file: str) -> bool:
    return not any(part in file for part in _INSTALLED) and not file.startswith(PACKAGE + "/")


def _load(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location("inspected_by_hayakuchi", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does
    with telling(str(path)):
        spec.loader.exec_module(module)
    return module


def _calls(module: Any, path: str, name: str) -> list[tuple[Any, ...]]:
    given = getattr(module, _ARGUMENTS, None)
    cure = f"write `{_ARGUMENTS} = (...)`, the arguments of {name}, into it"
    if isinstance(given, dict):
        given = given.get(name)
        cure = f"its {_ARGUMENTS} lacks {name!r}"
    if callable(given):
        with telling(f"{path}:{_ARGUMENTS}"):
            given = given()
    if given is None:
        raise UserError(f"{path} gives no arguments: {cure}")
    calls = given if isinstance(given, list) else [given]
    if not calls or not all(isinstance(each, tuple) for each in calls):
        raise UserError(f"{path}: {_ARGUMENTS} must be a tuple of the arguments of {name}, or a list of such tuples")
    return calls


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turns whatever somebody else's code raises into one line that says where."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {_where(error)}{type(error).__name__}: {_first_line(error)}") from error


def _where(error: BaseException) -> str:
    """Where the user's innermost line stands that raised, as "FILE:LINE: "; empty where none did."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        if _is_users(trace.tb_frame.f_code.co_filename) and not trace.tb_frame.f_code.co_filename.startswith("<"):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return found


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")
