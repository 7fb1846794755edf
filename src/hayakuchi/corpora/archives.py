"""Streams the files of a folder, a zip or a tar; nothing is ever unpacked to disk.

Names inside archives are labels for reports and never paths. What an archive grows to is held to a multiple of its
own size, so that a small file cannot fill the memory.
"""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hayakuchi.corpora.jsonl import open_stream
from hayakuchi.errors import UserError

EXPANSION_LIMIT = 500
"""An archive may hold this many times its own size; text shrinks 3 to 200 times, zeros 1,000 times and more."""

_ALWAYS_ALLOWED_BYTES = 1 << 20
_TAR_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def iter_files(
    path: Path, suffixes: tuple[str, ...], member_limit_bytes: int = 256 << 20
) -> Iterator[tuple[str, bytes]]:
    """Streams every file with one of the suffixes, in a fixed order.

    Args:
      path: a file, a folder (sorted, with its subfolders), a .zip, or a .tar, plain or with .gz, .bz2, .xz or .zst.
      suffixes: lower-case ends of names, such as (".txt", ".zip"); the names may be in capitals. Archives in a folder
        and zips in an archive are opened where their own suffix is among these.
      member_limit_bytes: largest file that is read.

    Yields:
      (origin, content): origin is "PATH" or "ARCHIVE!MEMBER".

    Raises:
      UserError: nothing is there, nothing matches, or something is damaged, encrypted, too large or a bomb.
    """
    found = False
    for file in _matching_files(path, suffixes):
        for item in _read_file(file, suffixes, member_limit_bytes):
            found = True
            yield item
    if not found:
        raise UserError(f"{path}: holds no {' or '.join(suffixes)} file; give a file, folder, zip or tar with text")


def total_size(path: Path, suffixes: tuple[str, ...]) -> int | None:
    """Bytes that `iter_files` will give, or None where only reading everything would tell (tars, nested zips).

    Raises:
      UserError: nothing is there, or a zip is damaged.
    """
    total = 0
    for file in _matching_files(path, suffixes):
        if _is_tar(file.name):
            return None
        if not _is_zip(file.name):
            total += file.stat().st_size
            continue
        try:
            with zipfile.ZipFile(file) as archive:
                members = _matching_members(archive, suffixes)
        except (OSError, zipfile.BadZipFile) as error:
            raise _damaged(str(file), error) from error
        if any(_is_zip(info.filename) for info in members):
            return None
        total += sum(info.file_size for info in members)
    return total


class _Guarded(io.RawIOBase):
    """A decompressing stream that stops where more than `EXPANSION_LIMIT` times the file's size has come out."""

    def __init__(self, origin: str, stream: IO[bytes], size: int) -> None:
        self._origin = origin
        self._stream = stream
        self._size = size
        self._given_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._given_bytes += len(data)
        _check_expansion(self._origin, self._given_bytes, self._size)
        buffer[: len(data)] = data
        return len(data)


def _matching_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.name.lower().endswith(suffixes) and file.is_file())
    if path.is_file():
        is_archive = _is_zip(path.name) or _is_tar(path.name)
        return [path] if is_archive or path.name.lower().endswith(suffixes) else []
    raise UserError(f"{path}: no such file or folder; check the path")


def _matching_members(archive: zipfile.ZipFile, suffixes: tuple[str, ...]) -> list[zipfile.ZipInfo]:
    return [info for info in archive.infolist() if info.filename.lower().endswith(suffixes)]


def _read_file(path: Path, suffixes: tuple[str, ...], limit: int) -> Iterator[tuple[str, bytes]]:
    """The file itself, or the matching members where it is an archive."""
    origin = _printable(str(path))
    if _is_tar(path.name):
        for name, data in _tar_members(path, suffixes, limit):
            yield from _opened(f"{origin}!{_printable(name)}", data, suffixes, limit)
        return
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            if not _is_zip(path.name):
                _check_size(origin, size, limit)
                yield origin, stream.read(limit)
                return
            for name, data in _zip_members(origin, stream, size, suffixes, limit):
                yield from _opened(f"{origin}!{_printable(name)}", data, suffixes, limit)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from error


def _opened(origin: str, data: bytes, suffixes: tuple[str, ...], limit: int) -> Iterator[tuple[str, bytes]]:
    """A member of an archive, or the members of that member where it is a zip."""
    if not _is_zip(origin):
        yield origin, data
        return
    for name, inner in _zip_members(origin, io.BytesIO(data), len(data), suffixes, limit):
        if _is_zip(name):
            raise UserError(f"{origin}: archives nested more than two deep; unpack the outer one first")
        yield f"{origin}!{_printable(name)}", inner


def _zip_members(
    origin: str, stream: IO[bytes], size: int, suffixes: tuple[str, ...], limit: int
) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(stream) as archive:
            _check_expansion(origin, sum(info.file_size for info in archive.infolist()), size)
            for info in _matching_members(archive, suffixes):
                _check_size(f"{origin}!{_printable(info.filename)}", info.file_size, limit)
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    # The others are decompressed without a bound, whatever size the header names.
                    raise UserError(f"{origin}: compressed by a rare method; pack it again with the usual one, deflate")
                with archive.open(info) as member:
                    yield info.filename, member.read(info.file_size)
    # RuntimeError is encryption; ValueError comes of nonsense in headers.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise _damaged(origin, error) from error


def _tar_members(path: Path, suffixes: tuple[str, ...], limit: int) -> Iterator[tuple[str, bytes]]:
    origin = _printable(str(path))
    try:
        with open_stream(path) as stream:
            guarded = _Guarded(origin, stream, path.stat().st_size)
            # "r|" reads on and never seeks back, so that one member at a time is in memory.
            with tarfile.open(fileobj=guarded, mode="r|") as archive:
                while (info := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # or it would keep every header
                    if not info.isfile() or not info.name.lower().endswith(suffixes):
                        continue
                    _check_size(f"{origin}!{_printable(info.name)}", info.size, limit)
                    member = archive.extractfile(info)
                    assert member is not None, "a regular file has content"
                    yield info.name, member.read()
    except (tarfile.TarError, ValueError) as error:
        raise _damaged(origin, error) from error


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _is_tar(name: str) -> bool:
    return name.lower().endswith(_TAR_SUFFIXES)


def _check_size(origin: str, size: int, limit: int) -> None:
    if size > limit:
        raise UserError(f"{origin}: {size:,} bytes, and no file above {limit:,} is read; split it")


def _check_expansion(origin: str, grown: int, size: int) -> None:
    if grown > max(_ALWAYS_ALLOWED_BYTES, EXPANSION_LIMIT * size):
        raise UserError(
            f"{origin}: grows to more than {EXPANSION_LIMIT} times its size, as a decompression bomb does; "
            "unpack it yourself if you trust it"
        )


def _damaged(origin: str, error: Exception) -> UserError:
    return UserError(f"{origin}: damaged or encrypted ({error}); get it again or unpack it yourself")


def _printable(name: str) -> str:
    """`name` without control characters and lone surrogates, which reports could not hold."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
