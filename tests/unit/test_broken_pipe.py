"""`hayakuchi ... | head` ends quietly, as other filters do."""

import os
import subprocess
import sys

import pytest

from hayakuchi import cli
from hayakuchi.recipes import RECIPES

# Verbs that print at once, or leave text in the buffer until the exit; and what the option parser prints.
PROGRAMS = {
    "a result": "from hayakuchi import cli; cli.VERBS['inspect'] = lambda: cli._finish(None, {}, 'text'); "
    "sys.exit(cli.main(['inspect']))",
    "a stream": "from hayakuchi import cli; cli.VERBS['inspect'] = lambda: [cli._say('text') for _ in range(9)]; "
    "sys.exit(cli.main(['inspect']))",
    "buffered": "from hayakuchi import cli; cli.VERBS['inspect'] = lambda: print('text'); "
    "sys.exit(cli.main(['inspect']))",
    "help": "from hayakuchi import cli; sys.exit(cli.main(['generate', '--help']))",
    "usage": "from hayakuchi import cli; sys.exit(cli.main([]))",
    "sound": "from hayakuchi import cli; cli.VERBS['inspect'] = lambda: sys.stdout.buffer.write(b'RIFF'); "
    "sys.exit(cli.main(['inspect']))",
}


def run_without_reader(program: str, *, errors_too: bool = False) -> tuple[int, bytes]:
    """Exit code and standard error of a program whose standard output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; {program}"],
            stdout=writing,
            stderr=writing if errors_too else subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr or b""


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_reader_that_has_gone_ends_the_program_quietly(program):
    assert run_without_reader(program) == (141, b"")


def test_an_error_that_nobody_reads_ends_quietly_too():
    assert run_without_reader("from hayakuchi import cli; sys.exit(cli.main(['nothing']))", errors_too=True)[0] == 141


def test_standard_output_may_be_closed():
    program = "from hayakuchi import cli; sys.stdout = None; sys.exit(cli.main(['--version']))"
    assert run_without_reader(program) == (0, b"")


def test_the_json_file_is_written_where_nobody_reads_the_text(tmp_path, monkeypatch):
    def gone(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    with pytest.raises(BrokenPipeError):
        cli._finish(tmp_path / "result.json", {"recipes": len(RECIPES)}, "text")
    assert str(len(RECIPES)) in (tmp_path / "result.json").read_text(encoding="utf-8")
