"""The demo from end to end with a smaller model and a few steps, and how it ends early."""

import dataclasses

import pytest

from hayakuchi import demo
from hayakuchi.config import CtrlConfig
from hayakuchi.errors import UserError


@pytest.fixture
def small(monkeypatch):
    sizes = CtrlConfig(vocabulary_size=3_000, length=32, layers=1, width=32, heads=2, feed_forward=64)
    recipe = dataclasses.replace(demo.CTRL_NANO, model=sizes)
    monkeypatch.setattr(demo, "CTRL_NANO", recipe)
    monkeypatch.setattr(demo, "PROBE_STEPS", 3)
    monkeypatch.setattr(demo, "_RESERVED_SECONDS", 1_000.0)  # no time, hence the fewest steps
    monkeypatch.setattr(demo, "_SAMPLE_TOKENS", 8)


def test_the_demo_trains_and_writes_for_three_codes_and_can_be_run_again(tmp_path, capsys, small):
    out = tmp_path / "demo"
    for _ in range(2):
        result = demo.run_demo(out, 2)
        assert result["train"]["steps"] == 3
        assert result["samples"].keys() == {"story", "howto", "letter"}
        assert 0 < result["evaluate"]["bits_per_character"] < 16
        assert not (out / "probe").exists()
    assert all(f"[{code}]" in capsys.readouterr().out for code in ["letter"])


def test_an_interrupted_training_ends_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "train_ctrl", lambda *_: {"stopped_by": "SIGINT"})
    monkeypatch.setattr(demo, "prepare_text", lambda *_: {})
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path / "demo", 2)


def test_what_is_not_of_a_demo_stays(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "file").write_text("important")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="--out"):
            demo.run_demo(out, 2)
    assert (tmp_path / "data").is_dir()
    assert (tmp_path / "file").read_text() == "important"


@pytest.mark.parametrize("minutes", [1.9, 1_441, float("nan")])
def test_minutes_out_of_range_are_told(tmp_path, minutes):
    with pytest.raises(UserError, match="2 to 1440"):
        demo.run_demo(tmp_path / "demo", minutes)
