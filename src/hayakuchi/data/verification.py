"""Verification of the content of a data set's files, once per data set and machine.

Reading all of a large data set takes a while, so files that passed leave a stamp in the cache folder. It is named by a
hash of the machine, of the files' paths, sizes and times of modification, and of what they were compared with: any
change to these and the files are read again.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hayakuchi import progress
from hayakuchi.errors import UserError
from hayakuchi.runtime import cache_folder

_STAMPS = "verified"


def file_sha256(path: Path) -> str:
    """Hash of a file of any size, in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_once(files: Mapping[Path, Any], check: Callable[[Path], None], *, always: bool = False) -> None:
    """Calls `check` with every file, unless all of them passed on this machine before.

    Args:
      files: each with what it is compared with, as plain JSON values.
      check: raises UserError if the content of a file is wrong.
      always: check even files that passed before.

    Where the cache folder cannot be written the files are checked every time.

    Raises:
      UserError: of `check`, or a file cannot be read.
    """
    try:
        stamp = _stamp(files)
        if not always and stamp is not None and stamp.exists():
            return
        with progress.bar("verifying the data set", sum(file.stat().st_size for file in files)) as bar:
            for file in files:
                check(file)
                bar.advance(file.stat().st_size)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read it ({error.strerror}); copy the data set again") from error
    if stamp is not None:
        with suppress(OSError):
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()


def check_sha256(path: Path, expected: str, cure: str) -> None:
    """Raises UserError unless the file has the checksum that `dataset.json` lists."""
    if (found := file_sha256(path)) != expected:
        raise UserError(
            f"{path}: damaged: its SHA-256 is {short(found)}, dataset.json lists {short(expected)}; copy the data set "
            f"again, or {cure}"
        )


def short(sha256: str) -> str:
    """The beginning of a hash, for a message."""
    return sha256[:12]


def _stamp(files: Mapping[Path, Any]) -> Path | None:
    """The stamp of these files; None without a cache folder."""
    found = [platform.node()]
    for path, expected in files.items():
        status = path.stat()
        found.append(json.dumps([str(path.resolve()), status.st_size, status.st_mtime_ns, expected]))
    try:
        # A user without a home has no cache folder.
        return cache_folder() / _STAMPS / hashlib.sha256("\n".join(found).encode()).hexdigest()
    except RuntimeError:
        return None
