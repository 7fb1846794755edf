import json
from pathlib import Path

import numpy as np
import pytest

from hayakuchi.data import verification
from hayakuchi.data.speech_files import (
    Clip,
    DamagedShardError,
    DroppedClip,
    audio_path,
    read_shard,
    records_path,
    write_shard,
)
from hayakuchi.data.speech_shards import ShardEntry, SpeechCounts, SpeechInfo, open_speech_split
from hayakuchi.data.verification import file_sha256
from hayakuchi.errors import UserError
from hayakuchi.speech.symbols import INVENTORY

RATE = 24_000
KEYS = ["a" * 32, "b" * 32, "c" * 32]
SPEAKERS = ("静", "jvs002", "zz")


def clip(number: int, samples: int) -> tuple[Clip, np.ndarray]:
    random = np.random.default_rng(number)
    record = Clip(
        name=f"声/{number}",
        speaker=SPEAKERS[number % 3],
        text=f"第{number}の文\ud800。\n",
        ids=random.integers(1, INVENTORY.size, 3 + number).tolist(),
        samples=samples,
        split="",
        source_seconds=samples / RATE,
        level_db=-20.0,
        clipped=0.0,
    )
    return record, random.integers(-32_768, 32_768, samples).astype(np.int16)


CLIPS = [clip(number, 1_000 + 37 * number) for number in range(9)]
LETTERS = ["tth", "t-t", "hht"]


@pytest.fixture
def dataset(tmp_path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    entries = []
    for number, (key, letters) in enumerate(zip(KEYS, LETTERS, strict=True)):
        shard = write_shard(folder, key, CLIPS[3 * number : 3 * number + 3], [DroppedClip("x", "silent", "")])
        entries.append(ShardEntry(key, shard.sha256, shard.audio_bytes, shard.audio_sha256, letters))
    counts = {"train": {"all": SpeechCounts(5, 1.0)}, "heldout": {"all": SpeechCounts(3, 1.0)}}
    front_end = {"engine": "haqumei", "version": "haqumei 1", "devoiced": "keep"}
    SpeechInfo(RATE, SPEAKERS, INVENTORY, front_end, counts).save(tmp_path / "dataset.json", entries)
    return tmp_path


def test_a_shard_comes_back_as_it_was_written(tmp_path):
    dropped = [DroppedClip("x", "too short", "0.1 s"), DroppedClip("y\udc80", "silent", "")]
    written = write_shard(tmp_path, KEYS[0], CLIPS, dropped)
    read = read_shard(tmp_path, KEYS[0], verify_audio=True)
    assert read == written
    assert read.clips == [record for record, _ in CLIPS]
    assert read.dropped == dropped
    # Plain NumPy files, so that others can read them too.
    audio = np.load(audio_path(tmp_path, KEYS[0]), allow_pickle=False)
    assert np.array_equal(audio, np.concatenate([sound for _, sound in CLIPS]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{KEYS[0]}.jsonl", f"{KEYS[0]}.npy"]


def test_a_shard_may_hold_dropped_clips_only(tmp_path):
    assert write_shard(tmp_path, KEYS[0], [], [DroppedClip("x", "silent", "")]) == read_shard(tmp_path, KEYS[0])


@pytest.mark.parametrize(("split", "letter"), [("train", "t"), ("heldout", "h")])
def test_a_split_holds_its_clips_in_order(dataset, split, letter):
    clips = open_speech_split(dataset, split)
    expected = [CLIPS[index] for index, of_clip in enumerate("".join(LETTERS)) if of_clip == letter]
    assert len(clips) == len(expected)
    for index, (record, sound) in enumerate(expected):
        assert clips.name(index) == record.name
        assert clips.text(index) == record.text
        assert clips.ids(index).tolist() == record.ids
        assert clips.audio(index).dtype == np.int16
        assert np.array_equal(clips.audio(index), sound)
        assert clips.samples[index] == len(sound)
        assert clips.symbols[index] == len(record.ids)
        assert clips.info.speakers[clips.speakers[index]] == record.speaker


def test_audio_is_a_view_of_the_file(dataset):
    sound = open_speech_split(dataset, "train").audio(0)
    assert isinstance(sound, np.memmap)
    assert not sound.flags.writeable


def test_the_copy_of_a_run_says_the_same(dataset, tmp_path):
    info = SpeechInfo.load(dataset / "dataset.json")
    info.save(tmp_path / "copy.json")
    assert SpeechInfo.load(tmp_path / "copy.json") == info
    assert "shards" not in json.loads((tmp_path / "copy.json").read_text(encoding="utf-8"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, lengthen, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("file", [audio_path, records_path])
def test_a_missing_or_cut_file_is_seen_on_opening(dataset, harm, file):
    harm(file(dataset / "shards", KEYS[0]))
    with pytest.raises(UserError, match=rf"{KEYS[0]}.*prepare speech.*again") as caught:
        open_speech_split(dataset, "train")
    assert "\n" not in str(caught.value)


def test_changed_records_and_changed_audio_are_seen_on_opening(dataset):
    folder = dataset / "shards"
    open_speech_split(dataset, "train")
    flip(audio_path(folder, KEYS[0]))
    with pytest.raises(UserError, match=rf"{KEYS[0]}\.npy: damaged"):
        open_speech_split(dataset, "train")
    with pytest.raises(DamagedShardError, match=KEYS[0]):
        read_shard(folder, KEYS[0], verify_audio=True)
    flip(records_path(folder, KEYS[1]))
    with pytest.raises(DamagedShardError, match=KEYS[1]):
        open_speech_split(dataset, "train")


def test_a_whole_shard_of_another_preparation_is_refused(dataset):
    write_shard(dataset / "shards", KEYS[0], CLIPS[3:6], [])
    with pytest.raises(DamagedShardError, match=r"not the shard that dataset\.json lists"):
        open_speech_split(dataset, "train")


def test_audio_that_is_not_int16_is_refused(dataset):
    path = audio_path(dataset / "shards", KEYS[0])
    size = path.stat().st_size
    with path.open("wb") as file:
        np.save(file, np.zeros((size - 128) // 2, np.float16))
    assert path.stat().st_size == size
    with pytest.raises(DamagedShardError, match="not the audio"):
        open_speech_split(dataset, "train")


def test_audio_is_read_once_and_always_on_request(dataset, monkeypatch):
    read = []
    monkeypatch.setattr(verification, "file_sha256", lambda path: read.append(path) or file_sha256(path))
    for verify, expected in ((False, 3), (False, 3), (True, 6)):
        open_speech_split(dataset, "train", verify=verify)
        assert len(read) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speakers": ["静", "zz"]}, "speaker 'jvs002' is not in .*dataset.json"),
        (
            {"inventory": INVENTORY.to_dict() | {"symbols": list(INVENTORY.symbols[:8]), "fallbacks": {}}},
            r"symbol id \d+, but",
        ),
    ],
)
def test_symbols_and_speakers_out_of_range_are_named(dataset, change, message):
    path = dataset / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        open_speech_split(dataset, "train")
    assert "\n" not in str(caught.value)


def test_clips_that_are_not_all_listed_are_missed(dataset):
    path = dataset / "dataset.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    del values["shards"][1]
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match="lists 3 clips of train, but counts 5"):
        open_speech_split(dataset, "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "text"}, "not a speech data set"),
        ({"kind": None}, "not a speech data set"),
        ({"format_version": 99}, "format version 99"),
        ({"format_version": 0}, r"format version 0, this program reads 1; run `hayakuchi prepare speech`"),  # T13
        ({"speakers": 3}, "missing or malformed"),
        ({"inventory": {}}, "not a symbol inventory"),
        ({"counts": {"train": {}}}, "missing or malformed"),
        ({"front_end": {}}, "missing or malformed"),
    ],
)
def test_another_dataset_json_is_refused_in_one_line(dataset, change, message):
    path = dataset / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        open_speech_split(dataset, "train")
    assert "\n" not in str(caught.value)


def test_no_data_set(tmp_path):
    with pytest.raises(UserError, match="not a data set directory"):
        open_speech_split(tmp_path, "train")


def test_a_failed_write_leaves_nothing(tmp_path):
    record, sound = CLIPS[0]
    with pytest.raises(AssertionError):
        write_shard(tmp_path, KEYS[0], [(record, sound[1:])], [])
    assert not list(tmp_path.iterdir())
