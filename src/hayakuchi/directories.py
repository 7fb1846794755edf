"""Result directories that are either whole or not there."""

import shutil
from collections.abc import Iterator
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
