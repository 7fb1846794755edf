import io
import sys

import numpy as np
import pytest
import soundfile

from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.speech.audio import AudioError, loudness, normalised, read_audio, to_int16, trim, write_wav

RATE = 24_000
FORMATS = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_24"),
    ("WAV", "FLOAT"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("MP3", "MPEG_LAYER_III"),
]


def tone(seconds: float, rate: int, hz: float = 440.0, amplitude: float = 0.5) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)


def encoded(audio: np.ndarray, rate: int, kind: str = "WAV", subtype: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, audio, rate, format=kind, subtype=subtype)
    return file.getvalue()


def reason_of(source, **options) -> str:
    with pytest.raises(AudioError) as caught:
        read_audio(source, RATE, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.reason in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_any_format_and_rate_becomes_mono_at_the_wanted_rate(kind, subtype, rate):
    stereo = np.stack([tone(1.0, rate, amplitude=0.6), tone(1.0, rate, amplitude=0.4)], axis=1)
    audio = read_audio(encoded(stereo, rate, kind, subtype), RATE)
    assert audio.dtype == np.float32
    assert audio.shape == (RATE,)
    middle = audio[2_000:-2_000]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.03)
    spectrum = np.abs(np.fft.rfft(audio))
    assert np.argmax(spectrum) == 440
    assert np.square(spectrum[430:451]).sum() > 0.99 * np.square(spectrum).sum()


def test_mono_16_bit_audio_comes_back_bit_for_bit():
    samples = np.random.default_rng(0).integers(-32_768, 32_768, 5_000).astype(np.int16)
    assert np.array_equal(to_int16(read_audio(encoded(samples, RATE), RATE)), samples)


def test_resampling_folds_nothing_down():
    high = tone(1.0, 48_000, hz=15_000)
    assert np.abs(read_audio(encoded(high, 48_000), RATE)[1_000:-1_000]).max() < 1e-3


def test_channels_are_averaged():
    left = tone(0.2, RATE)
    assert np.abs(read_audio(encoded(np.stack([left, -left], axis=1), RATE), RATE)).max() < 1e-4


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_cut_file_is_refused(kind, subtype, kept):
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * RATE)
    data = encoded(noise, RATE, kind, subtype)
    assert reason_of(data[: round(kept * len(data))]) == "cut short"


@pytest.mark.parametrize("name", ["a.wav", "b.mp3", "c.raw", "かな.flac"])
@pytest.mark.parametrize(
    "content",
    [b"plain text, not sound\n" * 40, "これは文章です。".encode(), b"RIFF", b"\x00" * 3_000, b"PK\x03\x04" * 99],
)
def test_what_is_no_sound_is_named(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert reason_of(path) == "not audio"
    with pytest.raises(UserError, match=name):
        read_audio(path, RATE)


def test_empty_missing_and_endless(tmp_path):
    assert reason_of(b"") == "empty"
    assert reason_of(encoded(np.zeros(0), RATE)) == "empty"
    assert reason_of(tmp_path / "missing.wav") == "unreadable"
    assert reason_of(tmp_path) == "unreadable"
    assert reason_of(encoded(tone(2.0, RATE), RATE), limit_seconds=1.9) == "too long"
    assert len(read_audio(encoded(tone(2.0, RATE), RATE), RATE, limit_seconds=2.0)) == 2 * RATE


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(bad):
    audio = tone(0.1, RATE)
    audio[7] = bad
    assert reason_of(encoded(audio, RATE, subtype="FLOAT")) == "not finite"


def test_a_wav_whose_header_does_not_know_its_length_is_read():
    data = bytearray(encoded(tone(0.5, RATE), RATE))
    data[4:8] = data[40:44] = b"\xff" * 4
    assert len(read_audio(bytes(data), RATE)) == RATE // 2


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_an_mp3_without_a_frame_count_is_read_whole_or_refused(mode):
    noise = np.random.default_rng(0).normal(0, 0.1, 4 * RATE)
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", RATE, 1, format="MP3", bitrate_mode=mode, compression_level=0.5) as sound:
        sound.write(noise)
    data = file.getvalue()
    without_count = data[data.index(data[:2], 64) :]
    assert len(read_audio(data, RATE)) == len(noise)
    if mode == "CONSTANT":
        assert len(read_audio(without_count, RATE)) == pytest.approx(len(noise), abs=2_000)
    else:
        assert reason_of(without_count) == "unknown length"


def test_trimming_takes_silence_and_nothing_else():
    speech = tone(1.0, RATE)
    noise = np.random.default_rng(0).normal(0, 5e-4, 3 * RATE)
    padded = noise.copy()
    padded[RATE : 2 * RATE] += speech
    cut = trim(padded, RATE, margin_seconds=0.1)
    assert len(cut) == pytest.approx(1.2 * RATE, abs=RATE // 50)
    assert np.sum(np.square(cut)) == pytest.approx(np.sum(np.square(padded)), rel=1e-4)
    assert np.array_equal(trim(speech, RATE), speech)


@pytest.mark.parametrize("length", [0, 1, 100, 5_000])
def test_trimming_silence_gives_it_back(length):
    assert len(trim(np.zeros(length, np.float32), RATE)) == length


def test_the_level_is_that_of_the_speech():
    speech = tone(1.0, RATE)
    alone = loudness(speech, RATE)
    assert alone.level_db == pytest.approx(20 * np.log10(0.5 / np.sqrt(2)), abs=0.05)
    assert alone.peak == pytest.approx(0.5, abs=1e-3)
    assert alone.clipped == 0
    among_pauses = loudness(np.concatenate([np.zeros(2 * RATE), speech, np.zeros(2 * RATE)]), RATE)
    assert among_pauses.level_db == pytest.approx(alone.level_db, abs=0.3)
    assert loudness(np.zeros(RATE), RATE).level_db == loudness(np.zeros(0), RATE).level_db == -120
    clipped = loudness(np.clip(4 * speech, -1, 1), RATE)
    assert 0.3 < clipped.clipped < 0.8


@pytest.mark.parametrize("amplitude", [0.001, 0.1, 1.0])
def test_normalised_clips_have_one_level(amplitude):
    speech = tone(1.0, RATE, amplitude=amplitude)
    level = loudness(normalised(speech, loudness(speech, RATE), level_db=-20.0), RATE)
    assert level.level_db == pytest.approx(-20, abs=0.05)


def test_no_level_is_worth_clipping():
    spiky = tone(1.0, RATE, amplitude=0.001)
    spiky[500] = 0.5
    louder = normalised(spiky, loudness(spiky, RATE), level_db=-3.0, peak=0.9)
    assert np.abs(louder).max() == pytest.approx(0.9)
    silence = np.zeros(10)
    assert np.array_equal(normalised(silence, loudness(silence, RATE)), silence)


def test_a_written_wav_is_read_back(tmp_path):
    audio = np.array([0.0, 0.25, -0.5, 1.5, -1.5], np.float32)
    path = tmp_path / "new" / "声.wav"
    write_wav(path, audio, RATE)
    assert soundfile.info(path).subtype == "PCM_16"
    assert np.array_equal(to_int16(read_audio(path, RATE)), [0, 8_192, -16_384, 32_767, -32_768])
    with pytest.raises(UserError, match="cannot write"):
        write_wav(path / "below.wav", audio, RATE)


@pytest.mark.parametrize(("library", "rate"), [("soundfile", RATE), ("soxr", 16_000)])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library, rate):
    data = encoded(tone(0.1, rate), rate)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}.*hayakuchi\[speech\]"):
        read_audio(data, RATE)
