import io
import sys

import pytest

from hayakuchi import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(total: float | None) -> None:
    with progress.bar("reading [red]", total) as bar:
        bar.advance(3)
        bar.update("損失 [1.5]")


@pytest.mark.parametrize("total", [10, None])
def test_a_terminal_sees_the_bar_and_brackets_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, total: float | None
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    run(total)
    assert "reading [red]" in terminal.getvalue()
    assert "損失 [1.5]" in terminal.getvalue()


def test_what_is_printed_beside_a_bar_goes_where_it_should(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.bar("reading", 10):
        print("結果 [1]")
    assert capsys.readouterr().out == "結果 [1]\n"


def test_a_log_file_sees_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(10)
    assert capfd.readouterr() == ("", "")
