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


def test_a_text_above_the_limit_is_cut() -> None:
    sample = Sample(10)
    sample.add("あ".encode() * 100, "a", TextHash(0, 0))
    (sampled,) = sample.texts()
    assert sampled.text.decode("utf-8", "ignore") == "あああ"
