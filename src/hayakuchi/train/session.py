"""One training session in a run directory: start or resume, train, leave everything needed to go on."""

import functools
import hashlib
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from hayakuchi import config, progress
from hayakuchi.config import TrainConfig
from hayakuchi.config.recipe import RECIPE_FILE, Recipe, read_recipe
from hayakuchi.data.batches import BatchIterator
from hayakuchi.data.verification import short
from hayakuchi.errors import UserError
from hayakuchi.models.sharding import make_mesh
from hayakuchi.owner import OWNER_FILE, owned
from hayakuchi.train import loop
from hayakuchi.train.checkpoint import Checkpoints
from hayakuchi.train.dump import dump_step
from hayakuchi.train.metrics import NonFiniteLossError, Reporter
from hayakuchi.train.profile import Profiler
from hayakuchi.train.task import Task, TrainState
from hayakuchi.train.watch import Watch

logger = logging.getLogger(__name__)

# Settings that may differ when a run is resumed: they change when and where things are done, not what is computed.
_FREE = {
    *(("train", name) for name in ("mesh", "remat", "checkpoint_every", "keep_checkpoints", "log_every")),
    *(("train", name) for name in ("retrace", "watch", "profile")),
    ("data", "data_workers"),
}


_PARTIAL_RECIPE = RECIPE_FILE + ".partial"


def connect_processes() -> None:
    """Joins the other processes of a multi-host run, where the environment names a coordinator.

    JAX_COORDINATOR_ADDRESS ("host:port"), JAX_NUM_PROCESSES and JAX_PROCESS_ID describe the run.
    """
    if not os.environ.get("JAX_COORDINATOR_ADDRESS") or jax.distributed.is_initialized():
        return
    try:
        count, index = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    except (KeyError, ValueError) as error:
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set: JAX_NUM_PROCESSES and JAX_PROCESS_ID must be set to numbers too"
        ) from error
    jax.distributed.initialize(num_processes=count, process_id=index)


@contextmanager
def open_run(run: Path, recipe: Recipe, files: dict[str, bytes], data: Path) -> Iterator[None]:
    """Makes a run directory, or checks that an existing one is of the same recipe and data; holds it for the block.

    Args:
      run: the directory.
      recipe: the resolved recipe.
      files: what generation needs later, by name; an existing file must be equal.
      data: the data set directory they are from.

    Of several processes the first does it, and all fail if it fails.

    Raises:
      UserError: the directory holds something else, or another recipe or data set, or another process trains it; the
        devices do not suit the recipe.
    """
    fitting_mesh(recipe.train)  # before anything is written
    failure: UserError | None = None
    with ExitStack() as held:
        if jax.process_index() == 0:
            try:
                _make_folder(run, files)
                held.enter_context(owned(run))
                _open_run(run, recipe, files, data)
            except OSError as error:
                failure = UserError(f"{run}: cannot write there ({error.strerror})")
            except UserError as error:
                failure = error
        if multihost_utils.broadcast_one_to_all(jnp.int32(failure is not None)):
            raise failure or UserError(f"{run}: see the message of process 0")
        yield


def _make_folder(run: Path, files: dict[str, bytes]) -> None:
    """The directory of a run, which may hold what a start leaves that a full disk cut short, and nothing else."""
    leftovers = {*files, _PARTIAL_RECIPE, OWNER_FILE}
    empty = not run.exists() or (run.is_dir() and {file.name for file in run.iterdir()} <= leftovers)
    if not empty and not (run / RECIPE_FILE).exists():
        raise UserError(f"{run}: holds something else than a run (no {RECIPE_FILE}); choose another RUN")
    run.mkdir(parents=True, exist_ok=True)


def _open_run(run: Path, recipe: Recipe, files: dict[str, bytes], data: Path) -> None:
    path, partial = run / RECIPE_FILE, run / _PARTIAL_RECIPE
    if path.exists():
        before = read_recipe(path)
        if before.name == recipe.name:  # else the data set is not to blame
            _check_files(run, files, data)
        _check_same(run, before, recipe)
    else:
        for name, content in files.items():
            (run / name).write_bytes(content)
    # Last, since with it the directory is a run; and never half written, since without it it is none.
    partial.write_text(config.to_json(recipe), encoding="utf-8")
    partial.replace(path)


def _check_files(run: Path, files: dict[str, bytes], data: Path) -> None:
    for name, content in files.items():
        found = (run / name).read_bytes() if (run / name).exists() else b""
        if found != content:
            ours, theirs = (short(hashlib.sha256(each).hexdigest()) for each in (found, content))
            raise UserError(
                f"{run / name}: SHA-256 {ours}, but {data / name} has {theirs}: the run was started on another data "
                "set; use its --data, or a new RUN"
            )


def _check_same(run: Path, before: Recipe, now: Recipe) -> None:
    if before.name != now.name:
        raise UserError(f"{run}: the run is of recipe {before.name!r}, not {now.name!r}; choose another RUN")
    old, new = config.to_dict(before), config.to_dict(now)
    # Then no step looks ahead to the last one.
    endless = now.task == "vits" or now.optimizer.schedule == "constant"
    free = _FREE | ({("train", "steps")} if endless else set())
    for section, values in old.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if value != new[section][name] and (section, name) not in free:
                raise UserError(
                    f"{run}: the run was started with {name}={value!r}, this command has {new[section][name]!r}; "
                    "give the same value, or a new RUN"
                )


def fitting_mesh(settings: TrainConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a run, on `devices` (all there are by default); UserError where the batch does not divide over it."""
    mesh = make_mesh(settings.mesh, devices)
    if settings.batch % (mesh.size * settings.accumulate):
        raise UserError(
            f"batch={settings.batch} must be a multiple of devices x accumulate ({mesh.size} x {settings.accumulate})"
        )
    return mesh


def _start(programs: loop.Compiled, checkpoints: Checkpoints, settings: TrainConfig) -> tuple[TrainState, Any, int]:
    """State, key and position of the data at the newest checkpoint, or at step 0 where there is none."""
    checkpoints.wait()
    restored = checkpoints.restore(programs.abstract_state._replace(frozen=None))
    if restored is None:
        init_key, key = jax.random.split(jax.random.key(settings.seed))
        return programs.init(init_key), key, 0
    state, saved = restored
    key = jax.random.wrap_key_data(jnp.asarray(saved["key"], jnp.uint32))
    return programs.with_frozen(state), key, saved["position"]


def train(
    task: Task, recipe: Recipe, run: Path, batches: Callable[[int], BatchIterator[Any]], held_out: Iterable[Any]
) -> dict[str, Any]:
    """Starts or resumes a run and trains to its end.

    Args:
      task: what to train.
      recipe: the resolved recipe, saved in every checkpoint.
      run: a directory opened by `open_run`.
      batches: gives the training stream from a position on.
      held_out: batches for the loss at checkpoints.

    Returns:
      A summary of plain values: steps, losses, throughput, compile seconds, what stopped the run.
    """
    settings = recipe.train
    mesh = fitting_mesh(settings)
    sample_rate_hz = recipe.model.audio.sample_rate_hz if recipe.task == "vits" else 0
    folder = run if jax.process_index() == 0 else None
    with (
        progress.bar(recipe.name, settings.steps) as bar,
        Checkpoints(run / "checkpoints", settings.keep_checkpoints) as checkpoints,
        Reporter(folder, bar, settings.log_every, task.unit, sample_rate_hz) as reporter,
    ):
        bar.update("compiling the step")
        if settings.profile:
            # A program from the cache may have the modules and lines of older code.
            jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
        programs = loop.compile_task(task, mesh, settings.retrace)
        state, key, position = _start(programs, checkpoints, settings)
        profiler = Profiler(folder, settings.profile, programs.executables, bar)
        first = int(state.step)
        measured = reporter.resume(first)
        # Each process must know it, since all compute the loss together.
        measured = bool(multihost_utils.broadcast_one_to_all(jnp.int32(measured)))
        due = first > 0 and first % settings.checkpoint_every == 0
        bar.advance(first)
        reporter.clock.started = time.monotonic()
        try:
            state, stopped = loop.run(
                programs,
                state,
                key,
                batches(position),
                held_out,
                checkpoints,
                reporter,
                profiler=profiler,
                watch=Watch(task, mesh, settings.watch),
                steps=settings.steps,
                checkpoint_every=settings.checkpoint_every,
                recipe=config.to_dict(recipe),
                measure_first=due and not measured,
            )
        except NonFiniteLossError as error:
            # There may be room for one state only, and the frames that the error came through hold theirs.
            del state
            traceback.clear_frames(error.__traceback__)
            again = functools.partial(_start, programs, checkpoints, settings)
            error.kept = dump_step(programs, error.step, again, batches, recipe, run)
            raise
        finally:
            profiler.abandon()
        seconds = reporter.clock.training()
        return {
            "run": str(run),
            "recipe": recipe.name,
            "first_step": first,
            "steps": int(state.step),
            "stopped_by": stopped,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.parameters)),
            **{name: value for name, value in reporter.last.items() if name.endswith("loss")},
            task.unit: reporter.done,
            "seconds": round(seconds, 3),
            f"{task.unit}_per_second": round(reporter.done / max(seconds, 1e-9), 1),
            "data_wait_share": round(reporter.wait_share(), 5),
            "compile_seconds": round(programs.seconds, 3),
            "devices": {
                "platform": jax.default_backend(),
                "kind": jax.devices()[0].device_kind,
                "count": mesh.size,
                "processes": jax.process_count(),
            },
        }
