"""From recordings to a voice through the command line: prepare, train, resume, speak, and mistakes in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from hayakuchi import cli, config
from hayakuchi.config import SpeechDataConfig, TrainConfig
from hayakuchi.config.vits import AudioConfig, VitsOptimizerConfig, VitsRecipe
from hayakuchi.infer.voice import load_voice
from tensorboard_events import tags
from vits_models import small_config

RATE = 8_000
RECIPE = VitsRecipe(
    name="tiny",
    model=small_config(
        audio=AudioConfig(sample_rate_hz=RATE, fft_samples=256, window_samples=256, hop_samples=64, mel_bins=20),
        speakers=0,
        upsample_rates=(8, 8),
        upsample_kernels=(16, 16),
        segment_samples=1_024,
        stochastic_durations=False,
        discriminator_division=16,
    ),
    optimizer=VitsOptimizerConfig(average_decay=0.9),
    data=SpeechDataConfig(buckets=1),
    train=TrainConfig(steps=4, batch=2, checkpoint_every=2, log_every=1),
)


def hayakuchi(*words):
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("voice")
    (folder / "tiny.json").write_text(config.to_json(RECIPE))
    source = ("--source", "embedded,speakers=2,sentences=13", "--sample-rate", RATE, "--workers", 1)
    assert hayakuchi("prepare", "speech", folder / "data", *source) == 0
    return folder


def train(folder, run, *options):
    return hayakuchi("train", folder / "tiny.json", folder / run, "--data", folder / "data", *options)


@pytest.fixture(scope="module")
def run(folder) -> Path:
    assert train(folder, "run") == 0
    return folder / "run"


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_losses_pictures_and_sounds(run):
    lines = metrics(run)
    assert [line["step"] for line in lines if "frames" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "held_out_mel_loss" in line] == [2, 4]
    shown = {
        "alignment",
        *(f"{kind}_{name}" for kind in ("mel", "audio") for name in ("recorded", "reconstructed", "spoken")),
    }
    assert {file.stem for file in (run / "samples").iterdir()} == shown
    sound, rate = soundfile.read(run / "samples" / "audio_recorded.wav")
    assert rate == RATE
    assert np.abs(sound).max() > 0.01
    assert shown <= tags(run / "tensorboard")


def test_a_resumed_run_ends_where_the_whole_one_does(folder, run):
    assert train(folder, "parts", "--steps", 2) == 0
    assert train(folder, "parts", "--steps", 4) == 0
    whole, parts = (load_voice(folder / name) for name in ("run", "parts"))
    assert parts.step == whole.step == 4
    last = [metrics(folder / name)[-2:] for name in ("run", "parts")]
    timing = ("frames_per_second", "data_wait_share")
    for one, other in zip(*last, strict=True):
        assert {k: v for k, v in one.items() if k not in timing} == {k: v for k, v in other.items() if k not in timing}


def test_speakers_speak(run, tmp_path, capsys):
    capsys.readouterr()
    out = tmp_path / "said.wav"
    assert hayakuchi("speak", run, "はい。", "--out", out, "--speaker", "jvs002", "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    sound, rate = soundfile.read(out)
    assert rate == RATE
    assert len(sound) == round(result["seconds"] * RATE) > 0


MISTAKES = [
    ("train vits-nano {tmp}/new --data {data}", "prepare it anew with --sample-rate 24000"),
    ("train ctrl-nano {tmp}/new --data {data}", "speech"),
    ("train {recipe} {tmp}/new --data {data} --speakers 3", "the data set decides it"),
    ("train {recipe} {tmp}/new --data {data} --accumulate 2", "accumulate=2 must be 1"),
    ("train {recipe} {tmp}/new --data {data} --batch 3", "must be a multiple of devices"),
    ("train {recipe} {run} --data {data} --learning-rate 1", "was started with learning_rate"),
    ("train {recipe} {tmp}/new --data {tmp}", "not a data set directory"),
    ("generate {run} あ", "voice"),
    ("speak {run} あ --out {tmp}/a.wav --speaker nobody", "jvs001"),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_mistakes_are_one_line(folder, run, tmp_path, capsys, words, told):
    capsys.readouterr()
    names = {"tmp": tmp_path, "data": folder / "data", "recipe": folder / "tiny.json", "run": run}
    assert hayakuchi(*words.format(**names).split()) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_cut_shard_stops_training_in_one_line(folder, tmp_path, capsys):
    import shutil

    data = tmp_path / "data"
    shutil.copytree(folder / "data", data)
    shard = max((data / "shards").glob("*.npy"), key=lambda file: file.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:-1_000])
    assert hayakuchi("train", folder / "tiny.json", tmp_path / "run", "--data", data) == 2
    said = capsys.readouterr().err
    assert shard.name in said
    assert "prepare" in said
