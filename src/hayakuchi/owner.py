"""One owner of a directory at a time: two programs that write the same run or data set spoil it."""

import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hayakuchi.errors import UserError

logger = logging.getLogger(__name__)

OWNER_FILE = ".owner.json"
_BEAT_SECONDS = 5.0
_RECORD_LIMIT_BYTES = 4096
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Holds a directory until the block ends; it must exist and be writable.

    The lock is the operating system's (flock) on a file in the directory, so that it ends with its process however that
    ends: a file left behind holds nothing. Where a file system does not share locks between hosts, or has none, the
    record in the file decides: its owner touches it every few seconds, and one that no longer does is gone.

    Raises:
      UserError: another process holds it; the message names that process.
      OSError: the file cannot be made.
    """
    path = folder / OWNER_FILE
    descriptor, locked = _open(path, folder)
    ended = threading.Event()
    try:
        _check_not_held_elsewhere(path, folder, locked)
        record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(record).encode(), 0)
        beating = threading.Thread(target=_beat, args=(descriptor, ended), daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()  # before the number of the descriptor is another file's
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _open(path: Path, folder: Path) -> tuple[int, bool]:
    """A descriptor of the file, and whether it holds the lock: some file systems have none."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor, False
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise _refusal(folder, _read(path)) from error
            raise
        # The former owner may have removed the file between the two calls: then this lock is on nothing.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor, True
        os.close(descriptor)


def _check_not_held_elsewhere(path: Path, folder: Path, locked: bool) -> None:
    """Refuses a directory whose owner is on another host, or on a file system without locks, and still at work."""
    record = _read(path)
    if not record:
        return
    if record.get("host") == socket.gethostname():
        if not locked and _is_running(record.get("pid")):
            raise _refusal(folder, record)
        return  # had it not ended, the lock would be its own
    logger.warning("%s: was left by %s; waiting to see whether that is still at work", folder, _name(record))
    before, deadline = path.stat().st_mtime_ns, time.monotonic() + 3 * _BEAT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_BEAT_SECONDS / 5)
        if path.stat().st_mtime_ns != before:
            raise _refusal(folder, record)


def _is_running(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _beat(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_SECONDS):
        try:
            os.utime(descriptor)
        except OSError:  # a file system that is gone: what writes there says so
            return


def _read(path: Path) -> dict[str, object]:
    """The record of an owner; {} where there is none, or no whole one."""
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_RECORD_LIMIT_BYTES))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _refusal(folder: Path, record: dict[str, object]) -> UserError:
    return UserError(f"{folder}: in use by {_name(record)}; wait for it to end or stop it, or choose another directory")


def _name(record: dict[str, object]) -> str:
    if not record:
        return "another process"
    return f"process {record.get('pid')} on {record.get('host')} since {record.get('since')}"
