"""Speech of a tiny random voice: what a text becomes, what decides it, and the command line around it."""

import dataclasses
import io
import itertools
import json
import subprocess
import sys
import wave
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from flax import nnx

from hayakuchi import cli
from hayakuchi.config import CtrlRecipe, to_json
from hayakuchi.errors import UserError
from hayakuchi.infer.speak import cut_symbols, speak
from hayakuchi.infer.speak_options import SpeakOptions
from hayakuchi.infer.synthesis import Utterance, bucket, synthesize
from hayakuchi.infer.voice import load_voice
from hayakuchi.speech.frontend import make_front_end
from hayakuchi.speech.symbols import INVENTORY, with_blanks
from hayakuchi.speech.wav_stream import stream_wav
from tiny_voice_run import save_voice, tiny_voice_run

FIVE, NINE = [1, 20, 9, 14, 2], [1, 30, 8, 21, 10, 4, 25, 12, 3]
HOP = 16


@pytest.fixture(scope="module")
def voice():
    return tiny_voice_run()


@pytest.fixture(scope="module")
def front_end(voice):
    return voice.front_end()


@pytest.fixture(scope="module")
def folder(voice, tmp_path_factory) -> Path:
    return save_voice(voice, tmp_path_factory.mktemp("voice") / "run")


@pytest.fixture
def said(voice, front_end):
    """Speaks a text with everything at its default, but for options."""

    def say(text, speaker="", batch=1, **options):
        return list(speak(voice, text, speaker, SpeakOptions(**options), front_end=front_end, batch=batch))

    return say


def audio_of(parts):
    return np.concatenate([part.audio for part in parts])


# --- sentences to waveforms ---


def test_texts_of_5_and_9_symbols_in_one_batch_equal_their_single_runs(voice):
    """S5."""
    utterances = [Utterance(FIVE, 0), Utterance(NINE, 1), Utterance(FIVE * 12, 2)]
    together = synthesize(voice, utterances, 1, SpeakOptions())
    for utterance, row in zip(utterances, together, strict=True):
        [alone] = synthesize(voice, [utterance], 1, SpeakOptions())
        assert len(row) == len(alone) > 0
        np.testing.assert_allclose(row, alone, atol=1e-5)
    assert len(together[0]) < len(together[1]) < len(together[2])


@pytest.mark.parametrize(
    ("sizes", "cases"),
    [
        ({}, [(FIVE, 1.0), (NINE, 0.1)]),
        ({"stochastic_durations": False}, [(FIVE, 1.0)]),
        ({"names": ("one",)}, [(NINE, 1.0)]),
    ],
    ids=["multi", "deterministic", "single"],
)
def test_buckets_change_nothing(sizes, cases):
    """The model called at the very shape, without any padding, gives the same samples; none is cut."""
    voice = tiny_voice_run(**sizes)
    graph, parameters = nnx.split(voice.model)
    for ids, speed in cases:
        draw = np.random.default_rng((3, 11))
        text = np.array([with_blanks(ids)])
        speaker = np.array([2]) if voice.recipe.model.speakers else None
        noise = 0.5 * draw.standard_normal((1, text.shape[1], 2), np.float32)
        lengths = np.array([text.shape[1]])

        @jax.jit
        def plan(parameters, *arguments):
            return nnx.merge(graph, parameters).plan(*arguments)

        @jax.jit
        def decode(parameters, *arguments):
            return nnx.merge(graph, parameters).speak(*arguments)

        planned = plan(parameters, text, lengths, noise, speaker, np.float32(1 / speed))
        frames = int(planned.frame_lengths[0])
        noise = 0.25 * draw.standard_normal((1, frames, voice.recipe.model.latent_channels), np.float32)
        expected = decode(parameters, planned, noise, speaker).audio[0]
        options = SpeakOptions(speed=speed, noise=0.25, duration_noise=0.5, seed=3)
        [found] = synthesize(voice, [Utterance(ids, 11)], 2, options)
        assert len(found) == frames * HOP
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_buckets_are_few_and_hold_what_they_must():
    sizes = {bucket(size, 128, steps=4) for size in range(1, 2_049)}
    assert sizes == {128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048}
    assert all(size <= bucket(size, 128, steps=4) <= max(128, 1.25 * size) for size in range(1, 3_000))
    assert [bucket(size, 1) for size in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]


def test_another_text_of_the_same_buckets_compiles_nothing(voice):
    compiled = []
    synthesize(voice, [Utterance(NINE, 0)], 0, SpeakOptions())

    def listen(event, _seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        synthesize(voice, [Utterance(FIVE, 4)], 2, SpeakOptions(1.3, 0.1, 0.2, 99))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled


def test_a_voice_that_diverged_says_so(voice):
    graph, parameters = nnx.split(voice.model)
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), parameters)
    with pytest.raises(RuntimeError, match="diverged"):
        synthesize(dataclasses.replace(voice, model=nnx.merge(graph, broken)), [Utterance(FIVE, 0)], 0, SpeakOptions())


def test_a_sentence_without_end_is_refused(voice):
    voice = tiny_voice_run(stochastic_durations=False)
    voice.model.durations.leave.bias[...] = voice.model.durations.leave.bias[...] + 20
    with pytest.raises(UserError, match="raise --speed"):
        synthesize(voice, [Utterance(FIVE, 0)], 0, SpeakOptions())


# --- texts ---


def test_a_word_without_a_sure_reading_is_reported_and_speech_goes_on(said):
    """S7."""
    first, second = said("自分の勘の良さに嗤ってしまう。次の文です。")
    assert [(word.text, word.reason) for word in first.unread] == [("嗤", "guessed")]
    assert len(first.audio)
    assert second.text == "次の文です。"
    assert len(second.audio)
    assert not second.unread


@pytest.mark.parametrize("text", ["…", "。。。", "😀", "〻\u3000。\n!?", "\u200d。", "。\n" * 40])
def test_signs_alone_are_one_clear_error(said, text):
    """S8."""
    with pytest.raises(UserError, match="TEXT has nothing to say"):
        said(text)


@pytest.mark.parametrize("text", ["", " \n\t\u3000", "\ud800", "\x00", "\u200b\ufe0f"])
def test_no_text_at_all_is_one_clear_error(said, text):
    """S8."""
    with pytest.raises(UserError, match="TEXT is empty"):
        said(text)


@pytest.mark.parametrize("text", ["はい", "寒いｔ", "ｶﾞｷﾞ\ud83d、か\u3099", "𠮷野家で10:30に3.5kg!", "あ\x00い\u202e"])
def test_short_and_odd_texts_are_spoken(said, text):
    """S9, S15."""
    [part] = said(text)
    assert len(part.audio) > 10 * HOP
    assert part.audio.any()
    assert np.abs(part.audio).max() <= 1


def test_400_characters_without_an_end_are_cut_where_it_is_natural(said):
    """S14."""
    parts = said("今日は天気が良いので、公園まで歩いて、それから友達と昼ごはんを食べて、" * 12)
    assert len(parts) >= 4
    assert all(part.text.endswith("、") and len(part.text) <= 100 for part in parts)
    # About as much sound for each, as for so much text.
    rates = [len(part.audio) / len(part.text) for part in parts[1:]]
    assert max(rates) < 1.5 * min(rates)


def test_more_symbols_than_a_program_holds_are_cut(said):
    parts = said("W" * 100, silence=0)
    assert len(parts) == 2
    assert parts[1].text == ""
    # The word is reported once.
    assert [len(part.unread) for part in parts] == [1, 0]


@pytest.mark.parametrize("limit", [8, 9, 20, 100])
def test_cut_symbols_loses_nothing_but_the_marks_it_cuts_at(limit):
    for text in ("^ a # b _ c d # e f g _ h i # j k l m n o p q r s t u ?", "^ " + "a " * 30 + "$", "^ a $"):
        symbols = text.split()
        pieces = list(cut_symbols(symbols, limit))
        assert all(len(piece) <= limit and piece[0] == "^" and piece[-1] in "$?" for piece in pieces)
        assert pieces[-1][-1] == symbols[-1]
        inner = [symbol for piece in pieces for symbol in piece[1:-1] if symbol not in "_#"]
        assert inner == [symbol for symbol in symbols[1:-1] if symbol not in "_#"]
        if len(symbols) <= limit:
            assert pieces == [symbols]
    first, *_ = cut_symbols(list("^a#b_c#de$"), 8)
    assert first == list("^a#b$")


def test_silence_stands_between_sentences_only(said):
    one, two = said("はい。いいえ。", silence=0.0)
    parts = said("はい。いいえ。", silence=0.5)
    np.testing.assert_array_equal(parts[0].audio, one.audio)
    assert not parts[1].audio[:4_000].any()
    np.testing.assert_array_equal(parts[1].audio[4_000:], two.audio)
    # Signs between are no sentence.
    assert [len(part.audio) for part in said("はい。\n…\nいいえ。", silence=0.5)] == [
        len(one.audio),
        0,
        4_000 + len(two.audio),
    ]


def test_a_long_text_begins_at_once(voice, front_end):
    read = []

    class Spy:
        inventory = front_end.inventory

        def read_all(self, sentences):
            read.append(len(sentences))
            return front_end.read_all(sentences)

    for text in ("今日は良い天気です。" * 20_000, "あ" * 200_000, "wWx1:3 " * 30_000, "はい\n" * 70_000):
        read.clear()
        [first] = itertools.islice(speak(voice, text, front_end=Spy()), 1)
        assert len(first.audio)
        assert read == [16]


# --- what decides the speech ---


def test_batches_of_sentences_change_nothing(said):
    text = "はい。今日は良い天気です。…。いいえ。散歩に行きましょうか？そうしましょう。ええ。"
    single, batched = said(text), said(text, batch=4)
    assert [part.text for part in single] == [part.text for part in batched]
    for one, other in zip(single, batched, strict=True):
        np.testing.assert_allclose(one.audio, other.audio, atol=1e-5)


def test_the_seed_decides_and_without_noise_nothing_does(said):
    text = "今日は良い天気です。"
    np.testing.assert_array_equal(audio_of(said(text, seed=5)), audio_of(said(text, seed=5)))
    other, first = audio_of(said(text, seed=6)), audio_of(said(text, seed=5))
    assert len(other) != len(first) or not np.allclose(other, first)
    still = [audio_of(said(text, noise=0, duration_noise=0, seed=seed)) for seed in (1, 2)]
    np.testing.assert_array_equal(*still)
    # Equal sentences have noise of their own.
    twice = said(text * 2, silence=0.0)
    assert len(twice[0].audio) != len(twice[1].audio) or not np.allclose(twice[0].audio, twice[1].audio)


def test_a_speaker_by_name_and_by_index(said):
    still = {"noise": 0, "duration_noise": 0}
    by_name, by_index = (audio_of(said("はい。", speaker, **still)) for speaker in ("natsu", "1"))
    np.testing.assert_array_equal(by_name, by_index)
    np.testing.assert_array_equal(audio_of(said("はい。", "", **still)), audio_of(said("はい。", "haru", **still)))
    other = audio_of(said("はい。", "aki", **still))
    assert len(other) != len(by_name) or not np.allclose(other, by_name)


@pytest.mark.parametrize("speaker", ["fuyu", "3", "-1", "1.0", "１", "\ud800", "9" * 5_000, "Haru"])
def test_an_unknown_speaker_is_told_the_known(said, speaker):
    with pytest.raises(UserError, match=r"haru, natsu, aki; or an index, 0 to 2$"):
        said("はい。", speaker)


def test_a_name_that_is_a_number_goes_before_an_index():
    voice = tiny_voice_run(names=("2", "1", "0"))
    assert [voice.speaker_id(name) for name in ("0", "1", "2")] == [2, 1, 0]


def test_speed(said):
    lengths = [len(audio_of(said("今日は良い天気です。", speed=speed, duration_noise=0))) for speed in (2, 1, 0.5, 0.1)]
    assert lengths == sorted(lengths)
    # Every symbol has a frame at least, which bounds the speed.
    assert lengths[3] > 3 * lengths[1]


@pytest.mark.parametrize(
    "option",
    [
        *({"speed": value} for value in (0, -1, float("nan"), float("inf"), 11)),
        *({"noise": value} for value in (-0.1, float("nan"))),
        *({"duration_noise": value} for value in (-0.1, float("inf"))),
        *({"seed": value} for value in (-1, 2**32)),
        *({"silence": value} for value in (-0.1, 61, float("nan"))),
    ],
)
def test_options_out_of_range_are_told(option):
    with pytest.raises(UserError, match=next(iter(option))):
        SpeakOptions(**option)


def test_s34_a_symbol_that_the_voice_lacks_is_named_and_a_pause_stands_in(front_end):
    """S34: an id beyond the voice's inventory would be read from its last embedding without an error."""
    smaller = dataclasses.replace(INVENTORY, symbols=tuple(symbol for symbol in INVENTORY.symbols if symbol != "py"))
    reading = make_front_end(inventory=smaller).read("ピュアな水。")
    assert [word.text for word in reading.unread if word.reason == "unknown phone"] == ["py"]
    ids = smaller.encode(front_end.read("ピュアな水。").sentences[0].symbols)
    assert ids == smaller.encode(reading.sentences[0].symbols)
    assert all(0 < number < smaller.size for number in ids)


# --- run directories ---


def test_a_voice_comes_back_from_its_run(voice, folder):
    loaded = load_voice(folder)
    assert (loaded.step, loaded.info, loaded.recipe.model) == (voice.step, voice.info, voice.recipe.model)
    for one, other in zip(*(jax.tree.leaves(nnx.state(run.model)) for run in (voice, loaded)), strict=True):
        np.testing.assert_array_equal(one, other)
        assert len(other.devices()) == 1


def test_the_running_average_speaks(voice, tmp_path):
    average = tiny_voice_run(seed=1)
    loaded = load_voice(save_voice(voice, tmp_path / "run", average))
    for one, other in zip(*(jax.tree.leaves(nnx.state(run.model)) for run in (average, loaded)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_bfloat16_speaks_much_the_same(voice, folder):
    exact, rounded = (
        synthesize(run, [Utterance(NINE, 0)], 0, SpeakOptions(duration_noise=0, noise=0))[0]
        for run in (voice, load_voice(folder, "bfloat16"))
    )
    assert rounded.dtype == np.float32
    assert abs(len(exact) - len(rounded)) <= 4 * HOP


def spoil_checkpoint(folder):
    for path in (folder / "checkpoints").rglob("*"):
        if path.is_file() and "state" in path.parts and path.stat().st_size > 100:
            path.write_bytes(path.read_bytes()[:50])


def newer_inventory(folder):
    values = json.loads((folder / "dataset.json").read_text())
    values["inventory"]["version"] += 1
    (folder / "dataset.json").write_text(json.dumps(values))


def fewer_symbols(folder):
    values = json.loads((folder / "dataset.json").read_text())
    values["inventory"]["symbols"].remove("py")
    (folder / "dataset.json").write_text(json.dumps(values))


def fewer_speakers(folder):
    values = json.loads((folder / "dataset.json").read_text())
    values["speakers"].pop()
    (folder / "dataset.json").write_text(json.dumps(values))


def no_checkpoint(folder):
    (folder / "checkpoints").rename(folder / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "recipe.json").unlink(), "not a run directory"),
        (lambda folder: (folder / "recipe.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "recipe.json").write_text(to_json(CtrlRecipe())), "a ctrl run has no voice"),
        (lambda folder: (folder / "dataset.json").write_text("[]"), "not a speech data set"),
        (no_checkpoint, "no checkpoint yet"),
        (spoil_checkpoint, "none of the checkpoints"),
        (newer_inventory, "inventory version 2, this program knows 1"),
        (fewer_symbols, f"has {INVENTORY.size} symbols, dataset.json {INVENTORY.size - 1}"),
        (fewer_speakers, "has 3 speakers, dataset.json 2"),
    ],
)
def test_a_run_that_is_no_voice_is_told(voice, tmp_path, spoil, told):
    folder = save_voice(voice, tmp_path / "run")
    spoil(folder)
    with pytest.raises(UserError, match=told):
        load_voice(folder)


# --- wav ---


def test_a_file_grows_while_it_is_made(tmp_path):
    out = tmp_path / "new" / "out.wav"
    seen = []

    def pieces():
        assert not out.exists()
        for value in (0.25, -0.5, 2.0):
            yield np.full(1_000, value)
            seen.append(out.stat().st_size)

    assert stream_wav(out, pieces(), 8_000) == 3_000
    assert seen == [2_044, 4_044, 6_044]
    audio, rate = soundfile.read(out)
    assert rate == 8_000
    assert out.stat().st_size == 6_044
    np.testing.assert_allclose(audio[::1_000], [0.25, -0.5, 1.0], atol=1e-4)
    with wave.open(str(out)) as file:
        assert file.getparams()[:4] == (1, 2, 8_000, 3_000)


def test_what_was_said_before_an_error_is_a_whole_file(tmp_path):
    out = tmp_path / "out.wav"

    def pieces(count):
        for _ in range(count):
            yield np.zeros(100)
        raise UserError("now")

    out.write_text("important")
    with pytest.raises(UserError, match="now"):
        stream_wav(out, pieces(0), 8_000)
    assert out.read_text() == "important"
    with pytest.raises(UserError, match="now"):
        stream_wav(out, pieces(2), 8_000)
    assert len(soundfile.read(out)[0]) == 200


# --- the command line ---


def hayakuchi(*words):
    return cli.main([str(word) for word in words])


def test_speak_writes_a_wav_and_streams_the_same(folder, tmp_path, capfdbinary, monkeypatch):
    text = "はい。今日は良い天気です。😀"
    out, summary = tmp_path / "new" / "out.wav", tmp_path / "summary.json"
    assert hayakuchi("speak", folder, text, "--out", out, "--speaker", "natsu", "--json", summary) == 0
    assert capfdbinary.readouterr().out.decode().startswith(f"{out}: ")
    audio, rate = soundfile.read(out, dtype="int16")
    assert rate == 8_000
    told = json.loads(summary.read_text())
    assert told["speaker"] == "natsu"
    assert told["step"] == 7
    assert [sentence["text"] for sentence in told["sentences"]] == ["はい。", "今日は良い天気です。"]
    assert [word["text"] for word in told["unread"]] == ["😀"]
    assert told["seconds"] == round(len(audio) / rate, 3) == pytest.approx(sum(s["seconds"] for s in told["sentences"]))

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert hayakuchi("speak", folder, "-", "--out", "-", "--speaker", 1) == 0
    streamed = capfdbinary.readouterr().out
    assert streamed[44:] == out.read_bytes()[44:]
    # A header of open length, which readers take for all there is.
    assert streamed[:4] + streamed[40:44] == b"RIFF\xff\xff\xff\xff"
    again, rate = soundfile.read(io.BytesIO(streamed), dtype="int16")
    assert rate == 8_000
    np.testing.assert_array_equal(again, audio)


def test_what_was_not_read_is_told_on_the_standard_error(folder, tmp_path, caplog):
    assert hayakuchi("speak", folder, "。。。\n😀😁😂🤣😃😄😅はい。", "--out", tmp_path / "out.wav") == 0
    assert "'。。。' (nothing to say)" in caplog.text
    assert len(caplog.text.splitlines()) == 1


def test_a_user_dictionary_is_read(folder, tmp_path):
    words, summary = tmp_path / "words.csv", tmp_path / "summary.json"
    words.write_text("surface,reading,accent\n嗤って,わらって,0\n")
    text = "自分の勘の良さに嗤ってしまう。"
    options = ["--out", tmp_path / "out.wav", "--json", summary]
    assert hayakuchi("speak", folder, text, *options, "--user-dictionary", words) == 0
    assert json.loads(summary.read_text())["unread"] == []


WRONG = {
    "empty text": (["speak", "RUN", "", "--out", "OUT"], "TEXT is empty"),
    "signs alone": (["speak", "RUN", "。。。", "--out", "OUT"], "TEXT has nothing to say"),
    "an emoji": (["speak", "RUN", "😀", "--out", "OUT"], "TEXT has nothing to say"),
    "a space": (["speak", "RUN", "\u3000", "--out", "OUT"], "TEXT is empty"),
    "no out": (["speak", "RUN", "はい"], "--out"),
    "out of another format": (["speak", "RUN", "はい", "--out", "out.mp3"], "must end with .wav"),
    "out is a folder": (["speak", "RUN", "はい", "--out", "FOLDER"], "is a directory"),
    "out under a file": (["speak", "RUN", "はい", "--out", "FILE/out.wav"], "cannot write it"),
    "two things to standard output": (["speak", "RUN", "はい", "--out", "-", "--json", "-"], "both -"),
    "no such speaker": (["speak", "RUN", "はい", "--out", "OUT", "--speaker", "fuyu"], "haru, natsu, aki"),
    "no speed": (["speak", "RUN", "はい", "--out", "OUT", "--speed", "0"], "speed=0.0"),
    "speed in words": (["speak", "RUN", "はい", "--out", "OUT", "--speed", "fast"], "fast"),
    "negative noise": (["speak", "RUN", "はい", "--out", "OUT", "--noise", "-1"], "noise=-1.0"),
    "seed too large": (["speak", "RUN", "はい", "--out", "OUT", "--seed", "99999999999"], "seed="),
    "no run": (["speak", "nowhere", "はい", "--out", "OUT"], "not a run directory"),
    "no dictionary": (["speak", "RUN", "はい", "--out", "OUT", "--user-dictionary", "none.csv"], "none.csv"),
}


@pytest.mark.parametrize(("words", "told"), WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_one_line_and_exit_2(folder, tmp_path, capsys, words, told):
    (tmp_path / "file").touch()
    (tmp_path / "folder.wav").mkdir()
    names = {"RUN": folder, "OUT": tmp_path / "out.wav", "FOLDER": tmp_path / "folder.wav"}
    words = [str(tmp_path / "file" / "out.wav") if word == "FILE/out.wav" else names.get(word, word) for word in words]
    assert hayakuchi(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert told in captured.err
    assert not (tmp_path / "out.wav").exists()


@pytest.mark.parametrize("words", [["--speed", "0"], ["--out", "x.mp3"], []], ids=["speed", "out", "run"])
def test_bad_arguments_are_refused_before_jax_is_loaded(tmp_path, words):
    program = (
        "import sys; from hayakuchi import cli; code = cli.main(sys.argv[1:]); assert 'jax' not in sys.modules; "
        "sys.exit(code)"
    )
    line = [sys.executable, "-c", program, "speak", "nowhere", "はい", "--out", "x.wav", *words]
    found = subprocess.run(line, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path, check=False)
    assert found.returncode == 2, found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_s32_a_pipe_has_the_header_of_streams_and_every_sample(tmp_path):
    """S32: nothing can be corrected in a pipe, so the header leaves the lengths open, and readers go on to its end."""
    program = (
        "import numpy as np; from hayakuchi.speech.wav_stream import STDOUT, stream_wav; "
        "stream_wav(STDOUT, (np.full(30_001, value) for value in (0.25, -0.5)), 8_000)"
    )
    piped = tmp_path / "x.wav"
    with piped.open("wb") as file, subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
        subprocess.run(["cat"], stdin=writer.stdout, stdout=file, check=True)
    assert writer.returncode == 0
    assert piped.stat().st_size == 44 + 2 * 60_002
    audio, rate = soundfile.read(piped)
    assert (len(audio), rate) == (60_002, 8_000)
    assert (audio[0], audio[-1]) == (0.25, -0.5)
    with wave.open(str(piped)) as file:
        assert len(file.readframes(file.getnframes())) == 2 * 60_002
