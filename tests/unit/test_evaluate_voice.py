"""The measures on signals whose answer is known, and the verb on a tiny voice."""

import dataclasses
import json
import time

import numpy as np
import pytest

from hayakuchi import cli
from hayakuchi.data.speech_files import Clip, write_shard
from hayakuchi.data.speech_shards import ShardEntry, SpeechCounts, open_speech_split
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.evaluate import voice, voice_measures
from hayakuchi.evaluate.text import evaluate_text
from hayakuchi.evaluate.voice import evaluate_voice, reconstruct, voice_summary
from hayakuchi.evaluate.voice_measures import Analysis, align, analyse, check_speakers, compare, mel_cepstra, warping
from hayakuchi.speech.audio import read_audio
from hayakuchi.speech.symbols import INVENTORY
from helpers import random_dataset
from tiny_text_run import tiny_text_run
from tiny_voice_run import NAMES, save_voice, tiny_voice_run

RATE = 16_000


def vowel(f0_hz, seconds=0.6, formants=(700, 1_200, 2_600), rate=RATE, edge=0.1):
    """Pulses through resonances, with silence at both ends."""
    pulses = np.zeros(round(seconds * rate))
    pulses[(np.arange(int(seconds * f0_hz)) / f0_hz * rate).astype(int)] = 1
    spectrum, hz = np.fft.rfft(pulses), np.fft.rfftfreq(len(pulses), 1 / rate)
    shape = sum(1 / (1 + ((hz - center) / 90) ** 2) for center in formants)
    sound = np.fft.irfft(spectrum * np.sqrt(shape), len(pulses))
    return np.pad(0.5 * sound / np.abs(sound).max(), round(edge * rate))


def measured(one, other):
    return compare(analyse(one, RATE), analyse(other, RATE))


def test_the_same_sound_has_no_distance():
    assert measured(vowel(150), vowel(150)) == (0, 0, 0, 1)


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.5])
def test_a_higher_pitch_is_its_logarithm(ratio):
    found = measured(vowel(200), vowel(200 * ratio))
    assert found.log_f0_rmse == pytest.approx(abs(np.log(ratio)), abs=0.02)
    assert found.voicing_error < 0.1


def test_level_does_not_count_and_sound_does():
    same, quiet, other = (
        measured(vowel(150), sound)
        for sound in (vowel(150) + 0, 0.3 * vowel(150), vowel(150, formants=(300, 2_300, 3_000)))
    )
    assert quiet.mcd_db == pytest.approx(same.mcd_db, abs=0.05)
    assert other.mcd_db > quiet.mcd_db + 3


def test_a_tilt_of_known_size_is_told_in_decibels():
    """Cepstra of 1 cos(w') apart: ln|H| differs by a wave of 1 neper, whose effective value is 8.686 / sqrt(2) dB."""
    flat = Analysis(np.zeros((5, voice_measures.ORDER)), np.zeros(5), np.ones(5, bool))
    tilted = dataclasses.replace(flat, cepstra=np.eye(voice_measures.ORDER)[[0] * 5])
    assert compare(flat, tilted).mcd_db == pytest.approx(20 / np.log(10) / np.sqrt(2))


def test_length_and_silence_at_the_ends():
    found = measured(vowel(150, 0.4, edge=0.1), vowel(150, 0.8, edge=0.3))
    assert found.length_ratio == pytest.approx(1.4 / 0.6, abs=0.02)
    assert found.mcd_db < 1


def test_silence_has_no_pitch_and_no_distortion():
    sound = vowel(150, edge=0.3)
    hum = sound + 1e-4 * np.sin(np.arange(len(sound)) * 2 * np.pi * 200 / RATE)
    found = analyse(hum, RATE)
    assert not found.sounding[:50].any()
    assert not found.f0_hz[:50].any()
    assert measured(sound, hum).mcd_db < 1


@pytest.mark.parametrize("made", [np.zeros(4_000), np.zeros(0), np.full(1, 0.5), np.full(4_000, 1.0)])
def test_what_is_no_speech_still_has_measures(made):
    found = measured(vowel(150), made)
    assert np.isfinite(found.mcd_db)
    assert found.log_f0_rmse is None
    assert found.voicing_error > 0.7
    assert measured(made, made) == (0, None, 0, 1)


def test_voiced_against_noise():
    noise = 0.1 * np.random.default_rng(0).standard_normal(RATE // 2)
    assert measured(vowel(150), noise).voicing_error > 0.5


@pytest.mark.parametrize("order", [0, 1, 5, voice_measures.ORDER])
def test_a_wave_on_the_warped_axis_is_one_coefficient(order):
    omega = np.linspace(0, np.pi, 513)
    alpha = warping(24_000)
    # The phase of the all-pass (z^-1 - alpha) / (1 - alpha z^-1), with the sign turned.
    z = np.exp(-1j * omega)
    warped = -np.unwrap(np.angle((z - alpha) / (1 - alpha * z)))
    power = np.exp(2 * np.cos(order * warped))
    np.testing.assert_allclose(mel_cepstra(power[None], 24_000)[0], np.eye(voice_measures.ORDER + 1)[order], atol=1e-3)


@pytest.mark.parametrize(("rate", "alpha"), [(8_000, 0.312), (16_000, 0.41), (22_050, 0.455), (44_100, 0.544)])
def test_the_warping_is_the_one_in_use(rate, alpha):
    assert warping(rate) == pytest.approx(alpha, abs=0.002)


def plain_cost(first, second):
    """Least sum of distances of a path, cell by cell."""
    costs = np.linalg.norm(first[:, None] - second[None], axis=2)
    total = np.full((len(first) + 1, len(second) + 1), np.inf)
    total[0, 0] = 0
    for i in range(len(first)):
        for j in range(len(second)):
            total[i + 1, j + 1] = costs[i, j] + min(total[i, j], total[i, j + 1], total[i + 1, j])
    return total[-1, -1]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 7), (7, 1), (5, 5), (13, 30), (31, 12)])
@pytest.mark.parametrize("levels", [0, 2, 1_000])  # 0 and 2: many paths cost the same
def test_warping_is_that_of_a_plain_loop(rows, columns, levels):
    draw = np.random.default_rng(rows * 100 + columns)
    first, second = draw.integers(0, levels + 1, (rows, 3)) * 1.0, draw.integers(0, levels + 1, (columns, 3)) * 1.0
    ours, theirs = align(first, second)
    assert (ours[0], theirs[0], ours[-1], theirs[-1]) == (0, 0, rows - 1, columns - 1)
    steps = np.stack([np.diff(ours), np.diff(theirs)], axis=1)
    assert set(map(tuple, steps.tolist())) <= {(0, 1), (1, 0), (1, 1)}
    assert np.linalg.norm(first[ours] - second[theirs], axis=1).sum() == pytest.approx(plain_cost(first, second))


def test_warping_of_a_thing_with_itself_is_the_diagonal():
    frames = np.random.default_rng(0).standard_normal((200, 4))
    for path in align(frames, frames):
        assert np.array_equal(path, np.arange(200))


def test_warping_undoes_repeated_frames():
    frames = np.random.default_rng(0).standard_normal((50, 4))
    repeats = np.repeat(np.arange(50), np.random.default_rng(1).integers(1, 4, 50))
    ours, theirs = align(frames, frames[repeats])
    assert np.array_equal(ours, repeats)
    assert np.array_equal(theirs, np.arange(len(repeats)))


def test_warping_of_long_clips_is_quick():
    frames = np.random.default_rng(0).standard_normal((2, 1_500, voice_measures.ORDER))
    start = time.process_time()
    align(*frames)
    assert time.process_time() - start < 2  # 0.2 s on a quiet machine


def test_speakers_are_told_apart():  # S12
    draw = np.random.default_rng(0)
    speakers = np.array([0, 0, 0, 1, 1, 1])
    recorded = 10.0 * speakers[:, None] + draw.standard_normal((6, 4))
    for judged in (recorded, recorded + 1):
        found = check_speakers(recorded, judged, speakers)
        assert (found.clips, found.right) == (6, 6)
        assert found.other > 3 * found.own
    # All spoken as the first speaker.
    assert check_speakers(recorded, draw.standard_normal((6, 4)), speakers).right == 3


def test_no_one_is_judged_by_his_own_recording():
    recorded = np.array([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 0.0]])
    found = check_speakers(recorded, recorded, np.array([0, 0, 1, 1]))
    assert found.right == 0  # each is nearer to the other speaker's mean than to the other clip of its own
    assert check_speakers(recorded, recorded, np.array([0, 1, 2, 3])) is None
    assert check_speakers(recorded, recorded, np.zeros(4, int)) is None


def test_pitch_counts_only_where_there_is_some():
    recorded = np.array([[0.0, 50], [0.0, 51], [5.0, 40], [5.0, np.nan]])
    found = check_speakers(recorded, recorded, np.array([0, 0, 1, 1]))
    assert (found.clips, found.right) == (4, 4)
    assert np.isfinite([found.own, found.other]).all()


def write_voice_data(folder, run, *, clips=6, names=None, front_end=None, rate=None):
    """A data set whose held-out clips are vowels of a pitch for each speaker, in turn."""
    names = names or run.info.speakers
    rate = rate or run.sample_rate_hz
    (folder / "shards").mkdir(parents=True)
    records = []
    draw = np.random.default_rng(0)
    for number in range(clips):
        sound = vowel(150 * 1.3 ** (number % len(names)), 0.3 + 0.01 * number, (500, 1_500), rate, 0.05)
        speaker = names[number % len(names)]
        ids = draw.integers(1, INVENTORY.size, 5 + number).tolist()
        clip = Clip(f"声/{number}", speaker, f"第{number}の文\ud800。", ids, len(sound), "", 1.0, -20.0, 0.0)
        records.append((clip, (32_767 * sound).astype(np.int16)))
    shard = write_shard(folder / "shards", "a" * 32, records, [])
    entries = [ShardEntry("a" * 32, shard.sha256, shard.audio_bytes, shard.audio_sha256, "h" * clips)]
    counts = {"train": {}, "heldout": {"all": SpeechCounts(clips, 1.0)}}
    info = dataclasses.replace(run.info, speakers=tuple(names), counts=counts, sample_rate_hz=rate)
    info = dataclasses.replace(info, front_end={**info.front_end, **(front_end or {})})
    info.save(folder / "dataset.json", entries)
    return folder


@pytest.fixture(scope="module")
def run():
    return tiny_voice_run()


@pytest.fixture(scope="module")
def data(run, tmp_path_factory):
    return write_voice_data(tmp_path_factory.mktemp("voice") / "data", run)


@pytest.fixture(scope="module")
def found(run, data):
    return evaluate_voice(run, data)


def test_the_report_adds_up(found):
    report = found.report
    assert (report["step"], report["too_long"]) == (7, 0)
    assert sorted(clip["name"] for clip in report["clips"]) == [f"声/{number}" for number in range(6)]
    for way in ("spoken", "reconstructed"):
        mean = np.mean([clip[way]["mcd_db"] for clip in report["clips"]])
        assert report[way]["mcd_db"] == pytest.approx(mean)
        assert report[way]["mcd_db"] > 0
    assert list(report["speakers"]) == list(NAMES)
    assert sum(means["clips"] for means in report["speakers"].values()) == 6
    # The recordings are as far apart as their pitches.
    assert report["speaker_check"]["recorded"]["right"] == report["speaker_check"]["recorded"]["clips"] == 6
    assert len(voice_summary(report).splitlines()) == 1 + 2 + 3 + 1
    json.dumps(report, allow_nan=False)


def test_it_comes_out_the_same_again(run, data, found):
    again = evaluate_voice(run, data, clips=2).report
    assert again["clips"] == found.report["clips"][:2]
    assert [clip["speaker"] for clip in again["clips"]] == ["haru", "haru"]


def test_a_recording_comes_back_as_long_as_its_frames(run):
    audio = vowel(150, 0.2, rate=8_000).astype(np.float32)
    for part in (audio, audio[:1_001], audio[:5]):
        made = reconstruct(run, part, 1)
        assert made.shape == (max(len(part) // 16, 1) * 16,)
    assert not np.allclose(reconstruct(run, audio, 0), reconstruct(run, audio, 1), atol=1e-3)
    alone = reconstruct(tiny_voice_run(names=("haru",)), audio, 0)
    assert np.abs(alone).max() > 0


def test_clips_are_two_of_each_speaker_first(run, tmp_path):
    split = open_speech_split(write_voice_data(tmp_path / "data", run, clips=12), "heldout")
    chosen, too_long = voice._chosen(split, 100)
    assert sorted(chosen) == list(range(12))
    assert split.speakers[chosen].tolist() == [0, 0, 1, 1, 2, 2] * 2
    split.symbols[chosen[0]] = 512
    rest, too_long = voice._chosen(split, 100)
    assert chosen[0] not in rest
    assert (len(rest), too_long) == (11, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("haru", "fuyu")}, "does not know the speaker 'fuyu'"),
        ({"rate": 16_000}, "prepare it with --sample-rate 8000"),
        ({"front_end": {"devoiced": "fold"}}, "--devoiced fold"),
        ({"clips": 0}, "has no held-out clips"),
    ],
)
def test_data_of_another_kind_is_refused(run, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        evaluate_voice(run, write_voice_data(tmp_path / "data", run, **changes))


def test_no_clips_are_refused(run, data):
    with pytest.raises(UserError, match="clips=0 must be 1 or more"):
        evaluate_voice(run, data, clips=0)


def test_missing_world_is_told_before_the_work(run, data, monkeypatch):
    def missing(_):
        raise ImportError

    monkeypatch.setattr(voice_measures.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"hayakuchi\[speech\]"):
        evaluate_voice(run, data)


def test_the_verb_writes_numbers_picture_and_sounds(run, data, tmp_path, capsys):
    folder, out = save_voice(run, tmp_path / "run"), tmp_path / "new" / "out"
    words = ["evaluate", str(folder), "--data", str(data), "--out", str(out), "--clips", "2"]
    assert cli.main([*words, "--json", str(tmp_path / "r.json")]) == 0
    assert "spoken" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) == report
    assert len(report["clips"]) == 2
    assert (out / "voice.png").read_bytes().startswith(b"\x89PNG")
    ways = ("recorded", "spoken", "reconstructed")
    assert sorted(path.name for path in out.glob("*.wav")) == sorted(
        f"{n:02}_{way}.wav" for n in (0, 1) for way in ways
    )
    recorded = read_audio(out / "00_recorded.wav", run.sample_rate_hz)
    assert len(recorded) / run.sample_rate_hz == pytest.approx(report["clips"][0]["seconds"], abs=1e-3)

    # What took long to measure is shown, and the one file written, if the other cannot be.
    (out / "report.json").unlink()
    assert cli.main([*words, "--json", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "spoken" in told.out
    assert told.err.count("\n") == 1
    assert (out / "report.json").is_file()
    (out / "report.json").unlink()
    (out / "report.json").mkdir()
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert "spoken" in told.out
    assert "report.json: cannot write it" in told.err


def test_text_and_voices_are_not_mixed_up(run, data, tmp_path, capsys):
    folder = save_voice(run, tmp_path / "run")
    text_data = random_dataset(tmp_path / "text")
    assert cli.main(["evaluate", str(folder), "--data", str(text_data)]) == 2
    assert "not a speech data set" in capsys.readouterr().err
    with pytest.raises(UserError, match="prepare text"):
        evaluate_text(tiny_text_run(), data)
