import random
from pathlib import Path

import pytest

from hayakuchi.data.split import HASH_SPAN, TextHash, text_hash
from hayakuchi.data.staging import Sample, Staging

TEXTS = [f"{number}番目の段落である。" * (1 + number % 7) for number in range(200)]


def staged(path: Path, hashes: list[tuple[str, int]]) -> Staging:
    with Staging(path) as staging:
        for number, (code, value) in enumerate(hashes):
            staging.add(TEXTS[number].encode(), len(TEXTS[number]), code, value)
    return staging


@pytest.mark.parametrize("size", [1, 300, 10**9])
def test_stretches_give_every_text_back_in_order(tmp_path: Path, size: int) -> None:
    staging = staged(tmp_path / "staging", [("a", 0)] * len(TEXTS))
    stretches = list(staging.stretches(size))
    assert [text for stretch in stretches for text in stretch.read()] == TEXTS
    assert all(sum(stretch.sizes[:-1]) < size for stretch in stretches)


def test_a_code_without_heldout_text_holds_out_its_smallest_hash(tmp_path: Path) -> None:
    low, high = HASH_SPAN // 1_000, HASH_SPAN // 2
    hashes = [("large", low), ("small", high + 5), ("small", high), ("large", high), ("single", high), ("twins", high)]
    staging = staged(tmp_path / "staging", [*hashes, ("twins", high)])
    assert staging.code_names == ["large", "small", "single", "twins"]
    general, small, single, twins = staging.thresholds(0.01)
    assert low < general < high
    assert high < small <= high + 5
    # A code with one text, or copies of one, keeps it for training.
    assert single <= high
    assert twins <= high


def test_a_code_never_loses_all_its_texts_to_the_held_out_side(tmp_path: Path) -> None:
    staging = staged(tmp_path / "staging", [("a", 5), ("a", 7), ("a", 6), ("b", 5), ("b", 5)])
    of_three, of_copies = staging.thresholds(0.01)
    assert of_three == 7
    assert of_copies == 0


def test_nothing_is_held_out_of_a_fraction_of_0(tmp_path: Path) -> None:
    assert staged(tmp_path / "staging", [("a", 0), ("a", 1)]).thresholds(0.0) == [0]


def sample_of(texts: list[str], limit: int) -> Sample:
    sample = Sample(limit)
    for text in texts:
        sample.add(text.encode(), "a", text_hash(text))
    return sample


def test_a_sample_is_bounded_and_does_not_depend_on_the_order() -> None:
    shuffled = TEXTS.copy()
    random.Random(1).shuffle(shuffled)
    first, second = sample_of(TEXTS, 4_000).texts(), sample_of(shuffled, 4_000).texts()
    assert first == second
    assert 3_000 < sum(len(sampled.text) for sampled in first) <= 4_000
    assert len(sample_of(TEXTS, 10**9).texts()) == len(TEXTS)


def test_a_huge_text_does_not_drive_out_the_others() -> None:
    huge = "長い文である。" * 1_000
    texts = sample_of([*TEXTS, huge], 4_000).texts()
    assert sum(len(sampled.text) for sampled in texts) > 3_000
    assert all(len(sampled.text) <= 200 for sampled in texts)
    sample = Sample(4_000)
    for text in TEXTS:
        sample.add(text.encode(), "a", text_hash(text))
    sample.add(huge.encode(), "a", TextHash(0, 0))  # a hash that is kept in any case
    assert len(sample.texts()) > 20


def test_of_one_huge_text_all_parts_are_sampled() -> None:
    sample = Sample(4_000)
    text = "".join(f"{number:05}" for number in range(20_000)).encode()
    sample.add(text, "a", TextHash(0, 12_345))
    kept = [text.index(sampled.text) / len(text) for sampled in sample.texts()]
    assert 3_000 < sum(len(sampled.text) for sampled in sample.texts()) <= 4_000
    assert min(kept) < 0.2
    assert max(kept) > 0.8
