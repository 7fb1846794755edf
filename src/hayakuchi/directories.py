"""Where results go: directories that are either whole or not there, and outputs that overwrite nothing of value."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hayakuchi.errors import UserError
from hayakuchi.owner import OWNER_FILE, owned


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Gives a folder beside `out` to fill, and renames it to `out` when the body ends well; else nothing is left.

    The folder is `OUT.partial/whole`. What a killed process left there is removed by the next one; of two at once the
    second is refused.

    Args:
      out: must not exist, or be an empty directory; its parents are made.

    Raises:
      UserError: `out` is taken, before the body or after it, is being made by another process, cannot be renamed to, or
        a write of the body failed.
    """
    try:
        _check_free(out)
        partial = out.with_name(f"{out.name}.partial")
        folder = partial / "whole"
        if partial.is_dir() and not {file.name for file in partial.iterdir()} <= {folder.name, OWNER_FILE}:
            raise UserError(
                f"{partial}: not made by hayakuchi, and in the way of {out}; move it or choose another place"
            )
        partial.mkdir(parents=True, exist_ok=True)
        with owned(partial):
            try:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                yield folder
                _check_free(out)  # again: it may have taken hours
                if out.exists():
                    out.rmdir()
                folder.rename(out)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{out}: cannot write it ({error.strerror or error}); make room or choose another place, "
            "nothing was left there"
        ) from error


def _check_free(out: Path) -> None:
    if out.name in ("", ".."):
        raise UserError(f"{out}: name a new directory, such as {out / 'new'}")
    if out.is_symlink():
        raise UserError(f"{out}: a symbolic link; name the directory itself")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out}: exists and is not an empty directory; choose another one or delete it")


# What makes a directory a run or a data set, and the parts of each: the names are those of ARCHITECTURE.md.
_DATASET_FILE, _SPEECH_MARK, _RECIPE_FILE, _CHECKPOINTS = "dataset.json", "prepare-speech", "recipe.json", "checkpoints"
_RUN_PARTS = {
    _RECIPE_FILE, _DATASET_FILE, _CHECKPOINTS, "tokenizer.model", "metrics.jsonl", "tensorboard", "samples", "teacher",
    "nonfinite", "profile",
}  # fmt: skip
_DATASET_PARTS = {_DATASET_FILE, _SPEECH_MARK, "report.json", "tokenizer.model", "train", "heldout", "shards"}


def check_output(option: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Makes sure that writing a report or a file destroys nothing that took work to make.

    Args:
      option: name of the option that gave `path`, for the message.
      path: file or folder to write; it may exist, as reports are written again.
      inputs: files and folders that the same command reads.

    Raises:
      UserError: `path` is a run or a data set, belongs to one, or is an input; or it is a folder with an input in JSON,
        which a report of the same name would replace.
    """
    place = path.resolve()
    for folder in (place, *place.parents):
        kind, parts = _kind(folder)
        if kind and (folder == place or place.relative_to(folder).parts[0] in parts):
            raise UserError(f"{option} {path}: would overwrite files of the {kind} {folder}; choose another place")
    for given in inputs:
        source = given.resolve()
        beside = source.suffix == ".json" and source.parent == place
        if source.is_file() and (source == place or beside or (place.exists() and place.samefile(source))):
            raise UserError(f"{option} {path}: would overwrite {given}, which this command reads; choose another place")


def _kind(folder: Path) -> tuple[str, set[str]]:
    """What a folder is ("run", "data set" or ""), and the names that belong to it."""
    has_dataset = (folder / _DATASET_FILE).exists()
    if (folder / _CHECKPOINTS).is_dir() or (has_dataset and (folder / _RECIPE_FILE).exists()):
        return "run", _RUN_PARTS
    if has_dataset or (folder / _SPEECH_MARK).exists():
        return "data set", _DATASET_PARTS
    return "", set()
