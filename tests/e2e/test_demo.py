"""The demo from end to end with a smaller model and a few steps, and how it ends early."""

import dataclasses

import pytest
import soundfile

from hayakuchi import demo
from hayakuchi.config import CtrlConfig
from hayakuchi.corpora.embedded_voice import EmbeddedVoiceReader
from hayakuchi.errors import UserError


@pytest.fixture
def small(monkeypatch):
    sizes = CtrlConfig(vocabulary_size=3_000, length=32, layers=1, width=32, heads=2, feed_forward=64)
    monkeypatch.setattr(demo, "CTRL_NANO", dataclasses.replace(demo.CTRL_NANO, model=sizes))
    voice = demo.VITS_NANO.model
    voice = dataclasses.replace(
        voice, text_layers=1, upsample_channels=16, posterior_layers=2, flow_couplings=1, flow_layers=2
    )
    train = dataclasses.replace(demo.VITS_NANO.train, batch=2)
    monkeypatch.setattr(demo, "VITS_NANO", dataclasses.replace(demo.VITS_NANO, model=voice, train=train))
    monkeypatch.setattr(demo, "_VOICE", EmbeddedVoiceReader(speakers=1, sentences=26))
    monkeypatch.setattr(demo, "PROBE_STEPS", 3)
    monkeypatch.setattr(demo, "_RESERVED_SECONDS", 1_000.0)  # no time, hence the fewest steps
    monkeypatch.setattr(demo, "_SAMPLE_TOKENS", 8)


def test_the_demo_trains_writes_and_speaks(tmp_path, capsys, small):
    out = tmp_path / "demo"
    result = demo.run_demo(out, 2)
    assert result["train"]["steps"] == result["train_voice"]["steps"] == 3
    assert result["samples"].keys() == {"story", "howto", "letter"}
    assert 0 < result["evaluate"]["bits_per_character"] < 16
    assert not (out / "probe").exists()
    assert "[letter]" in capsys.readouterr().out
    sound, rate = soundfile.read(out / "demo.wav")
    assert rate == 24_000
    assert len(sound) >= round(rate * result["spoken"]["seconds"]) > 0
    assert {file.suffix for file in (out / "voice" / "samples").iterdir()} == {".png", ".wav"}


def test_the_demo_can_be_run_again(tmp_path, monkeypatch):
    (tmp_path / demo._MARKER).write_text("")
    (tmp_path / "text").mkdir()

    def prepare(*_):
        assert not (tmp_path / "text").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "prepare_text", prepare)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path, 2)


def test_an_interrupted_training_ends_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "train_ctrl", lambda *_: {"stopped_by": "SIGINT"})
    monkeypatch.setattr(demo, "prepare_text", lambda *_: {})
    monkeypatch.setattr(demo, "prepare_speech", lambda *_: {})
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path / "demo", 2)


def test_what_is_spoken_is_whole_sentences_of_a_bounded_length():
    text = "これは一つめの文です。" * 30
    assert demo._beginning(text) == "\n".join(["これは一つめの文です。"] * 10)
    assert demo._beginning("") == "こんにちは。"


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
