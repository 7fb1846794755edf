"""One owner of a directory: the second is refused by the first one's name, and nobody is held up by a dead one."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from hayakuchi import owner
from hayakuchi.errors import UserError
from hayakuchi.owner import OWNER_FILE, owned

HOLD = "import pathlib, sys, time; from hayakuchi.owner import owned\nwith owned(pathlib.Path(sys.argv[1])):\n"
HOLD += "    print('held', flush=True); time.sleep(600)"


def record(folder, **values):
    values = {"pid": os.getpid(), "host": socket.gethostname(), "since": "yesterday"} | values
    (folder / OWNER_FILE).write_text(json.dumps(values))


def test_a_second_owner_is_refused_until_the_first_is_killed(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=f"in use by process {first.pid} on {socket.gethostname()} since"),
            owned(tmp_path),
        ):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert (tmp_path / OWNER_FILE).exists(), "a killed owner leaves its record"
    with owned(tmp_path):
        assert json.loads((tmp_path / OWNER_FILE).read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_an_owner_on_another_host_is_one_while_it_touches_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "_BEAT_SECONDS", 0.2)
    record(tmp_path, host="elsewhere", pid=7)
    ended = threading.Event()

    def beat():
        while not ended.wait(0.05):
            os.utime(tmp_path / OWNER_FILE)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="in use by process 7 on elsewhere since yesterday"), owned(tmp_path):
            pass
    finally:
        ended.set()
        thread.join()
    with owned(tmp_path):
        pass


@pytest.mark.parametrize(("pid", "refused"), [(os.getppid(), True), (2**22 + 1, False)])
def test_without_locks_the_process_of_the_record_decides(tmp_path, monkeypatch, pid, refused):
    def without(*_):
        raise OSError(owner.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(owner.fcntl, "flock", without)
    record(tmp_path, pid=pid)
    if refused:
        with pytest.raises(UserError, match=f"process {pid}"), owned(tmp_path):
            pass
    else:
        with owned(tmp_path):
            pass


def test_the_record_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "_BEAT_SECONDS", 0.02)
    with owned(tmp_path):
        before = (tmp_path / OWNER_FILE).stat().st_mtime_ns
        deadline = time.monotonic() + 5
        while (tmp_path / OWNER_FILE).stat().st_mtime_ns == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\x00", b"{" * 100_000])
def test_a_broken_record_holds_nothing(tmp_path, content):
    (tmp_path / OWNER_FILE).write_bytes(content)
    with owned(tmp_path):
        pass
