"""The corpus of the embedded voice: whole, repeatable, with speakers one can tell apart."""

import itertools
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from hayakuchi.corpora import embedded_voice
from hayakuchi.corpora.embedded_voice import EmbeddedVoiceReader, held_out_recordings, write_embedded_voice
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.speech_sources import parse_speech_source
from hayakuchi.errors import UserError
from hayakuchi.speech.audio import read_audio, to_int16
from hayakuchi.speech.hts_voice import SAMPLE_RATE_HZ, SPEAKERS, HtsVoice

pytest.importorskip("pyopenjtalk")
pytest.importorskip("haqumei")
pytest.importorskip("soxr")
pytest.importorskip("soundfile")

SIZE = {"speakers": 2, "parallel": 5, "nonparallel": 3}


@pytest.fixture(scope="module")
def voice():
    return HtsVoice()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedded") / "corpus"
    write_embedded_voice(folder, **SIZE, workers=2)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_speakers_read_the_parallel_sentences_and_each_has_others_alone(corpus):
    found = list(embedded_voice.JvsReader(corpus).recordings())
    assert all(isinstance(clip, Recording) for clip in found)
    texts = defaultdict(list)
    for clip in found:
        texts[clip.speaker, clip.name.split("/")[1]].append(clip.text)
    assert texts["jvs001", "parallel100"] == texts["jvs002", "parallel100"]
    assert len(set(texts["jvs001", "parallel100"])) == 5
    alone = [*texts["jvs001", "nonpara30"], *texts["jvs002", "nonpara30"]]
    assert len({*alone, *texts["jvs001", "parallel100"]}) == 11


def test_a_sentence_held_out_for_one_speaker_is_trained_on_by_none(corpus):
    sides = defaultdict(set)
    for clip in embedded_voice.JvsReader(corpus).recordings():
        sides[clip.text].add(clip.split)
    assert {frozenset(found) for found in sides.values()} == {frozenset({"train"}), frozenset({"heldout"})}


def test_sounds_are_whole_loud_enough_and_not_clipped(corpus):
    for path in corpus.rglob("*.wav"):
        audio = read_audio(path, SAMPLE_RATE_HZ)
        assert 0.5 * SAMPLE_RATE_HZ < len(audio) < 20 * SAMPLE_RATE_HZ
        assert 0.1 < np.abs(audio).max() < 0.96


def test_a_held_out_sentence_can_be_spoken_again_by_its_text(corpus, voice):
    clips = held_out_recordings(corpus)
    assert {clip.speaker for clip in clips} == {"jvs001", "jvs002"}
    for clip in clips:
        spoken = to_int16(voice.say(clip.text, clip.speaker))
        assert np.array_equal(spoken, to_int16(read_audio(clip.audio, SAMPLE_RATE_HZ)))


def test_the_same_settings_give_the_same_bytes_whatever_the_workers(corpus, tmp_path):
    write_embedded_voice(tmp_path / "other", **SIZE, workers=1)
    assert contents(tmp_path / "other") == contents(corpus)


def test_a_whole_corpus_is_left_alone_and_a_damaged_one_is_mended(tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    size = {"speakers": 1, "parallel": 2, "nonparallel": 1}
    write_embedded_voice(folder, **size)
    whole = contents(folder)
    sounds = sorted(folder.rglob("*.wav"))
    sounds[0].unlink()
    sounds[1].write_bytes(sounds[1].read_bytes()[:1000])
    (folder / "jvs001/parallel100/transcripts_utf8.txt").unlink()
    untouched = sounds[2].stat().st_mtime_ns
    write_embedded_voice(folder, **size)
    assert contents(folder) == whole
    assert sounds[2].stat().st_mtime_ns == untouched
    monkeypatch.setattr(embedded_voice, "HtsVoice", lambda: pytest.fail("nothing is missing"))
    write_embedded_voice(folder, **size)


def test_a_corpus_that_was_interrupted_is_completed(tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    size = {"speakers": 1, "parallel": 3, "nonparallel": 0}
    spoken = []

    def interrupted(path, audio, rate):
        if spoken:
            raise KeyboardInterrupt
        spoken.append(path)
        write_wav(path, audio, rate)

    write_wav = embedded_voice.write_wav
    with monkeypatch.context() as patch:
        patch.setattr(embedded_voice, "write_wav", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_embedded_voice(folder, **size, workers=1)
    assert len(list(folder.rglob("*.wav"))) == 1
    assert not list(folder.rglob(".*.wav*"))
    write_embedded_voice(folder, **size, workers=1)
    write_embedded_voice(tmp_path / "at once", **size, workers=1)
    assert contents(folder) == contents(tmp_path / "at once")


def test_the_readme_names_the_voice_and_its_licence(corpus):
    text = (corpus / "README.md").read_text(encoding="utf-8")
    assert "Nagoya Institute of Technology" in text
    assert "creativecommons.org/licenses/by/3.0" in text


def test_other_folders_and_other_settings_are_refused(corpus, tmp_path):
    (tmp_path / "letter.txt").write_text("大切", encoding="utf-8")
    with pytest.raises(UserError, match="holds other things"):
        write_embedded_voice(tmp_path)
    with pytest.raises(UserError, match="another parallel; delete it or name another folder"):
        write_embedded_voice(corpus, speakers=2, parallel=6, nonparallel=3)
    for damage in ("", "[]", '{"sizes": {}}', '{"sizes": 1, "settings": {}}', '{"sizes": {}, "settings": 7}'):
        (tmp_path / "embedded_voice.json").write_text(damage, encoding="utf-8")
        with pytest.raises(UserError, match=r"embedded_voice\.json: damaged"):
            write_embedded_voice(tmp_path)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"speakers": 0}, "speakers=0"),
        ({"speakers": 9}, "must be between 1 and 8"),
        ({"parallel": 0}, "parallel=0"),
        ({"nonparallel": -1}, "nonparallel=-1"),
        ({"workers": 0}, "workers=0"),
        ({"parallel": 4_000}, "but the embedded corpus has 3"),
    ],
)
def test_impossible_sizes(tmp_path, size, message):
    with pytest.raises(UserError, match=message) as caught:
        write_embedded_voice(tmp_path / "x", **size)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_the_source_keeps_its_corpus_in_the_cache_or_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HAYAKUCHI_CACHE", str(tmp_path / "cache"))
    reader = parse_speech_source("embedded,speakers=1,sentences=3")
    assert reader == EmbeddedVoiceReader(None, 1, 3)
    first = list(reader.recordings())
    assert len(first) == 3  # and nothing dropped: the set without sentences is empty, not missing
    assert all(tmp_path / "cache" in clip.audio.parents for clip in first)
    with monkeypatch.context() as patch:
        patch.setattr(embedded_voice, "HtsVoice", lambda: pytest.fail("it is in the cache"))
        assert list(reader.recordings()) == first
    named = parse_speech_source(f"embedded:{tmp_path / 'here'},sentences=3,speakers=1")
    assert [clip.text for clip in named.recordings()] == [clip.text for clip in first]
    assert (tmp_path / "here" / "jvs001").is_dir()


@pytest.mark.parametrize(
    ("speakers", "sentences", "parallel", "nonparallel"),
    [(2, 130, 100, 30), (4, 300, 231, 69), (1, 1, 1, 0), (1, 3_000, 2_308, 692), (2, 3_000, 2_869, 131)],
)
def test_sentences_are_shared_out_as_in_jvs_and_reach_the_whole_corpus(
    tmp_path, monkeypatch, speakers, sentences, parallel, nonparallel
):
    asked = {}
    monkeypatch.setattr(embedded_voice, "write_embedded_voice", lambda _, **size: asked.update(size))
    monkeypatch.setattr(embedded_voice.JvsReader, "recordings", lambda _: iter(()))
    monkeypatch.setattr(embedded_voice, "_texts", lambda: tuple(map(str, range(3_131))))
    list(EmbeddedVoiceReader(tmp_path, speakers, sentences).recordings())
    assert asked == {"speakers": speakers, "parallel": parallel, "nonparallel": nonparallel}


def test_more_sentences_than_there_are(tmp_path):
    with pytest.raises(UserError, match="sentences=9999 must be 1 to 3"):
        list(EmbeddedVoiceReader(tmp_path / "x", sentences=9_999).recordings())


def test_the_settings_file_tells_how_the_speakers_were_made(corpus):
    saved = json.loads((corpus / "embedded_voice.json").read_bytes())["settings"]
    assert saved["speakers"] == {name: list(SPEAKERS[name]) for name in ("jvs001", "jvs002")}


@pytest.mark.parametrize("text", ["", "。", "　", "😀", "\ud800", "\n"])
def test_nothing_to_say_is_no_sound(voice, text):
    assert voice.say(text).shape == (0,)


def test_unknown_speaker(voice):
    with pytest.raises(UserError, match="speaker 'jvs100' is not one of jvs001"):
        voice.say("はい。", "jvs100")


def test_speakers_are_further_apart_than_clips_of_one(voice):
    """S12: two speakers sound alike only if nothing tells them apart but the sentence."""
    pyworld = pytest.importorskip("pyworld")
    texts = [
        "山の上はまだ雪が残っていて、風が冷たかった。",
        "お茶をどうぞ、熱いので気をつけてくださいね。",
        "駅まで歩いて行こうと思ったが、雨が降ってきた。",
        "弟は朝から、裏の畑で芋を掘っている。",
    ]
    clips = {
        (speaker, text): _timbre(pyworld, voice.say(text, speaker).astype(np.float64))
        for speaker in list(SPEAKERS)[:5]
        for text in texts
    }
    within, between = [], defaultdict(list)
    for (one, text), (other, other_text) in itertools.combinations(clips, 2):
        distance = np.linalg.norm(clips[one, text] - clips[other, other_text])
        if one == other:
            within.append(distance)
        else:
            between[one, other].append(distance)
    for pair, distances in between.items():
        assert np.mean(distances) > 1.1 * np.mean(within), pair


def _timbre(pyworld, audio: np.ndarray) -> np.ndarray:
    """Mean log F0 in half-tones, and mean log envelope in 8 mel-like bands in dB, of the voiced frames [9]."""
    f0, times = pyworld.dio(audio, SAMPLE_RATE_HZ)
    f0 = pyworld.stonemask(audio, f0, times, SAMPLE_RATE_HZ)
    envelope = 10 * np.log10(pyworld.cheaptrick(audio, f0, times, SAMPLE_RATE_HZ)[f0 > 0])
    edges = np.geomspace(8, envelope.shape[1], 9).astype(int)
    bands = [envelope[:, low:high].mean() for low, high in itertools.pairwise(edges)]
    return np.array([12 * np.log2(np.median(f0[f0 > 0])), *(np.array(bands) - np.mean(bands))])
