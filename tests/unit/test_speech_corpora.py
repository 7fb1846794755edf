"""Speech corpora: every clip paired with what is said in it, every defect named, nothing read from outside."""

import shutil
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from hayakuchi.corpora.common_voice import CommonVoiceReader
from hayakuchi.corpora.document import Dropped
from hayakuchi.corpora.esd import EsdReader
from hayakuchi.corpora.jsut import JsutReader
from hayakuchi.corpora.jvs import SETS, JvsReader, held_out_names
from hayakuchi.corpora.ljspeech import LjSpeechReader
from hayakuchi.corpora.recording import Recording
from hayakuchi.corpora.speech_sources import parse_speech_source
from hayakuchi.corpora.transcripts import sound_files, text_lines
from hayakuchi.errors import UserError

SHARED = Path(__file__).parents[3] / "shared" / "corpora"
PARALLEL = [f"VOICEACTRESS100_{number:03}" for number in range(1, 101)]
SURROGATE = b"\xff\xfe.wav"


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """One second of the embedded voice, or of silence where it is not installed: readers read no sound."""
    path = tmp_path_factory.mktemp("sound") / "one.wav"
    try:
        from hayakuchi.speech.audio import write_wav
        from hayakuchi.speech.hts_voice import SAMPLE_RATE_HZ, HtsVoice

        write_wav(path, HtsVoice().say("はい。"), SAMPLE_RATE_HZ)
    except UserError:
        path.write_bytes(b"RIFF")
    return path


def write_set(root: Path, speaker: str, set_name: str, texts: dict[str, str], sounds: list[str], sound: Path) -> None:
    folder = root / speaker / set_name
    (folder / "wav24kHz16bit").mkdir(parents=True)
    lines = "".join(f"{clip}:{text}\n" for clip, text in texts.items())
    (folder / "transcripts_utf8.txt").write_text(lines, encoding="utf-8")
    for clip in sounds:
        shutil.copy(sound, folder / "wav24kHz16bit" / f"{clip}.wav")


def sentences(names: list[str]) -> dict[str, str]:
    return {name: f"これは{name}です。" for name in names}


@pytest.fixture(scope="module")
def jvs(tmp_path_factory, sound) -> Path:
    """Speakers of JVS with the defects that are published: S16."""
    root = tmp_path_factory.mktemp("corpora") / "jvs_ver1"
    lacking = {"jvs030": {"045"}, "jvs058": {"022"}, "jvs074": {"094"}}
    for speaker in ("jvs001", "jvs009", "jvs030", "jvs058", "jvs074", "jvs088"):
        present = [name for name in PARALLEL if name[-3:] not in lacking.get(speaker, ())]
        write_set(root, speaker, "parallel100", sentences(PARALLEL), present, sound)
        others = [f"BASIC5000_{int(speaker[3:]) * 30 + number:04}" for number in range(30)]
        write_set(root, speaker, "nonpara30", sentences(others), [*others[1:], "stray"], sound)
    falsetto = ["BASIC5000_1818", "BASIC5000_1866", "BASIC5000_0025", "BASIC5000_1485", "TRAVEL1000_0429"]
    misnamed = [f"BASIC5000_{number}" for number in ("0235", "0408", "1140", "1356", "1635")]
    write_set(root, "jvs001", "falset10", sentences(falsetto), misnamed, sound)
    numbered = [*PARALLEL[:5], *(f"BASIC5000_{number}" for number in ("0837", "0284", "1590", "0176", "1048"))]
    write_set(root, "jvs088", "falset10", sentences(numbered), [f"{n:03}" for n in range(1, 11)], sound)
    write_set(root, "jvs088", "whisper10", sentences(PARALLEL[-2:]), PARALLEL[-2:], sound)
    (root / "gender_f0range.txt").write_text("speaker Male_or_Female minf0[Hz] maxf0[Hz]\n", encoding="utf-8")
    (root / "jvs001" / "parallel100" / "wav24kHz16bit" / "._VOICEACTRESS100_001.wav").write_bytes(b"macOS")
    return root


def dropped(found) -> dict[str, str]:
    return {item.origin: item.reason for item in found if isinstance(item, Dropped)}


def recordings(found) -> list[Recording]:
    return [item for item in found if isinstance(item, Recording)]


def test_every_published_defect_of_jvs_is_left_out_and_named(jvs):
    reasons = dropped(JvsReader(jvs, ("parallel100",)).recordings())
    name = "{}/parallel100/VOICEACTRESS100_{:03}".format
    assert reasons == {
        name("jvs009", 86): "wrong recording",
        name("jvs009", 95): "wrong recording",
        name("jvs030", 45): "no sound file",
        name("jvs058", 14): "two sentences",
        **{name("jvs058", number): "shifted recording" for number in range(15, 22)},
        name("jvs058", 22): "no sound file",
        name("jvs074", 62): "wrong recording",
        name("jvs074", 94): "no sound file",
    }


def test_what_has_no_partner_is_named(jvs):
    reasons = dropped(JvsReader(jvs, ("nonpara30",)).recordings())
    assert Counter(reasons.values()) == {"no sound file": 6, "no transcript": 6}
    assert reasons["jvs001/nonpara30/stray"] == "no transcript"


def test_clips_of_jvs_have_unique_names_and_their_own_text_and_sound(jvs):
    found = recordings(JvsReader(jvs, SETS).recordings())
    assert len({clip.name for clip in found}) == len(found)
    for clip in found:
        speaker, set_name, sentence = clip.name.split("/")
        assert clip.speaker == speaker
        assert clip.text == f"これは{sentence}です。"
        assert clip.audio.parent == jvs / speaker / set_name / "wav24kHz16bit"
        assert clip.audio.is_file()
        assert set_name == "falset10" or clip.audio.stem == sentence


def test_misnamed_files_get_their_names(jvs):
    found = recordings(JvsReader(jvs, ("falset10",)).recordings())
    sounds = {clip.name: clip.audio.stem for clip in found}
    assert len(sounds) == 15
    assert sounds["jvs001/falset10/TRAVEL1000_0429"] == "BASIC5000_1635"
    assert sounds["jvs088/falset10/VOICEACTRESS100_005"] == "005"
    assert sounds["jvs088/falset10/BASIC5000_1048"] == "010"


def test_a_corpus_whose_names_were_mended_is_read_too(jvs, tmp_path):
    shutil.copytree(jvs / "jvs001", tmp_path / "jvs001")
    sounds = tmp_path / "jvs001" / "falset10" / "wav24kHz16bit"
    (sounds / "BASIC5000_0235.wav").rename(sounds / "BASIC5000_1818.wav")
    found = list(JvsReader(tmp_path, ("falset10",)).recordings())
    assert len(recordings(found)) == 5
    assert not dropped(found)


def test_the_usual_split(jvs):
    sides = defaultdict(Counter)
    for clip in recordings(JvsReader(jvs).recordings()):
        speaker, set_name, _ = clip.name.split("/")
        sides[speaker, set_name][clip.split] += 1
    assert sides["jvs001", "parallel100"] == {"train": 90, "heldout": 10}
    assert sides["jvs009", "parallel100"] == {"train": 89, "heldout": 9}  # two bad takes, one on each side
    assert sides["jvs001", "nonpara30"] == {"train": 27, "heldout": 2}  # 28 but for the one without sound


def test_no_sentence_is_on_both_sides_in_any_register(jvs):
    sides = defaultdict(set)
    for clip in recordings(JvsReader(jvs, SETS).recordings()):
        sides[clip.text].add(clip.split)
    assert all(len(found) == 1 for found in sides.values())
    assert {clip.split for clip in recordings(JvsReader(jvs, ("whisper10",)).recordings())} == {"heldout"}


def test_held_out_names_leave_something_on_each_side():
    assert held_out_names([], "parallel100") == set()
    assert held_out_names(["a"], "parallel100") == set()
    assert held_out_names(["b", "a", "a"], "nonpara30") == {"b"}
    assert held_out_names(PARALLEL * 3, "parallel100") == set(PARALLEL[90:])


def test_sets_of_jvs(jvs):
    def names(spec: str) -> set[str]:
        return {clip.name.split("/")[1] for clip in recordings(parse_speech_source(spec).recordings())}

    assert names(f"jvs:{jvs}") == {"parallel100", "nonpara30"}
    assert names(f"jvs:{jvs},sets=falset10+whisper10") == {"falset10", "whisper10"}
    assert names(f"jvs:{jvs.parent}") == {"parallel100", "nonpara30"}  # the folder around jvs_ver1
    missing = dropped(JvsReader(jvs, ("whisper10",)).recordings())
    assert missing["jvs001/whisper10"] == "no transcripts"


def test_transcripts_of_jvs_in_any_state(tmp_path, sound):
    write_set(tmp_path, "jvs001", "parallel100", {"A_1": "一。"}, ["A_1", "A_2", "A_3"], sound)
    long_line = b"A_2:" + "あ".encode() * 400_000
    lines = [
        b"\xef\xbb\xbfA_1: \xe4\xb8\x80:\xe4\xba\x8c \r",
        b"",
        b"A_1:again",
        b"A_3:",
        b"no colon",
        b":no name",
        b"../../A_1:\xe5\xa4\x96",
        b"A_2:\xff",
        b"A_2:a\0b",
        long_line,
        ("A_2:" + "あ" * 200_000).encode(),
    ]
    transcripts = tmp_path / "jvs001" / "parallel100" / "transcripts_utf8.txt"
    transcripts.write_bytes(b"\n".join(lines))
    found = list(JvsReader(tmp_path, ("parallel100",)).recordings())
    assert {clip.name.rpartition("/")[2]: clip.text for clip in recordings(found)} == {
        "A_1": "一:二",
        "A_2": "あ" * 200_000,
    }
    reasons = {origin.removeprefix(str(transcripts)): reason for origin, reason in dropped(found).items()}
    assert reasons == {
        ":3": "listed twice",
        ":4": "empty transcript",
        ":5": "no transcript",
        ":6": "no name",
        "jvs001/parallel100/../../A_1": "no sound file",
        ":8": "not text",
        ":9": "not text",
        ":10": "not text",
        "jvs001/parallel100/A_3": "no transcript",
    }


def test_sound_files_by_name(tmp_path, sound):
    for name in ("a.mp3", "a.wav", "b.FLAC", "c.ogg", ".d.wav", "e.txt"):
        shutil.copy(sound, tmp_path / name)
    assert {clip: path.name for clip, path in sound_files(tmp_path).items()} == {
        "a": "a.wav",
        "a.mp3": "a.mp3",
        "b": "b.FLAC",
        "c": "c.ogg",
    }
    assert sound_files(tmp_path / "none") == {}


def test_names_that_are_no_unicode_can_be_reported(tmp_path, sound):
    write_set(tmp_path, "jvs001", "parallel100", {"A_1": "一。"}, ["A_1"], sound)
    try:
        (tmp_path / "jvs001/parallel100/wav24kHz16bit" / SURROGATE.decode("utf-8", "surrogateescape")).touch()
    except OSError:
        pytest.skip("the file system takes no such names")
    for item in JvsReader(tmp_path, ("parallel100",)).recordings():
        repr(item).encode("utf-8")
        if isinstance(item, Dropped):
            (item.origin + item.detail).encode("utf-8")


def test_jsut_has_all_its_subsets(tmp_path, sound):
    subsets = {"basic5000": ["BASIC5000_0001"], "repeat500": ["REPEAT500_set1_001", "REPEAT500_set2_001"]}
    for subset, clips in subsets.items():
        (tmp_path / subset / "wav").mkdir(parents=True)
        (tmp_path / subset / "transcript_utf8.txt").write_text(
            "".join(f"{clip}:夕方には畑の水やりを済ませた。\n" for clip in [*clips, "LOST_1"]), encoding="utf-8"
        )
        for clip in clips:
            shutil.copy(sound, tmp_path / subset / "wav" / f"{clip}.wav")
    found = list(parse_speech_source(f"jsut:{tmp_path}").recordings())
    assert [clip.name for clip in recordings(found)] == [
        "basic5000/BASIC5000_0001",
        "repeat500/REPEAT500_set1_001",
        "repeat500/REPEAT500_set2_001",
    ]
    assert {(clip.speaker, clip.split) for clip in recordings(found)} == {("jsut", "")}
    assert dropped(found) == {"basic5000/LOST_1": "no sound file", "repeat500/LOST_1": "no sound file"}
    assert recordings(JsutReader(tmp_path / "basic5000").recordings())[0].name == "basic5000/BASIC5000_0001"


def test_ljspeech_takes_the_text_in_words(tmp_path, sound):
    (tmp_path / "wavs").mkdir()
    for clip in ("LJ1", "LJ2", "LJ3", "LJ4"):
        shutil.copy(sound, tmp_path / "wavs" / f"{clip}.wav")
    (tmp_path / "metadata.csv").write_text(
        'LJ1|In 1455|In fourteen fifty-five\nLJ2|"He left|\nLJ3|only raw\nLJ4\nLJ5|gone|gone\n', encoding="utf-8"
    )
    found = list(LjSpeechReader(tmp_path).recordings())
    assert {clip.name: clip.text for clip in recordings(found)} == {
        "LJ1": "In fourteen fifty-five",
        "LJ2": '"He left',
        "LJ3": "only raw",
    }
    reasons = dropped(found)
    assert reasons.pop("LJ5") == "no sound file"
    assert sorted(reasons.values()) == ["empty transcript", "no transcript"]


def common_voice(root: Path, sound: Path, rows: dict[str, list[str]]) -> Path:
    (root / "clips").mkdir(parents=True)
    for name in ("a", "b", "c"):
        shutil.copy(sound, root / "clips" / f"{name}.mp3")
    for name, lines in rows.items():
        (root / f"{name}.tsv").write_text("\n".join(["client_id\tpath\tsentence\tup_votes", *lines]), encoding="utf-8")
    return root


def test_common_voice_has_each_clip_once_and_a_speaker_for_each_client(tmp_path, sound):
    one, two = "0" * 127 + "1", "1" * 128
    root = common_voice(
        tmp_path / "ja",
        sound,
        {
            "validated": [
                f'{one}\ta.mp3\t「"」と書く。\t2',
                f"{two}\tb.mp3\tはい。\t2",
                f"{two}\tnone.mp3\tいいえ。\t2",
            ],
            "train": [f'{one}\ta.mp3\t「"」と書く。\t2', "short\tc"],
            "dev": ["\tc.mp3\tまたね。\t0", f"{one}\t../clips/b.mp3\t外。\t0"],
        },
    )
    for path in (root, tmp_path):
        found = list(CommonVoiceReader(path).recordings())
        assert {clip.name: (clip.speaker, clip.text, clip.split) for clip in recordings(found)} == {
            "a": (one[:12], '「"」と書く。', ""),
            "b": (two[:12], "はい。", ""),
            "c": ("unknown", "またね。", ""),
        }
        assert sorted(dropped(found).values()) == ["no sound file", "no transcript"]


def test_common_voice_without_its_columns_or_language(tmp_path, sound):
    root = common_voice(tmp_path / "ja", sound, {})
    with pytest.raises(UserError, match=r"none of validated\.tsv"):
        list(CommonVoiceReader(root).recordings())
    (root / "train.tsv").write_text("path\tsentence\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.tsv:1: no column client_id"):
        list(CommonVoiceReader(root).recordings())
    common_voice(tmp_path / "en", sound, {})
    with pytest.raises(UserError, match="name one of en, ja"):
        list(CommonVoiceReader(tmp_path).recordings())


@pytest.mark.skipif(not (SHARED / "common_voice_ja").is_dir(), reason="no sample of Common Voice here")
def test_real_clips_of_common_voice():
    found = list(parse_speech_source(f"common_voice:{SHARED / 'common_voice_ja'}").recordings())
    assert len(recordings(found)) == len(found) == 8
    assert all(clip.audio.is_file() and clip.text and clip.speaker for clip in recordings(found))


def test_esd_lists(tmp_path, sound):
    corpus = tmp_path / "model"
    for folder in ("raw/calm", "wavs"):
        (corpus / folder).mkdir(parents=True)
    for path in ("raw/calm/a.wav", "raw/b.wav", "wavs/c.wav", "d.wav", "../secret.wav"):
        shutil.copy(sound, corpus / path)
    (corpus / "raw" / "link.wav").symlink_to(tmp_path / "secret.wav")
    lines = {
        "calm\\a.wav|花子|JP|一|二": "",
        "b.wav|花子|ja|三。": "",
        "c.wav|太郎|JP|四。": "",
        "d.wav|太郎|JP|五。": "",
        "./b.wav|花子|JP|三。": "listed twice",
        "../../secret.wav|花子|JP|外。": "outside the corpus",
        f"{tmp_path}/secret.wav|花子|JP|外。": "outside the corpus",
        "link.wav|花子|JP|外。": "outside the corpus",
        "none.wav|花子|JP|無。": "no sound file",
        f"{'あ' * 5_000}.wav|花子|JP|長。": "no sound file",
        "e.wav|花子|EN|Hello.": "another language",
        "b.wav||JP|誰。": "no speaker",
        "b.wav|花子|JP| ": "empty transcript",
        "|花子|JP|名。": "no name",
        "b.wav|花子": "no transcript",
    }
    (corpus / "esd.list").write_text("\n".join(lines), encoding="utf-8")
    found = list(parse_speech_source(f"esd:{corpus}").recordings())
    assert {clip.name: (clip.speaker, clip.text) for clip in recordings(found)} == {
        "calm/a": ("花子", "一|二"),
        "b": ("花子", "三。"),
        "c": ("太郎", "四。"),
        "d": ("太郎", "五。"),
    }
    assert [item.reason for item in found if isinstance(item, Dropped)] == [
        reason for reason in lines.values() if reason
    ]
    assert list(EsdReader(corpus / "esd.list").recordings()) == found


@pytest.mark.parametrize("kind", ["jvs", "jsut", "ljspeech", "common_voice", "esd"])
def test_a_folder_of_another_layout_is_refused_in_one_line(tmp_path, kind):
    (tmp_path / "notes.txt").write_text("文", encoding="utf-8")
    for path in (tmp_path, tmp_path / "notes.txt"):
        found = parse_speech_source(f"{kind}:{path}").recordings()
        if kind == "esd" and path.is_file():
            assert dropped(found) == {f"{path}:1": "no transcript"}
            continue
        with pytest.raises(UserError) as caught:
            list(found)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "KIND is one of jvs, jsut, ljspeech, common_voice, esd, embedded"),
        ("vctk:x", "unknown kind 'vctk'"),
        ("jvs", "the path is missing; write jvs:PATH"),
        ("jvs:none", "no such file or folder: 'none'"),
        ("jvs:.,sets=", "'' is not one of parallel100, nonpara30, whisper10, falset10; join several by +"),
        ("jvs:.,sets=parallel100+shout5", "'shout5' is not one of"),
        ("jvs:.,code=x", "unknown option 'code'; jvs knows sets"),
        ("jsut:.,sets=all", "unknown option 'sets'; jsut has none"),
        ("embedded,speakers=two", "speakers='two' is not a number"),
        ("embedded,speakers=-1", "speakers='-1' is not a number"),
        ("embedded,sentences=" + "9" * 5_000, "is not a number"),
        ("embedded,voice=mei", "unknown option 'voice'; embedded knows speakers, sentences"),
        ("embedded:x,voice=mei", "unknown option 'voice'"),
        ("embedded:", "the path is empty"),
        ("embedded,x", "write embedded or embedded:PATH"),
    ],
)
def test_one_line_says_what_is_wrong_with_a_source(spec, message):
    with pytest.raises(UserError) as caught:
        parse_speech_source(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lines_keep_their_tabs(tmp_path):
    (tmp_path / "x.tsv").write_bytes(b"\ta\t\r\n \r\nb")
    assert [(line.origin[-1], line.text) for line in text_lines(tmp_path / "x.tsv")] == [("1", "\ta\t"), ("3", "b")]


# --- lists made on other systems ---


def ljspeech_of(root: Path, listing: bytes, files: list[str]) -> list:
    (root / "wavs").mkdir(parents=True)
    for name in files:
        (root / "wavs" / name).write_bytes(b"RIFF")
    (root / "metadata.csv").write_bytes(listing)
    return list(LjSpeechReader(root).recordings())


LISTED = "声1|今日は良い天気です。|\n声2|メモを～取った。|\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp932", "euc_jp"])
def test_lists_of_any_usual_encoding_are_read(tmp_path, encoding):
    listing = LISTED if encoding != "euc_jp" else LISTED.replace("～", "〜")
    found = ljspeech_of(tmp_path, listing.encode(encoding), ["声1.wav", "声2.wav"])
    assert [clip.name for clip in recordings(found)] == ["声1", "声2"]
    assert [clip.text.replace("～", "〜") for clip in recordings(found)] == ["今日は良い天気です。", "メモを〜取った。"]
    assert not dropped(found)


@pytest.mark.parametrize("data", [LISTED.encode("utf-16-le"), LISTED.encode("utf-16")[:-1]], ids=["no BOM", "cut"])
def test_utf16_that_cannot_be_read_says_how_to_convert(tmp_path, data):
    with pytest.raises(UserError, match=r"metadata\.csv.*UTF-16.*iconv"):
        ljspeech_of(tmp_path, data, [])


def test_a_damaged_line_of_utf8_is_dropped_alone(tmp_path):
    data = LISTED.encode() + b"x\x82|\n"
    found = ljspeech_of(tmp_path, data, ["声1.wav", "声2.wav"])
    assert len(recordings(found)) == 2
    assert list(dropped(found).values()) == ["not text"]


def test_names_that_differ_by_case_or_composition_are_found(tmp_path):
    decomposed = unicodedata.normalize("NFD", "ガ.wav")
    found = ljspeech_of(tmp_path, "ガ|が。|\nup|上。|\nup.wav|また。|\n".encode(), [decomposed, "UP.WAV"])
    assert [clip.text for clip in recordings(found)] == ["が。", "上。"]
    assert list(dropped(found).values()) == ["listed twice"]


def test_names_of_one_spelling_are_not_guessed_between(tmp_path):
    found = ljspeech_of(tmp_path, "up|上。|\n".encode(), ["UP.wav", "Up.wav"])
    assert sorted(dropped(found).values()) == ["no sound file", "no transcript", "no transcript"]


def test_one_name_in_two_formats_is_two_files(tmp_path):
    found = ljspeech_of(tmp_path / "lj", "a.ogg|一。|\na.mp3|二。|\na.ogg|三。|\n".encode(), ["a.ogg", "a.mp3"])
    assert {clip.audio.name: clip.text for clip in recordings(found)} == {"a.ogg": "一。", "a.mp3": "二。"}
    [again] = [item for item in found if isinstance(item, Dropped)]
    assert again.reason == "listed twice"
    assert "metadata.csv:1" in again.detail
    [unused] = dropped(ljspeech_of(tmp_path / "other", "a|一。|\n".encode(), ["a.ogg", "a.mp3"])).items()
    assert unused == ("a.mp3", "no transcript")


def esd_of(root: Path, lines: list[str], files: list[str]) -> list:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"RIFF")
    (root / "esd.list").write_text("\n".join(lines), encoding="utf-8")
    return list(EsdReader(root).recordings())


def test_esd_lists_of_other_systems_find_their_files(tmp_path):
    decomposed = unicodedata.normalize("NFD", "ガ")
    found = esd_of(
        tmp_path,
        [
            "a.mp3|花子|JP|一。",
            "a.ogg|花子|JP|二。",
            "ガ/ガ.wav|花子|JP|三。",
            "up.wav|花子|JP|四。",
            "C:\\Users\\me\\voice\\raw\\calm\\b.wav|花子|JP|五。",
            "/home/someone/voice/raw/calm/c.wav|花子|JP|六。",
            "up.WAV|花子|JP|七。",
        ],
        [
            "raw/a.mp3",
            "raw/a.ogg",
            f"raw/{decomposed}/{decomposed}.wav",
            "raw/UP.WAV",
            "raw/calm/b.wav",
            "raw/calm/c.wav",
        ],
    )
    assert [clip.text for clip in recordings(found)] == ["一。", "二。", "三。", "四。", "五。", "六。"]
    assert len({clip.name for clip in recordings(found)}) == 6
    assert list(dropped(found).values()) == ["listed twice"]


def test_s33_a_list_whose_paths_are_in_the_wrong_folder_is_named(tmp_path):
    """S33."""
    with pytest.raises(
        UserError, match=r"esd\.list: none of its sound files.*line 1: raw2/a\.wav.*audio/a\.wav has that"
    ):
        esd_of(tmp_path, ["raw2/a.wav|花子|JP|一。"], ["audio/a.wav"])
    found = esd_of(tmp_path, ["raw2/a.wav|花子|JP|一。", "b.wav|花子|JP|二。"], ["raw/b.wav"])
    [lost] = [item for item in found if isinstance(item, Dropped)]
    assert lost.reason == "no sound file"
    assert "audio/a.wav" in lost.detail
