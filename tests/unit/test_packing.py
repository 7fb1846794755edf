import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayakuchi.data.packing import WindowPlan, assemble, plan_windows
from hayakuchi.data.shards import ShardWriter, TokenShards
from hayakuchi.text.tokenizer import FIRST_CODE_ID


def plan_of(lengths: list[int], codes: list[int], length: int) -> WindowPlan:
    return plan_windows(np.array(lengths, np.uint32), np.array(codes, np.uint16), length)


def shards_of(folder: Path, lengths: list[int], codes: list[int]) -> TokenShards:
    """Documents whose tokens are all different, counted on from 100 through the whole set."""
    first = 100
    with ShardWriter(folder, vocabulary_size=70_000, shard_tokens=64) as writer:
        for length, code in zip(lengths, codes, strict=True):
            writer.add(np.arange(first, first + length), characters=length, size=length, code=code)
            first += length
    return TokenShards.open(folder)


corpus = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 3)), max_size=60)


@given(corpus, st.integers(2, 20))
def test_every_token_has_exactly_one_place(documents: list[tuple[int, int]], length: int) -> None:
    plan = plan_of([n for n, _ in documents], [code for _, code in documents], length)
    pieces: dict[int, list[tuple[int, int]]] = {}
    for document, start, tokens in zip(plan.document.tolist(), plan.start.tolist(), plan.tokens.tolist(), strict=True):
        pieces.setdefault(document, []).append((start, start + tokens))
    for document, (tokens, _) in enumerate(documents):
        found = sorted(pieces.get(document, []))
        # No more pieces than the length demands: nothing that fits into a window is ever cut.
        assert len(found) == math.ceil(tokens / (length - 1))
        assert [place for start, stop in found for place in range(start, stop)] == list(range(tokens))


@given(corpus, st.integers(2, 20))
def test_windows_are_not_overfull_and_hold_one_code(documents: list[tuple[int, int]], length: int) -> None:
    codes = np.array([code for _, code in documents], np.uint16)
    plan = plan_of([n for n, _ in documents], codes.tolist(), length)
    assert plan.first_window[-1] == plan.windows
    for window in range(plan.windows):
        inside = slice(*plan.first_segment[window : window + 2].tolist())
        assert 0 < (plan.tokens[inside] + 1).sum() <= length
        (code,) = set(codes[plan.document[inside]].tolist())
        assert plan.first_window[code] <= window < plan.first_window[code + 1]


@given(st.lists(st.integers(1, 70), min_size=1, max_size=60), st.integers(2, 20))
def test_packing_is_within_the_bound_of_best_fit_decreasing(lengths: list[int], length: int) -> None:
    plan = plan_of(lengths, [1] * len(lengths), length)
    full = sum(n // (length - 1) for n in lengths)
    positions = sum(n % (length - 1) + 1 for n in lengths if n % (length - 1))
    # Johnson et al. 1974: at most 11/9 of the optimum and 4 bins; the optimum is at least the filled volume. One
    # position a window may be unusable, since a segment takes two.
    assert plan.windows - full <= 11 / 9 * math.ceil(positions / max(length - 1, 1)) + 4


def test_a_natural_mix_of_lengths_wastes_almost_nothing() -> None:
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(5, 1.3, 20_000).astype(int) + 1, 100_000)
    plan = plan_windows(lengths, random.integers(1, 4, len(lengths)), 256)
    filled = int(plan.tokens.sum()) + len(plan.tokens)
    assert 1 - filled / (plan.windows * plan.length) < 0.001


def test_the_plan_is_deterministic() -> None:
    lengths, codes = [5, 3, 9, 3, 40, 5, 1] * 20, [1, 2, 1, 1, 2, 1, 2] * 20
    first, second = plan_of(lengths, codes, 16), plan_of(lengths, codes, 16)
    for name in ("document", "start", "tokens", "first_segment", "first_window"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_assembled_windows_hold_whole_documents_apart(tmp_path: Path) -> None:
    lengths, codes = [7, 3, 30, 1, 12, 4, 4], [1, 1, 2, 2, 1, 2, 1]
    shards = shards_of(tmp_path, lengths, codes)
    plan = plan_windows(shards.documents["tokens"], shards.documents["code"], 11)
    batch = assemble(plan, shards, np.arange(plan.windows))
    assert all(array.dtype == np.int32 and array.shape == (plan.windows, 11) for array in batch)
    seen: list[int] = []
    for tokens, segments, positions in zip(*batch, strict=True):
        filled = int((segments > 0).sum())
        # Padding is at the end only, and all zeros.
        assert not tokens[filled:].any()
        assert not segments[filled:].any()
        assert not positions[filled:].any()
        numbers = np.unique(segments[:filled]).tolist()
        assert numbers == list(range(1, len(numbers) + 1))
        for number in numbers:
            (where,) = np.nonzero(segments == number)
            assert np.array_equal(where, np.arange(where[0], where[-1] + 1))
            np.testing.assert_array_equal(positions[where], np.arange(len(where)))
            piece = tokens[where[1:]]
            # Tokens count on through a document, and every one belongs to the document whose code stands in front.
            assert len(piece) > 0
            np.testing.assert_array_equal(np.diff(piece), 1)
            owner = np.searchsorted(np.cumsum(lengths), piece - 100, side="right")
            assert set(owner.tolist()) == {int(owner[0])}
            assert tokens[where[0]] == FIRST_CODE_ID + codes[owner[0]]
            seen += piece.tolist()
    assert sorted(seen) == list(range(100, 100 + sum(lengths)))


def test_unconditional_windows_have_code_0_and_the_same_text(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, [3, 4, 5, 20, 2], [1, 2, 1, 2, 1])
    plan = plan_windows(shards.documents["tokens"], shards.documents["code"], 12)
    windows = np.arange(plan.windows)
    plain = assemble(plan, shards, windows)
    mixed = assemble(plan, shards, windows, windows % 2 == 0)
    is_code = (plain.segments > 0) & (plain.positions == 0)
    assert (mixed.tokens[::2][is_code[::2]] == FIRST_CODE_ID).all()
    np.testing.assert_array_equal(mixed.tokens[1::2], plain.tokens[1::2])
    np.testing.assert_array_equal(np.where(is_code, 0, mixed.tokens), np.where(is_code, 0, plain.tokens))
    np.testing.assert_array_equal(mixed.segments, plain.segments)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens_no_windows(lengths: list[int]) -> None:
    assert plan_of(lengths, [1] * len(lengths), 8).windows == 0
