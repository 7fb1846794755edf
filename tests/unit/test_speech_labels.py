"""Labels are made by hand here, so that no library is needed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.errors import UserError
from hayakuchi.speech.labels import symbols_of_labels

SILENCE = "xx^xx-sil+xx=xx/A:xx+xx+xx/B:xx-xx_xx/C:xx_xx+xx/D:xx+xx_xx/E:{e}/F:xx_xx#xx_xx@xx_xx|xx_xx/G:xx_xx%xx_xx_xx"
PHONE = "xx^xx-{p}+xx=xx/A:{a}/B:xx-xx_xx/C:02_xx+xx/D:xx+xx_xx/E:xx_xx!xx_xx-xx/F:{f}#0_xx@1_1|1_1/G:xx_xx%xx_xx_xx"


def limited(number):
    return max(-49, min(49, number))


def phrase(moras, accent):
    """Labels of an accent phrase of moras such as ["k a", "i"], as OpenJTalk writes them; `accent` 0 is flat."""
    labels = []
    count = len(moras)
    for place, mora in enumerate(moras, start=1):
        a = f"{limited(place - (accent or count))}+{limited(place)}+{limited(count - place + 1)}"
        labels += [PHONE.format(p=phone, a=a, f=f"{limited(count)}_{limited(accent)}") for phone in mora.split()]
    return labels


def utterance(*parts, question=False):
    end = SILENCE.format(e=f"3_1!{int(question)}_0-xx")
    silence = SILENCE.format(e="xx_xx!xx_xx-xx")
    return [silence, *(label for part in parts for label in part), end]


PAUSE = [SILENCE.replace("-sil+", "-pau+").format(e="3_1!0_0-0")]


@pytest.mark.parametrize(
    ("moras", "accent", "expected"),
    [
        (["h a", "i"], 1, "^ h a ] i $"),
        (["h a", "i"], 2, "^ h a [ i $"),
        (["h a", "i"], 0, "^ h a [ i $"),
        (["k o", "k o", "r o"], 2, "^ k o [ k o ] r o $"),
        (["e"], 1, "^ e $"),
        (["e"], 0, "^ e $"),
        (["k a", "cl", "t a"], 1, "^ k a ] cl t a $"),
        (["N"], 0, "^ N $"),
    ],
)
def test_pitch_of_one_phrase(moras, accent, expected):
    assert " ".join(symbols_of_labels(utterance(phrase(moras, accent)))) == expected


def test_an_accent_of_two_digits_is_not_cut():
    # よろしくお願いします, accent on the tenth mora (espnet#3555).
    moras = ["y o", "r o", "sh I", "k u", "o", "n e", "g a", "i", "sh i", "m a", "s U"]
    symbols = symbols_of_labels(utterance(phrase(moras, 10)))
    assert " ".join(symbols) == "^ y o [ r o sh I k u o n e g a i sh i m a ] s U $"


@settings(deadline=None)
@given(st.integers(1, 120), st.data())
def test_pitch_at_any_length(count, data):
    accent = data.draw(st.integers(0, count))
    symbols = symbols_of_labels(utterance(phrase(["t a"] * count, accent), phrase(["t a"], 0)))
    first = symbols[: symbols.index("#")]
    # The first mora is low and the second high, unless the fall comes after the first.
    assert first.count("[") == (accent != 1 and count > 1)
    assert first.count("]") == (0 < accent < count)
    if "]" in first:
        assert first[: first.index("]")].count("a") == accent


def test_phrases_pauses_and_questions():
    labels = utterance(phrase(["a"], 0), phrase(["o", "i"], 1), PAUSE, phrase(["k a"], 1), question=True)
    assert " ".join(symbols_of_labels(labels)) == "^ a # o ] i _ k a ?"


def test_a_boundary_stands_after_vowels_and_moraic_consonants_only():
    # One-mora phrases: the consonant of the second has the place of its vowel.
    labels = utterance(phrase(["k a"], 1), phrase(["k a"], 1), phrase(["N"], 1), phrase(["cl"], 0), phrase(["E"], 0))
    assert " ".join(symbols_of_labels(labels)) == "^ k a # k a # N # cl # E $"


@pytest.mark.parametrize("labels", [[], utterance(), utterance(PAUSE), PAUSE])
def test_nothing_to_say(labels):
    assert symbols_of_labels(labels) == []


def test_pauses_at_either_end_are_left_out():
    assert symbols_of_labels(utterance(PAUSE, phrase(["a"], 1), PAUSE)) == ["^", "a", "$"]


def test_silence_around_may_be_missing():
    assert symbols_of_labels(phrase(["a", "o"], 1)) == ["^", "a", "]", "o", "$"]


@pytest.mark.parametrize("label", ["", "a", "a-b+c/A:1+2+3", "\ud800", "xx^xx-sil+xx=xx/A:a+b+c/B:/E:1_1!1_1-1/F:"])
def test_what_is_no_label_is_refused(label):
    with pytest.raises(UserError, match="label 2"):
        symbols_of_labels([*phrase(["a"], 1), label])
