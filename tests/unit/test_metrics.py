"""The reporter: a step late, on disk at once, and clear about a disk that is full."""

import json
from pathlib import Path

import pytest

from hayakuchi import progress
from hayakuchi.errors import UserError
from hayakuchi.train.metrics import NonFiniteLossError, Reporter
from tensorboard_events import events


class OnDevice:
    """A number that tells when it was fetched."""

    def __init__(self, value, fetched):
        self.value, self.fetched = value, fetched

    def __float__(self):
        self.fetched.append(self.value)
        return float(self.value)


def metrics(loss, fetched):
    return {"loss": OnDevice(loss, fetched), "tokens": 4}


@pytest.fixture
def bar():
    with progress.bar("test", 10) as bar:
        yield bar


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_fetched_a_step_late(tmp_path, bar):
    fetched = []
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        for step in (1, 2, 3):
            reporter.push(step, metrics(step, fetched))
            assert fetched == list(range(1, step))
        reporter.flush()
        assert fetched == [1, 2, 3]
    assert reporter.done == 12


def test_lines_are_on_disk_at_once_and_a_resumed_run_appends(tmp_path, bar):
    for first in (1, 21):
        with Reporter(tmp_path, bar, log_every=10) as reporter:
            for step in range(first, first + 20):
                reporter.push(step, metrics(step, []))
            reporter.flush()
            assert lines(tmp_path)[-1]["step"] == first + 19
    assert [line["step"] for line in lines(tmp_path)] == [1, 10, 20, 30, 40]


@pytest.mark.parametrize("torn", ["", '{"step": 7, "lo', '{"step": 7}'])
def test_a_resumed_run_cuts_what_is_later_than_its_checkpoint(tmp_path, bar, torn):
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        for step in range(1, 7):
            reporter.write(step, {"loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(torn)
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        assert not reporter.resume(4)
        assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
        reporter.write(4, {"held_out_loss": 2.0})
        reporter.write(5, {"loss": 3.0})
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        assert reporter.resume(4), "the held-out loss at this step is known"
    assert lines(tmp_path)[-1] == {"step": 4, "held_out_loss": 2.0}
    starts = [event.step for event in events(tmp_path / "tensorboard") if event.HasField("session_log")]
    assert starts == [5, 5]


def test_a_run_without_a_checkpoint_starts_its_records_again(tmp_path, bar):
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        reporter.write(1, {"loss": 1.0})
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        reporter.resume(0)
    assert lines(tmp_path) == []
    assert [event.step for event in events(tmp_path / "tensorboard") if event.HasField("session_log")] == [1]


def test_pauses_are_no_training_time(tmp_path, bar):
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        reporter.clock.started -= 100
        reporter.clock.paused, reporter.clock.waiting = 60.0, 4.0
        assert reporter.clock.training() == pytest.approx(40, abs=1)
        assert reporter.wait_share() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_told_with_its_step(tmp_path, bar, value):
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        reporter.push(7, metrics(value, []))
        with pytest.raises(NonFiniteLossError, match="step 7: loss"):
            reporter.flush()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_error_that_names_the_folder(tmp_path, bar):
    """Closing what could not be written fails again, and must not take the place of the first error."""
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")

    def report():
        with Reporter(tmp_path, bar, log_every=1) as reporter:
            reporter.push(1, metrics(1, []))
            reporter.flush()

    with pytest.raises(UserError, match=f"{tmp_path}: .*No space left"):
        report()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, bar):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=str(tmp_path)):
        Reporter(tmp_path, bar, log_every=1)


def test_other_processes_write_nothing(tmp_path, bar, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Reporter(None, bar, log_every=1) as reporter:
        reporter.push(1, metrics(1, []))
        reporter.flush()
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_not_finite_are_null_to_strict_readers(tmp_path, bar):
    with Reporter(tmp_path, bar, log_every=1) as reporter:
        reporter.write(3, {"held_out_loss": float("nan"), "other": float("inf"), "loss": 1.5})
    content = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    [line] = [json.loads(line, parse_constant=pytest.fail) for line in content.splitlines()]
    assert line == {"step": 3, "held_out_loss": None, "other": None, "loss": 1.5}
