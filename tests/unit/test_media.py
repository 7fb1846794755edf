"""Pictures and sounds of a run."""

import io

import numpy as np
import soundfile
from matplotlib import image

from hayakuchi.train.media import picture, sound


def test_a_picture_has_its_first_row_at_the_bottom_and_no_padding():
    values = np.zeros((6, 9))
    values[0, 1], values[2, 4] = 1, 0.5
    content, suffix, event = picture("alignment", values)
    shown = image.imread(io.BytesIO(content))
    assert suffix == ".png"
    assert shown.shape[:2] == (4, 6)  # one row and one column of what repeats
    brightness = shown[..., :3].sum(axis=2)
    assert np.unravel_index(brightness.argmax(), brightness.shape) == (3, 1)
    assert (event.value[0].tag, event.value[0].image.height, event.value[0].image.width) == ("alignment", 4, 6)


def test_a_picture_of_one_colour_is_one_point():
    content, _, _ = picture("mel", np.full((5, 7), 3.0))
    assert image.imread(io.BytesIO(content)).shape[:2] == (1, 1)


def test_a_sound_is_a_wav_without_its_padding():
    samples = np.concatenate([0.5 * np.sin(np.arange(300)), np.zeros(50)])
    content, suffix, event = sound("audio", samples, 8_000)
    heard, rate = soundfile.read(io.BytesIO(content))
    assert (suffix, rate, len(heard)) == (".wav", 8_000, 300)
    np.testing.assert_allclose(heard, samples[:300], atol=1e-4)
    assert event.value[0].audio.length_frames == 300
