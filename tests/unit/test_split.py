import random

import pytest

from hayakuchi.data.split import HASH_SPAN, text_hash, threshold

TEXTS = [f"第{number}の文である。" for number in range(4_000)]


def is_heldout(text: str, fraction: float) -> bool:
    return text_hash(text).split < threshold(fraction)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_the_share_is_close_to_the_fraction(fraction: float) -> None:
    share = sum(is_heldout(text, fraction) for text in TEXTS) / len(TEXTS)
    # Four standard deviations of a binomial.
    assert abs(share - fraction) < 4 * (fraction * (1 - fraction) / len(TEXTS)) ** 0.5


def test_the_side_depends_on_nothing_but_the_text() -> None:
    shuffled = TEXTS.copy()
    random.Random(0).shuffle(shuffled)
    assert {t for t in TEXTS if is_heldout(t, 0.2)} == {t for t in shuffled if is_heldout(t, 0.2)}


def test_a_larger_fraction_only_adds() -> None:
    small = {t for t in TEXTS if is_heldout(t, 0.1)}
    assert small < {t for t in TEXTS if is_heldout(t, 0.2)}


def test_the_ends_of_the_range() -> None:
    assert threshold(1.0) == HASH_SPAN
    assert not any(is_heldout(t, 0.0) for t in TEXTS)
    assert all(is_heldout(t, 1.0) for t in TEXTS)


def test_the_two_hashes_are_independent() -> None:
    heldout = [text_hash(t).sample / HASH_SPAN for t in TEXTS if is_heldout(t, 0.2)]
    assert abs(sum(heldout) / len(heldout) - 0.5) < 0.05


@pytest.mark.parametrize("text", ["", "\ud842", "か\u3099", "𠮟", "葛󠄀", "あ" * 200_000])
def test_any_text_has_a_side(text: str) -> None:
    assert 0 <= text_hash(text).split < HASH_SPAN
