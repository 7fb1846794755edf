"""Checkpoints: state, data position, key and resolved recipe of one step, written together by Orbax.

A checkpoint counts only when complete; a damaged newest one is reported and the one before it used. Damage is what
decoding, checksums or missing files prove; memory, permissions and devices that fail are reported as they are.
"""

import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as managers

from hayakuchi.errors import UserError

logger = logging.getLogger(__name__)

# TensorStore of a file that is missing, cut or does not decode; where the system failed, its error code stands behind.
_BAD_CONTENT = re.compile(r"(NOT_FOUND|DATA_LOSS|FAILED_PRECONDITION|OUT_OF_RANGE|INVALID_ARGUMENT): ")
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")


class CheckpointError(UserError):
    """A checkpoint could not be written, or the system failed to read one. No other was touched."""


def flatten(tree: Any) -> dict[str, Any]:
    """Leaves by dotted path ("parameters.blocks.0.norm.scale"): how a state stands in a checkpoint.

    Flat names do not depend on the container types of Optax or NNX, and a part can be restored by itself.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


class Checkpoints:
    """The checkpoints of one run directory.

    Saving is asynchronous; an error of a save surfaces at the next call or at the end of the `with` block.
    """

    def __init__(self, folder: Path, keep: int, *, read_only: bool = False) -> None:
        self.folder = folder
        self._read_only = read_only
        options = ocp.CheckpointManagerOptions(
            preservation_policy=None if read_only else managers.LatestN(keep),
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
        )
        try:
            self._manager = ocp.CheckpointManager(
                folder.resolve(),
                options=options,
                item_handlers={"state": ocp.PyTreeCheckpointHandler(), "run": ocp.JsonCheckpointHandler()},
            )
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot keep checkpoints there ({error.strerror})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            # The error under way is the one to tell, not what the same cause made of a save.
            with suppress(OSError, ValueError):
                self._manager.close()

    def preempted(self, step: int) -> bool:
        """Whether the platform announced to all processes that this machine will be taken."""
        return bool(self._manager.reached_preemption(step))

    def save(self, step: int, state: Any, key: Any, position: int, recipe: dict[str, Any]) -> None:
        """Starts writing a checkpoint; returns when the arrays have been copied off the device.

        Raises:
          CheckpointError: this save could not start, or the one before failed.
        """
        record = {
            "step": step,
            "position": position,
            "key": np.asarray(jax.random.key_data(key)).tolist(),
            "recipe": recipe,
        }
        arguments = ocp.args.Composite(state=ocp.args.PyTreeSave(flatten(state)), run=ocp.args.JsonSave(record))
        try:
            self._manager.save(step, args=arguments, force=True)
        except (OSError, ValueError) as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Waits for the save under way; raises CheckpointError if it failed."""
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except (OSError, ValueError) as error:
            raise self._failure(error) from error

    def restore(self, target: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest whole checkpoint as (state, {"step", "position", "key", "recipe"}); None if there is none at all.

        Damaged ones after it get the name "STEP.damaged", since training will save those steps anew (not `read_only`).

        Args:
          target: the state as ShapeDtypeStructs with shardings; a difference in structure or shape is an error, never a
            silent cast.

        Raises:
          UserError: checkpoints are there, and all are damaged.
          CheckpointError: one cannot be read for another reason, such as permissions; none was touched.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        reasons: list[str] = []
        for step in steps:
            try:
                found = self._restore(step, target)
            except UserError:
                raise
            except Exception as error:
                if not _proves_damage(error):
                    if (reason := _system_reason(error)) is None:
                        raise
                    raise CheckpointError(f"{self.folder / str(step)}: cannot be read ({reason})") from error
                reasons.append(_reason(error))
                logger.warning(
                    "checkpoint %s is damaged (%s); trying the one before it", self.folder / str(step), reasons[-1]
                )
            else:
                if reasons and not self._read_only:
                    self._set_aside([later for later in steps if later > step])
                return found
        if steps:
            raise UserError(
                f"{self.folder}: none of the checkpoints {steps} is whole ({reasons[0]}); restore the folder from a "
                "copy, or choose another RUN to start from step 0"
            )
        return None

    def _set_aside(self, steps: list[int]) -> None:
        if jax.process_index() == 0:
            for step in steps:
                damaged = self.folder / f"{step}.damaged"
                shutil.rmtree(damaged, ignore_errors=True)
                try:
                    (self.folder / str(step)).rename(damaged)
                except OSError as error:
                    raise CheckpointError(f"{self.folder / str(step)}: damaged; move it away by hand") from error
        multihost_utils.sync_global_devices("damaged checkpoints have another name")
        self._manager.reload()

    def _restore(self, step: int, target: Any) -> tuple[Any, dict[str, Any]]:
        arrays = flatten(target)
        self._check_shapes(step, arrays)
        arguments = ocp.args.PyTreeRestore(
            arrays,
            restore_args=ocp.checkpoint_utils.construct_restore_args(arrays),
            partial_restore=True,  # generation restores the parameters alone
        )
        items = ocp.args.Composite(state=arguments, run=ocp.args.JsonRestore())
        restored = self._manager.restore(step, args=items)
        leaves = (restored["state"].pop(name) for name in arrays)
        if not self._read_only:
            # A step takes its state's memory, and part of what Orbax restores lies in memory of its own. One after the
            # other, so that the state is not there twice.
            leaves = (leaf.copy() for leaf in leaves)
        return jax.tree.unflatten(jax.tree.structure(target), list(leaves)), restored["run"]

    def _check_shapes(self, step: int, arrays: dict[str, Any]) -> None:
        """Orbax alone would cut, pad or cast without a word."""
        metadata = self._manager.item_metadata(step)["state"]
        if metadata is None:
            # Orbax says no more of a file that is missing than of one that cannot be opened.
            (self.folder / str(step) / "state" / "_METADATA").read_bytes()
            raise ValueError("no metadata of its arrays")
        saved = metadata.tree
        for name, wanted in arrays.items():
            found = saved.get(name)
            if found is None or tuple(found.shape) != wanted.shape or found.dtype != wanted.dtype:
                there = f"{found.dtype}{list(found.shape)}" if found else "absent"
                raise UserError(
                    f"{self.folder / str(step)}: {name} is {there}, where this recipe has "
                    f"{wanted.dtype}{list(wanted.shape)}: the checkpoint belongs to another recipe"
                )

    def _failure(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.folder}: the checkpoint could not be written ({_reason(error)}); make room or set the permissions, "
            "and run the same command again: it goes on from the last whole one"
        )


def _proves_damage(error: BaseException) -> bool:
    """Whether an error of reading says that the files are not what was written."""
    cause = _root(error)
    if isinstance(cause, OSError):
        return isinstance(cause, FileNotFoundError | IsADirectoryError | NotADirectoryError)
    if isinstance(cause, ValueError) and re.match("[A-Z_]+: ", str(cause)):  # TensorStore's
        return bool(_BAD_CONTENT.match(str(cause))) and not _SYSTEM_ERROR.search(str(cause))
    # JSON and UTF-8 that do not decode, or lack what the format says they have.
    return isinstance(cause, ValueError | KeyError | EOFError)


def _system_reason(error: BaseException) -> str | None:
    """What the operating system said, where an error came from it."""
    cause = _root(error)
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    code = _SYSTEM_ERROR.search(str(cause))
    return os.strerror(int(code[1])) if code else None


def _root(error: BaseException) -> BaseException:
    """The error that Orbax's bare `Exception`, with a page of specification in it, was raised from."""
    return error.__cause__ if type(error) is Exception and error.__cause__ is not None else error


def _reason(error: BaseException) -> str:
    cause = _root(error)
    line = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
    # TensorStore names the whole chain of what failed in what, the cause last, and details of it in brackets.
    return getattr(cause, "strerror", None) or line.partition(" [")[0].rsplit(": ", 1)[-1]
