"""Streams the files of a folder, a zip or a tar; nothing is ever unpacked to disk.

Names inside archives are labels for reports and never paths. What an archive grows to is held to a multiple of its
own size, all archives in it counted, so that a small file cannot fill the memory.
"""

import errno
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hayakuchi.corpora.document import Record
from hayakuchi.corpora.jsonl import files_below, open_stream
from hayakuchi.errors import UserError

EXPANSION_LIMIT = 500
"""An archive may hold this many times its own size; text shrinks 3 to 200 times, zeros 1,000 times and more."""

_ALWAYS_ALLOWED_BYTES = 1 << 20
_TAR_HEADERS_LIMIT_BYTES = 1 << 20
"""Before one member of a tar; `tarfile` holds a header of any size (a long name, attributes) in memory."""

# RuntimeError is encryption; ValueError and OverflowError come of nonsense in headers.
_ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)
_TAR_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def iter_files(path: Path, suffixes: tuple[str, ...], member_limit_bytes: int = 256 << 20) -> Iterator[Record]:
    """Streams every file with one of the suffixes, in a fixed order.

    Args:
      path: a file, a folder (sorted, with its subfolders), a .zip, or a .tar, plain or with .gz, .bz2, .xz or .zst.
      suffixes: lower-case ends of names, such as (".txt", ".zip"); the names may be in capitals. Archives in a folder
        and zips in an archive are opened where their own suffix is among these.
      member_limit_bytes: largest file that is read.

    Yields:
      A record a file, and one with `damage` for an archive of a folder or in an archive that is damaged or encrypted.

    Raises:
      UserError: nothing is there, nothing matches, `path` itself is damaged or encrypted, or something is too large or
        a bomb.
    """
    found = False
    for file in _matching_files(path, suffixes):
        try:
            for record in _read_file(file, suffixes, member_limit_bytes):
                found = True
                yield record
        except _DamagedError as error:
            if file == path:
                raise
            found = True
            yield error.record
    if not found:
        raise UserError(f"{path}: holds no {' or '.join(suffixes)} file; give a file, folder, zip or tar with text")


def total_size(path: Path, suffixes: tuple[str, ...]) -> int | None:
    """Bytes that `iter_files` will give, or None where only reading everything would tell (tars, nested zips).

    Raises:
      UserError: nothing is there, or `path` itself is a damaged zip.
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
        except (OSError, *_ZIP_DAMAGE) as error:
            if file == path:
                raise _DamagedError(_printable(str(file)), error) from error
            continue
        if any(_is_zip(info.filename) for info in members):
            return None
        total += sum(info.file_size for info in members)
    return total


class _DamagedError(UserError):
    """An archive that cannot be read, by which the others beside it are not touched; `record` says so in a report."""

    def __init__(self, origin: str, cause: object) -> None:
        what = f"damaged or encrypted ({str(cause) or 'it ends early'})"
        super().__init__(f"{origin}: {what}; get it again or unpack it yourself")
        self.record = Record(origin, b"", damage=what)


class _Allowance:
    """What a file of `size` bytes may still grow to, with all archives that are in it."""

    def __init__(self, origin: str, size: int) -> None:
        self._origin = origin
        self._left_bytes = max(_ALWAYS_ALLOWED_BYTES, EXPANSION_LIMIT * size)

    def spend(self, size: int) -> None:
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise UserError(
                f"{self._origin}: grows to more than {EXPANSION_LIMIT} times its size, as a decompression bomb does; "
                "unpack it yourself if you trust it"
            )


class _Guarded(io.RawIOBase):
    """The stream of a tar, which ends the reading where the allowance is spent, or `stop` is passed by headers."""

    def __init__(self, origin: str, stream: IO[bytes], allowance: _Allowance) -> None:
        self._origin = origin
        self._stream = stream
        self._allowance = allowance
        self._given_bytes = 0
        self.stop = _TAR_HEADERS_LIMIT_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._allowance.spend(len(data))
        self._given_bytes += len(data)
        if self._given_bytes > self.stop:
            limit = _TAR_HEADERS_LIMIT_BYTES
            raise UserError(f"{self._origin}: over {limit:,} bytes of headers before one file; unpack it yourself")
        buffer[: len(data)] = data
        return len(data)


def _matching_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in files_below(path) if file.name.lower().endswith(suffixes) and file.is_file())
    if path.is_file():
        is_archive = _is_zip(path.name) or _is_tar(path.name)
        return [path] if is_archive or path.name.lower().endswith(suffixes) else []
    raise UserError(f"{path}: no such file or folder; check the path")


def _matching_members(archive: zipfile.ZipFile, suffixes: tuple[str, ...]) -> list[zipfile.ZipInfo]:
    return [info for info in archive.infolist() if info.filename.lower().endswith(suffixes)]


def _read_file(path: Path, suffixes: tuple[str, ...], limit: int) -> Iterator[Record]:
    """The file itself, or the matching members where it is an archive."""
    origin = _printable(str(path))
    try:
        size = path.stat().st_size
        if not _is_zip(path.name) and not _is_tar(path.name):
            _check_size(origin, size, limit)
            with path.open("rb") as stream:
                yield Record(origin, stream.read(limit))
            return
        allowance = _Allowance(origin, size)
        members = _tar_members if _is_tar(path.name) else _zip_members
        for name, data in members(origin, path, allowance, suffixes, limit):
            yield from _opened(f"{origin}!{_printable(name)}", data, allowance, suffixes, limit)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror or error})") from error


def _opened(origin: str, data: bytes, allowance: _Allowance, suffixes: tuple[str, ...], limit: int) -> Iterator[Record]:
    """A member of an archive, or the members of that member where it is a zip."""
    if not _is_zip(origin):
        yield Record(origin, data)
        return
    try:
        for name, inner in _zip_members(origin, io.BytesIO(data), allowance, suffixes, limit):
            if _is_zip(name):
                raise UserError(f"{origin}: archives nested more than two deep; unpack the outer one first")
            yield Record(f"{origin}!{_printable(name)}", inner)
    except _DamagedError as error:
        yield error.record


def _zip_members(
    origin: str, file: Path | IO[bytes], allowance: _Allowance, suffixes: tuple[str, ...], limit: int
) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(file) as archive:
            allowance.spend(sum(info.file_size for info in archive.infolist()))
            for info in _matching_members(archive, suffixes):
                _check_size(f"{origin}!{_printable(info.filename)}", info.file_size, limit)
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    # The others are decompressed without a bound, whatever size the header names.
                    raise _DamagedError(origin, "its compression is a rare one and not deflate")
                with archive.open(info) as member:
                    yield info.filename, member.read(info.file_size)
    except _ZIP_DAMAGE as error:
        raise _DamagedError(origin, error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # which is a header that points to before the beginning
            raise
        raise _DamagedError(origin, error.strerror) from error


def _tar_members(
    origin: str, path: Path, allowance: _Allowance, suffixes: tuple[str, ...], limit: int
) -> Iterator[tuple[str, bytes]]:
    try:
        with open_stream(path) as stream:
            guarded = _Guarded(origin, stream, allowance)
            # "r|" reads on and never seeks back, so that one member at a time is in memory.
            with tarfile.open(fileobj=guarded, mode="r|") as archive:
                while (info := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # or it would keep every header
                    guarded.stop = archive.offset + _TAR_HEADERS_LIMIT_BYTES  # `offset` is the end of this member
                    if not info.isfile() or not info.name.lower().endswith(suffixes):
                        continue
                    _check_size(f"{origin}!{_printable(info.name)}", info.size, limit)
                    if info.issparse():
                        allowance.spend(info.size)  # its holes never pass through the stream
                    member = archive.extractfile(info)
                    assert member is not None, "a regular file has content"
                    yield info.name, member.read()
    # RecursionError: hundreds of headers before one member.
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise _DamagedError(origin, error) from error


def _is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _is_tar(name: str) -> bool:
    return name.lower().endswith(_TAR_SUFFIXES)


def _check_size(origin: str, size: int, limit: int) -> None:
    if size > limit:
        raise UserError(f"{origin}: {size:,} bytes, and no file above {limit:,} is read; split it")


def _printable(name: str) -> str:
    """`name` without control characters and lone surrogates, which reports could not hold."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
