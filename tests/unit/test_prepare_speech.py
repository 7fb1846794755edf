import dataclasses
import itertools
import json
import shutil
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from hayakuchi.cli import main
from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.recording import Recording
from hayakuchi.data import prepare_speech as module
from hayakuchi.data import speech_blocks
from hayakuchi.data.prepare_speech import SpeechOptions, prepare_speech, summary
from hayakuchi.data.speech_blocks import BLOCK_CLIPS, ClipTask, blocks
from hayakuchi.data.speech_shards import SpeechInfo, open_speech_split
from hayakuchi.errors import UserError
from hayakuchi.speech import frontend
from hayakuchi.speech.symbols import INVENTORY

RATE = 24_000
PLACES = ["春の川", "古い時計", "山の宿", "小さな舟", "町の灯", "夜汽車", "白い犬", "北の港"]
DEEDS = ["静かに揺れている", "遠くへ消えた", "誰かを待っていた", "雨に濡れて光った", "朝まで歌った"]
SENTENCES = [f"{place}は{deed}。" for place, deed in itertools.product(PLACES, DEEDS)]


@dataclass(frozen=True)
class FakeReader:
    found: tuple[Recording | Dropped, ...]

    def recordings(self) -> Iterator[Recording | Dropped]:
        yield from self.found


def voice(seconds: float, rate: int = RATE, seed: int = 0, amplitude: float = 0.3) -> np.ndarray:
    times = np.arange(round(seconds * rate)) / rate
    return amplitude * np.sin(2 * np.pi * (140 + seed) * times) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * times))


def save(path: Path, audio: np.ndarray, rate: int = RATE, subtype: str = "PCM_16") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, audio, rate, subtype=subtype)
    return path


def recording(path: Path, text: str, speaker: str = "a", split: str = "") -> Recording:
    return Recording(path.stem, speaker, text, path, split)


@pytest.fixture
def corpus(tmp_path) -> list[Recording]:
    """Twenty sentences, read by two speakers each."""
    return [
        recording(save(tmp_path / "wav" / f"{speaker}{number:02}.wav", voice(2.5, seed=number)), sentence, speaker)
        for speaker in ("a", "b")
        for number, sentence in enumerate(SENTENCES[:20])
    ]


@pytest.fixture
def small_blocks(monkeypatch):
    """Several shards from a few clips."""
    monkeypatch.setattr(speech_blocks, "BLOCK_CLIPS", 8)


def prepare(out: Path, found, **options) -> dict:
    report = prepare_speech(out, [FakeReader(tuple(found))], SpeechOptions(workers=1, **options))
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == json.loads(json.dumps(report))
    return report


def content(out: Path) -> dict[str, bytes]:
    """All files of a data set but the report, which tells the time."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != "report.json"
    }


def reasons(report: dict) -> dict[str, str]:
    return {clip["name"]: clip["reason"] for clip in report["dropped"]["clips"]}


def test_clips_come_out_with_their_symbols_and_sound(tmp_path, corpus, small_blocks):
    report = prepare(tmp_path / "out", corpus, heldout_fraction=0.2)
    front_end = frontend.make_front_end()
    seen = {}
    for split in ("train", "heldout"):
        clips = open_speech_split(tmp_path / "out", split)
        for index in range(len(clips)):
            seen[clips.name(index)] = split
            original = next(one for one in corpus if one.name == clips.name(index))
            assert clips.text(index) == original.text
            assert clips.ids(index).tolist() == INVENTORY.encode(front_end.read(original.text).utterance)
            assert clips.info.speakers[clips.speakers[index]] == original.speaker
            assert np.array_equal(clips.audio(index), soundfile.read(original.audio, dtype="int16")[0])
        assert report["splits"][split]["clips"] == len(clips)
        assert report["splits"][split]["seconds"] == pytest.approx(clips.samples.sum() / RATE)
    assert sorted(seen) == sorted(one.name for one in corpus)
    assert report["shards"]["built"] > 1
    info = SpeechInfo.load(tmp_path / "out" / "dataset.json")
    assert info.speakers == ("a", "b")
    assert info.front_end == {"engine": "haqumei", "version": front_end.version, "devoiced": "keep"}
    assert "40 of 40" in summary(report)


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, corpus):
    prepare(tmp_path / "one", corpus)
    prepare_speech(tmp_path / "two", [FakeReader(tuple(corpus))], SpeechOptions(workers=2))
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_sentence_is_on_one_side_for_all_speakers(tmp_path, corpus):
    prepare(tmp_path / "out", corpus, heldout_fraction=0.3)
    train, heldout = (open_speech_split(tmp_path / "out", split) for split in ("train", "heldout"))
    texts = [{clips.text(index) for index in range(len(clips))} for clips in (train, heldout)]
    assert all(texts)
    assert not texts[0] & texts[1]
    for clips in (train, heldout):
        assert set(clips.speakers.tolist()) == {0, 1}


def test_the_split_of_the_corpus_goes_before(tmp_path, corpus):
    given = [
        Recording(one.name, one.speaker, one.text, one.audio, "heldout" if number % 4 == 0 else "train")
        for number, one in enumerate(corpus)
    ]
    prepare(tmp_path / "out", given, heldout_fraction=0.5)
    heldout = open_speech_split(tmp_path / "out", "heldout")
    assert [heldout.name(index) for index in range(len(heldout))] == [one.name for one in given[::4]]


def test_two_sentences_are_enough_for_both_sides_and_none_is_held_out_for_nothing(tmp_path, corpus):
    for fraction, heldout in ((0.01, 1), (0.99, 1), (0.0, 0)):
        report = prepare(tmp_path / f"{fraction}", corpus[:2], heldout_fraction=fraction)
        assert report["splits"]["heldout"]["clips"] == heldout


def test_s1_clips_of_one_length(tmp_path):
    found = [
        recording(save(tmp_path / f"{number}.wav", voice(400 * 256 / RATE, seed=number)), SENTENCES[number])
        for number in range(10)
    ]
    prepare(tmp_path / "out", found)
    assert set(open_speech_split(tmp_path / "out", "train").samples.tolist()) == {400 * 256}


def test_s2_more_symbols_than_frames(tmp_path, corpus):
    short = recording(save(tmp_path / "short.wav", voice(5 * 256 / RATE)), "おはようだ。")
    report = prepare(tmp_path / "out", [*corpus[:2], short])
    assert reasons(report) == {"short": "more symbols than frames"}
    assert "5 frames" in report["dropped"]["clips"][0]["detail"]


def test_the_alignment_has_a_frame_for_every_symbol_and_blank(tmp_path):
    text = SENTENCES[0]
    symbols = 2 * len(frontend.make_front_end().read(text).utterance) + 1
    for frames in (symbols - 1, symbols):
        task = ClipTask("x", "a", text, list(range(1, symbols // 2 + 1)), "", tmp_path / f"{frames}.wav")
        save(task.audio, voice((frames * 256 + 255) / RATE))
        found = speech_blocks.prepare_clip(task, SpeechOptions().audio)
        assert isinstance(found, tuple) == (frames == symbols)


def test_s17_odd_files(tmp_path):
    folder = tmp_path / "wav"
    stereo = voice(2.0, 48_000)
    (folder).mkdir()
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.wav").write_text("これは音声ではありません。\n", encoding="utf-8")
    whole = save(folder / "whole.wav", voice(2.0)).read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2])
    broken = voice(2.0)
    broken[50] = np.nan
    found = [
        recording(save(folder / "stereo.wav", np.stack([stereo, stereo / 2], 1), 48_000, "PCM_24"), SENTENCES[0]),
        recording(save(folder / "slow.wav", voice(2.0, 16_000), 16_000), SENTENCES[1]),
        recording(folder / "empty.wav", SENTENCES[2]),
        recording(save(folder / "no samples.wav", np.zeros(0)), SENTENCES[2]),
        recording(folder / "text.wav", SENTENCES[3]),
        recording(folder / "cut.wav", SENTENCES[4]),
        recording(folder / "missing.wav", SENTENCES[5]),
        recording(save(folder / "nan.wav", broken, subtype="FLOAT"), SENTENCES[6]),
        recording(save(folder / "silence.wav", np.zeros(2 * RATE)), SENTENCES[7]),
        recording(save(folder / "long.wav", voice(16.0)), SENTENCES[8]),
        recording(save(folder / "tiny.wav", voice(0.39)), "絵。"),
        recording(folder / "whole.wav", "……！"),
        Dropped("jvs030/VOICEACTRESS100_045", "no sound file", "nowhere"),
    ]
    report = prepare(tmp_path / "out", found)
    assert reasons(report) == {
        "empty": "empty",
        "no samples": "empty",
        "text": "not audio",
        "cut": "cut short",
        "missing": "unreadable",
        "nan": "not finite",
        "silence": "silent",
        "long": "too long",
        "tiny": "too short",
        "whole": "nothing to say",
        "jvs030/VOICEACTRESS100_045": "no sound file",
    }
    assert (report["clips_in"], report["clips_out"]) == (len(found), 2)
    for split in ("train", "heldout"):
        clips = open_speech_split(tmp_path / "out", split)
        assert clips.samples.tolist() == [2 * RATE]
        level = 0.75 if clips.name(0) == "stereo" else 1.0
        expected = np.sqrt(np.mean(np.square(level * voice(2.0) * 32_768)))
        assert np.sqrt(np.mean(np.square(clips.audio(0), dtype=np.float64))) == pytest.approx(expected, rel=0.01)
    assert all(clip["name"] in json.dumps(report["dropped"], ensure_ascii=False) for clip in report["dropped"]["clips"])


def test_s13_a_cut_shard_is_rebuilt(tmp_path, corpus, small_blocks):
    out = tmp_path / "out"
    shards = prepare(out, corpus)["shards"]["built"]
    before = content(out)
    victim = min((out / "shards").glob("*.npy"))
    victim.write_bytes(victim.read_bytes()[:-100])
    report = prepare(out, corpus)
    assert report["shards"] == {"built": 0, "rebuilt": 1, "reused": shards - 1}
    assert content(out) == before
    data = bytearray(victim.read_bytes())
    data[500] ^= 1  # of the same length
    victim.write_bytes(data)
    max((out / "shards").glob("*.jsonl")).write_bytes(b"")
    assert prepare(out, corpus)["shards"] == {"built": 0, "rebuilt": 2, "reused": shards - 2}
    assert content(out) == before


def test_an_interrupted_preparation_goes_on(tmp_path, corpus, small_blocks, monkeypatch):
    out = tmp_path / "out"
    build, done = speech_blocks.build_block, []

    def breaks_off(task):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(build(task))
        return done[-1]

    monkeypatch.setattr(module, "build_block", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        prepare(out, corpus)
    with pytest.raises(UserError, match="not a data set directory"):
        open_speech_split(out, "train")
    monkeypatch.setattr(module, "build_block", build)
    (out / "shards" / f"{'0' * 32}.npy.partial-77").write_bytes(b"left behind")
    report = prepare(out, corpus)
    assert report["shards"]["reused"] == 3
    prepare(tmp_path / "at once", corpus)
    assert content(out) == content(tmp_path / "at once")


@pytest.mark.parametrize("change", ["sound", "text", "name"])
def test_what_changed_is_rebuilt_and_what_is_unused_goes(tmp_path, corpus, small_blocks, change):
    out = tmp_path / "out"
    shards = prepare(out, corpus)["shards"]["built"]
    changed = corpus[5]
    if change == "sound":
        save(changed.audio, voice(2.5, seed=77))  # of the same size
    elif change == "text":
        changed = Recording(changed.name, changed.speaker, SENTENCES[30], changed.audio)
    else:
        changed = Recording(changed.name, "c", changed.text, changed.audio)
    now = [*corpus[:5], changed, *corpus[6:]]
    assert prepare(out, now)["shards"] == {"built": 1, "rebuilt": 0, "reused": shards - 1}
    prepare(tmp_path / "new", now)
    assert content(out) == content(tmp_path / "new")


@pytest.mark.parametrize("added", [0, 7, 40])
def test_an_added_clip_rebuilds_little(tmp_path, corpus, small_blocks, added):
    out = tmp_path / "out"
    shards = prepare(out, corpus)["shards"]["built"]
    extra = recording(save(tmp_path / "wav" / "extra.wav", voice(3.0)), SENTENCES[33])
    report = prepare(out, [*corpus[:added], extra, *corpus[added:]])
    assert report["shards"]["reused"] >= shards - 2


def test_settings_of_the_sound_rebuild_all_and_others_nothing(tmp_path, corpus):
    out = tmp_path / "out"
    built = prepare(out, corpus)["shards"]["built"]
    for other in ({"heldout_fraction": 0.5}, {"loudness": "drop"}, {}):
        assert prepare(out, corpus, **other)["shards"] == {"built": 0, "rebuilt": 0, "reused": built}
    for changed in ({"sample_rate_hz": 16_000}, {"trim": True}, {"normalise": True}, {"min_seconds": 0.5}):
        assert prepare(out, corpus, **changed)["shards"]["built"] == built
        assert len(list((out / "shards").iterdir())) == 2 * built


def test_a_sentence_that_one_corpus_holds_out_is_held_out_in_all(tmp_path, corpus):
    first = [Recording(f"jvs/{one.name}", "j", one.text, one.audio, "train") for one in corpus[:10]]
    held = [Recording(f"jvs/{one.name}", "j", one.text, one.audio, "heldout") for one in corpus[10:13]]
    # The other corpus has the same sentences with other signs.
    other = [Recording(one.name, "b", one.text.replace("。", " !"), one.audio, "") for one in corpus[20:33]]
    third = [Recording("c", "c", corpus[11].text, corpus[11].audio, "train")]
    report = prepare(tmp_path / "out", [*first, *other, *held, *third], heldout_fraction=0.01)
    names = {
        split: {clips.name(index) for index in range(len(clips))}
        for split in ("train", "heldout")
        for clips in [open_speech_split(tmp_path / "out", split)]
    }
    held_out = {one.name for one in [*held, *other[10:13], *third]}
    assert names == {"heldout": held_out, "train": {one.name for one in [*first, *other[:10]]}}
    assert report["moved"] == {"train": 0, "heldout": 4}
    assert "moved to heldout, where another corpus has the sentence: 4 clips" in summary(report)


def test_devoiced_vowels_fold_by_option(tmp_path, corpus):
    text = "つくしです。"
    found = [recording(corpus[0].audio, text), recording(corpus[1].audio, SENTENCES[1])]
    symbols = {}
    for devoiced in ("keep", "fold"):
        prepare(tmp_path / "out", found, devoiced=devoiced, heldout_fraction=0.0)
        clips = open_speech_split(tmp_path / "out", "train")
        symbols[devoiced] = INVENTORY.decode(clips.ids(0).tolist())
        assert clips.info.front_end["devoiced"] == devoiced
    assert "U" in symbols["keep"]
    assert symbols["fold"] == [symbol.lower() if symbol in "AIUEO" else symbol for symbol in symbols["keep"]]


def test_trimming_and_levelling(tmp_path):
    quiet = np.concatenate([np.zeros(RATE), voice(2.0, amplitude=0.05), np.zeros(RATE)])
    found = [
        recording(save(tmp_path / f"{number}.wav", gain * quiet), SENTENCES[number])
        for number, gain in enumerate((1, 4, 10))
    ]
    prepare(tmp_path / "out", found, trim=True, normalise=True, heldout_fraction=0.0)
    clips = open_speech_split(tmp_path / "out", "train")
    assert np.all(np.abs(clips.samples / RATE - 2.2) < 0.05)
    levels = [np.sqrt(np.mean(np.square(clips.audio(index), dtype=np.float64))) for index in range(3)]
    assert max(levels) < 1.02 * min(levels)


@pytest.mark.parametrize("loudness", ["warn", "drop", "off"])
def test_loudness_is_checked_by_option(tmp_path, corpus, loudness):
    clipped = recording(save(tmp_path / "clipped.wav", np.clip(4 * voice(2.5), -1, 1)), SENTENCES[30])
    faint = recording(save(tmp_path / "faint.wav", voice(2.5, amplitude=0.01)), SENTENCES[31])
    report = prepare(tmp_path / "out", [*corpus, clipped, faint], loudness=loudness)
    found = {"clipped": "clipped", "faint": "unusual level"}
    assert reasons(report) == (found if loudness == "drop" else {})
    warnings = {clip["name"]: clip["reason"] for clip in report["warnings"]["clips"]}
    assert warnings == (found if loudness == "warn" else {})
    assert report["clips_out"] == len(corpus) + (0 if loudness == "drop" else 2)


def test_words_that_cannot_be_read_are_reported_and_their_clips_kept(tmp_path, corpus):
    odd = recording(corpus[0].audio, "今日は𠮷𪚥と言った。")
    report = prepare(tmp_path / "out", [odd, *corpus[1:3]])
    assert report["clips_out"] == 3
    unread = report["unread"]
    assert unread["clips"] == 1
    assert {word["clip"] for word in unread["top"]} == {odd.name}
    assert all(word["reason"] in ("no reading", "guessed") and word["count"] >= 1 for word in unread["top"])
    assert "not surely read" in summary(report)


def test_symbols_are_counted_in_the_training_clips(tmp_path, corpus):
    report = prepare(tmp_path / "out", corpus, heldout_fraction=0.3)
    train = open_speech_split(tmp_path / "out", "train")
    counts = np.bincount(np.concatenate([train.ids(index) for index in range(len(train))]), minlength=INVENTORY.size)
    assert report["symbols"]["counts"] == dict(zip(INVENTORY.symbols[1:], counts[1:].tolist(), strict=True))
    assert set(report["symbols"]["unused"]) == {
        symbol for symbol, count in zip(INVENTORY.symbols[1:], counts[1:], strict=True) if not count
    }


@pytest.mark.parametrize(
    "text",
    ["", "か\u3099𠮟葛󠄀👨‍👩‍👧です", "\ud800文\udfffだ", "\0\u200b", "長い" * 10_000, "ﾊﾝｶｸ①㈱", "\n\n声。\n声。"],
)
def test_hostile_transcripts_and_names(tmp_path, corpus, text):
    odd = Recording("名\udc80/\n", "話者\udcff", text, corpus[0].audio)
    report = prepare(tmp_path / "out", [odd, *corpus[1:3]])
    named = {clip["name"] for clip in report["dropped"]["clips"]}
    kept = [open_speech_split(tmp_path / "out", split) for split in ("train", "heldout")]
    names = {clips.name(index) for clips in kept for index in range(len(clips))}
    assert len(named) + len(names) == 3
    assert not named & names
    prepared = [clips.text(index) for clips in kept for index in range(len(clips)) if "名" in clips.name(index)]
    assert prepared in ([], [text])
    assert json.dumps(report, ensure_ascii=False).encode()


def test_if_nothing_is_left_nothing_is_made(tmp_path, corpus):
    out = tmp_path / "deep" / "out"
    silence = [recording(save(tmp_path / f"{n}.wav", np.zeros(RATE)), SENTENCES[n]) for n in range(3)]
    with pytest.raises(UserError, match=r"no clip to train on.*3 silent.*0: silent") as caught:
        prepare(out, silence)
    assert "\n" not in str(caught.value)
    assert not out.exists()
    with pytest.raises(UserError, match="no clip to train on"):
        prepare(out, [])
    assert not out.exists()
    prepare(out, corpus)
    before = content(out)
    with pytest.raises(UserError, match="no clip to train on"):
        prepare(out, silence)
    # The data set that was there before is still whole.
    assert before.items() <= content(out).items()
    assert len(open_speech_split(out, "train"))


def test_a_failing_source_leaves_nothing(tmp_path):
    class Broken:
        def recordings(self):
            raise UserError("corpus: not there")
            yield

    with pytest.raises(UserError, match="corpus: not there"):
        prepare_speech(tmp_path / "out", [Broken()], SpeechOptions(workers=1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["file", "folder", "text data set"])
def test_a_directory_of_others_is_refused_and_untouched(tmp_path, corpus, kind):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine", encoding="utf-8")
    else:
        out.mkdir()
        name = "dataset.json" if kind == "text data set" else "notes.txt"
        (out / name).write_text('{"format_version": 1}', encoding="utf-8")
    with pytest.raises(UserError, match="exists and is not a data set of `prepare speech`"):
        prepare(out, corpus)
    assert out.is_file() or len(list(out.iterdir())) == 1


def test_files_of_the_user_in_the_directory_stay(tmp_path, corpus):
    out = tmp_path / "out"
    prepare(out, corpus)
    for name in ("notes.txt", "shards/notes.npy"):
        (out / name).write_text("mine", encoding="utf-8")
    prepare(out, corpus, trim=True)
    assert (out / "notes.txt").exists()
    assert (out / "shards" / "notes.npy").exists()


def test_a_sound_file_that_is_still_written_to_is_noticed(tmp_path, corpus, monkeypatch):
    read = speech_blocks.read_audio

    def read_and_touch(path, *arguments, **named):
        found = read(path, *arguments, **named)
        with path.open("ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(speech_blocks, "read_audio", read_and_touch)
    with pytest.raises(UserError, match=r"a00\.wav: changed while it was read"):
        prepare(tmp_path / "out", corpus)
    assert not (tmp_path / "out").exists()


def test_no_room_on_the_disk(tmp_path, corpus, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(speech_blocks, "write_shard", full)
    with pytest.raises(UserError, match=r"out: cannot write it.*No space left"):
        prepare(tmp_path / "out", corpus)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_rate_hz": 100}, "sample-rate=100"),
        ({"workers": 0}, "workers=0"),
        ({"heldout_fraction": 1.0}, r"heldout=1\.0"),
        ({"min_seconds": -1.0}, "min-seconds"),
        ({"max_seconds": 0.1}, r"max-seconds=0\.1"),
        ({"max_seconds": float("nan")}, "max-seconds=nan"),
        ({"loudness": "louder"}, "loudness='louder'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        SpeechOptions(**options)


@pytest.mark.parametrize("options", [{"engine": "festival"}, {"devoiced": "sometimes"}])
def test_bad_front_ends_are_named_before_anything_is_made(tmp_path, corpus, options):
    with pytest.raises(UserError, match=next(iter(options.values()))):
        prepare(tmp_path / "out", corpus, **options)
    assert not (tmp_path / "out").exists()


def test_blocks_are_bounded_and_mend_after_an_added_clip():
    def cut(names):
        return [[clip.name for clip in block] for block in blocks(ClipTask(n, "", "", [], "", Path()) for n in names)]

    names = [f"jvs{number:04}" for number in range(2_000)]
    before, after = cut(names), cut([*names[:100], "new", *names[100:]])
    assert max(map(len, before)) <= BLOCK_CLIPS
    assert sum(before, []) == names  # noqa: RUF017 - a few small lists
    assert len(set(map(tuple, after)) - set(map(tuple, before))) <= 4
    assert cut(["same"] * 1_000) == cut(["same"] * 1_000)


def test_the_command(tmp_path, capsys):
    for number in range(4):
        save(tmp_path / "corpus" / "wavs" / f"{number}.wav", voice(2.5, 22_050, seed=number), 22_050)
    lines = "".join(f"{n}|{SENTENCES[n]}|{SENTENCES[n]}\n" for n in range(4))
    (tmp_path / "corpus" / "metadata.csv").write_text(lines, encoding="utf-8")
    out = tmp_path / "out"
    words = ["prepare", "speech", str(out), "--source", f"ljspeech:{tmp_path / 'corpus'}", "--workers", "1"]
    assert main([*words, "--json", str(tmp_path / "report.json"), "--trim"]) == 0
    assert "clips: 4 of 4" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["options"]["trim"] is True
    shutil.rmtree(out)
    assert main(["prepare", "speech", str(out)]) == 2
    assert "--source is missing" in capsys.readouterr().err


def test_speakers_of_nearly_the_same_name_are_joined_or_named(tmp_path, corpus):
    names = ["Hanako", "hanako", "ＨＡＮＡＫＯ", "ガ", unicodedata.normalize("NFD", "ガ"), "太郎"]
    found = [dataclasses.replace(clip, speaker=name) for clip, name in zip(corpus, names, strict=False)]
    report = prepare(tmp_path / "out", found, heldout_fraction=0)
    assert SpeechInfo.load(tmp_path / "out" / "dataset.json").speakers == (
        "Hanako",
        "hanako",
        "ガ",
        "太郎",
        "ＨＡＮＡＫＯ",
    )
    assert report["alike_speakers"] == [["Hanako", "hanako", "ＨＡＮＡＫＯ"]]
    assert "kept apart: Hanako, hanako, ＨＡＮＡＫＯ" in summary(report)


def test_transcripts_in_another_language_are_kept_and_named(tmp_path, corpus):
    texts = ["今天天气很好。", "How do you do?", SENTENCES[0]]
    found = [dataclasses.replace(clip, text=text) for clip, text in zip(corpus, texts, strict=False)]
    report = prepare(tmp_path / "out", found)
    named = {clip["name"]: clip["reason"] for clip in report["warnings"]["clips"]}
    assert named == {"a00": "perhaps Chinese", "a01": "perhaps English"}
    assert "kept, perhaps Chinese: 1" in summary(report)
