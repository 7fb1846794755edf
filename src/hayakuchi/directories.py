"""Result directories that are either whole or not there."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hayakuchi.errors import UserError


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Gives a folder beside `out` to fill, and renames it to `out` when the body ends well; else nothing is left.

    Args:
      out: must not exist, or be an empty directory; its parents are made.

    Raises:
      UserError: `out` is taken, before the body or after it, cannot be renamed to, or a write of the body failed.
    """
    try:
        _check_free(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        # Its name is its own, so that two programs with the same `out` do not meet before the end.
        with tempfile.TemporaryDirectory(
            prefix=f"{out.name}.partial-", dir=out.parent, ignore_cleanup_errors=True
        ) as partial:
            # One level deeper, since the temporary folder itself is closed to all other users.
            folder = Path(partial) / "whole"
            folder.mkdir()
            yield folder
            _check_free(out)  # again: it may have taken hours
            if out.exists():
                out.rmdir()
            folder.rename(out)
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
