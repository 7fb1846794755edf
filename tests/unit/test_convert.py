"""Voice conversion by a tiny random voice."""

import io
import json

import numpy as np
import pytest
import soundfile

from hayakuchi import cli
from hayakuchi.errors import UserError
from hayakuchi.infer.convert import convert, reach_frames
from tiny_voice_run import save_voice, tiny_voice_run

RATE, HOP = 8_000, 16
ISTFT = {"decoder": "mb_istft", "subbands": 4, "upsample_rates": (2,), "upsample_kernels": (4,), "istft_hop": 2}
ISTFT |= {"istft_samples": 8, "segment_samples": 1_024}


@pytest.fixture(scope="module")
def voice():
    return tiny_voice_run()


@pytest.fixture(scope="module")
def folder(voice, tmp_path_factory):
    return save_voice(voice, tmp_path_factory.mktemp("voice") / "run")


def recording(samples, seed=0):
    draw = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    return (0.3 * np.sin(2 * np.pi * 200 * time * (1 + time / 10)) + 0.05 * draw.standard_normal(samples)).astype("f4")


@pytest.mark.parametrize("sizes", [{}, {"resblock": "2"}, ISTFT], ids=["hifigan", "resblock 2", "mb_istft"])
def test_windows_together_are_what_the_whole_would_be(sizes):
    voice = tiny_voice_run(**sizes)
    window = 4 * reach_frames(voice.recipe.model)
    audio = recording(HOP * (2 * window + 77) + 5)
    pieces = list(convert(voice, audio, "haru", "aki", window=window))
    [whole] = convert(voice, audio, "haru", "aki", window=10 * window)
    assert len(pieces) > 3
    assert len(whole) == len(audio)
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-5)


@pytest.mark.parametrize("samples", [1, 15, 16, 17, 2_047, 2_048, 2_049])
def test_any_length_gives_as_much(voice, samples):
    [found] = convert(voice, recording(samples), "haru", "aki")
    assert len(found) == samples
    assert found.dtype == np.float32
    assert np.abs(found).max() <= 1


def test_padding_changes_nothing(voice):
    """The end of a recording is not heard in its middle, nor is the size of the program."""
    audio = recording(3_200)
    reach = (reach_frames(voice.recipe.model) + 4) * HOP
    [short], [long] = (convert(voice, part, "haru", "aki") for part in (audio[:1_600], audio))
    np.testing.assert_allclose(short[: 1_600 - reach], long[: 1_600 - reach], atol=1e-5)


def test_seed_source_and_target_decide(voice):
    audio = recording(1_600)

    def made(source="haru", target="aki", seed=0):
        return np.concatenate(list(convert(voice, audio, source, target, seed=seed)))

    first = made()
    np.testing.assert_array_equal(made(), first)
    np.testing.assert_array_equal(made("0", "2"), first)
    for other in (made(seed=1), made(source="natsu"), made(target="natsu")):
        assert not np.allclose(other, first, atol=1e-3)


def test_wrong_arguments_are_told_at_the_call(voice):
    audio = recording(100)
    for source, target in (("fuyu", "aki"), ("aki", "fuyu")):
        with pytest.raises(UserError, match=r"'fuyu'.*haru, natsu, aki"):
            convert(voice, audio, source, target)
    with pytest.raises(UserError, match="empty"):
        convert(voice, audio[:0], "haru", "aki")
    with pytest.raises(UserError, match="seed"):
        convert(voice, audio, "haru", "aki", seed=-1)
    with pytest.raises(UserError, match="one speaker"):
        convert(tiny_voice_run(names=("only",)), audio, "only", "only")


# --- the command line ---


def hayakuchi(*words):
    return cli.main([str(word) for word in words])


@pytest.fixture
def sound(tmp_path):
    """Two channels at another rate."""
    path = tmp_path / "in.flac"
    soundfile.write(path, np.stack([recording(16_000), recording(16_000, seed=1)], axis=1), 16_000)
    return path


def test_convert_writes_a_wav_and_streams_the_same(folder, tmp_path, sound, capfdbinary):
    out, summary = tmp_path / "out.wav", tmp_path / "summary.json"
    options = ["--from", "haru", "--to", 2]
    assert hayakuchi("convert", folder, sound, *options, "--out", out, "--json", summary) == 0
    capfdbinary.readouterr()
    audio, rate = soundfile.read(out, dtype="int16")
    assert (rate, audio.shape) == (8_000, (8_000,))
    told = json.loads(summary.read_text())
    assert (told["from"], told["to"], told["seconds"]) == ("haru", "aki", 1.0)

    assert hayakuchi("convert", folder, sound, *options, "--out", "-") == 0
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(capfdbinary.readouterr().out), dtype="int16")[0], audio)


WRONG = {
    "no such recording": (["none.wav", "--from", "haru", "--to", "aki", "--out", "OUT"], "none.wav"),
    "not a recording": (["TEXT", "--from", "haru", "--to", "aki", "--out", "OUT"], "not audio"),
    "empty": (["EMPTY", "--from", "haru", "--to", "aki", "--out", "OUT"], "empty"),
    "a folder": (["FOLDER", "--from", "haru", "--to", "aki", "--out", "OUT"], "unreadable"),
    "no source": (["SOUND", "--to", "aki", "--out", "OUT"], "--from"),
    "no target": (["SOUND", "--from", "aki", "--out", "OUT"], "--to"),
    "unknown source": (["SOUND", "--from", "fuyu", "--to", "aki", "--out", "OUT"], "haru, natsu, aki"),
    "unknown target": (["SOUND", "--from", "aki", "--to", "7", "--out", "OUT"], "haru, natsu, aki"),
    "no out": (["SOUND", "--from", "haru", "--to", "aki"], "--out"),
    "out of another format": (["SOUND", "--from", "haru", "--to", "aki", "--out", "out.ogg"], "must end with .wav"),
    "out is the recording": (["WAV", "--from", "haru", "--to", "aki", "--out", "WAV"], "would overwrite"),
    "negative seed": (["SOUND", "--from", "haru", "--to", "aki", "--out", "OUT", "--seed", "-1"], "seed=-1"),
}


@pytest.mark.parametrize(("words", "told"), WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_one_line_and_exit_2(folder, tmp_path, sound, capsys, words, told):
    (tmp_path / "text.wav").write_text("これは音ではありません。" * 100)
    (tmp_path / "empty.wav").touch()
    soundfile.write(tmp_path / "sound.wav", recording(100), RATE)
    files = {"TEXT": "text.wav", "EMPTY": "empty.wav", "WAV": "sound.wav", "OUT": "out.wav", "FOLDER": ""}
    paths = {name: tmp_path / file for name, file in files.items()} | {"SOUND": sound}
    assert hayakuchi("convert", folder, *(paths.get(word, word) for word in words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert told in captured.err
    assert not (tmp_path / "out.wav").exists()
