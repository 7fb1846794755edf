import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from hayakuchi.config import TextDataConfig
from hayakuchi.data.batch import Batch
from hayakuchi.data.batches import HeldoutBatches, TextBatches
from hayakuchi.data.shards import ShardWriter, TokenShards
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CodeBook
from hayakuchi.text.tokenizer import FIRST_CODE_ID

LENGTH = 16
BATCH = 4
CODES = CodeBook.from_names(["物語", "随筆", "手紙"])


@pytest.fixture
def shards(tmp_path: Path) -> TokenShards:
    """Documents that fill a window each, known by their first token: 30 stories, 8 essays, no letter."""
    with ShardWriter(tmp_path, 2_000, shard_tokens=200) as writer:
        for number in range(38):
            ids = np.full(LENGTH - 1, 100 + number)
            writer.add(ids, characters=30, size=90, code=1 if number < 30 else 2)
    return TokenShards.open(tmp_path)


def text_batches(shards: TokenShards, batch: int = BATCH, process: tuple[int, int] = (0, 1), **data) -> TextBatches:
    config = TextDataConfig(**{"data_seed": 7, "data_workers": 0, **data})
    return TextBatches(shards, config, LENGTH, batch, codes=CODES, process_index=process[0], process_count=process[1])


def stream_hash(batches: Iterable[Batch], count: int) -> str:
    digest = hashlib.sha256()
    for batch in itertools.islice(batches, count):
        for array in batch:
            digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def joined(*processes: Iterable[Batch]) -> Iterable[Batch]:
    """The global batches of several processes' slices."""
    for slices in zip(*processes, strict=False):
        yield Batch(*(np.concatenate(arrays) for arrays in zip(*slices, strict=True)))


def windows(batches: Iterable[Batch], count: int) -> list[int]:
    """Which windows the first `count` batches hold."""
    return [int(row[1]) - 100 for batch in itertools.islice(batches, count) for row in batch.tokens]


@pytest.mark.parametrize("weights", ["", "物語=0.5,随筆=3"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2])
def test_one_stream_whatever_the_workers_processes_and_resumptions(
    shards: TokenShards, workers: int, processes: int, weights: str
) -> None:
    expected = stream_hash((text_batches(shards, code_weights=weights).batch(i) for i in itertools.count()), 15)

    parts = [
        text_batches(shards, process=(rank, processes), data_workers=workers, code_weights=weights)
        for rank in range(processes)
    ]
    assert stream_hash(joined(*(part.iterate() for part in parts)), 15) == expected

    # Stopped after 5 batches, and again in the second epoch, which starts inside batch 9.
    def resumed() -> Iterable[Batch]:
        position = 0
        for count in (5, 6, 4):
            iterators = [part.iterate(position) for part in parts]
            yield from itertools.islice(joined(*iterators), count)
            (position,) = {iterator.position for iterator in iterators}

    assert stream_hash(resumed(), 15) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_is_that_of_the_next_batch_not_of_the_prefetcher(shards: TokenShards, workers: int) -> None:
    batches = text_batches(shards, data_workers=workers)
    iterator = batches.iterate(3)
    assert iterator.position == 3
    for expected in range(4, 8):
        batch = next(iterator)
        assert iterator.position == expected
        np.testing.assert_array_equal(batch.tokens, batches.batch(expected - 1).tokens)


@pytest.mark.parametrize("batch", [4, 5, 38, 64])
def test_each_epoch_has_all_windows_in_its_own_order_and_the_shape_never_changes(
    shards: TokenShards, batch: int
) -> None:
    batches = text_batches(shards, batch)
    assert batches.plan.windows == 38
    needed = -(-3 * 38 // batch)
    drawn = [batches.batch(i) for i in range(needed)]
    assert {array.shape for b in drawn for array in b} == {(batch, LENGTH)}
    assert {array.dtype for b in drawn for array in b} == {np.dtype(np.int32)}
    order = windows(drawn, needed)
    epochs = [tuple(order[epoch * 38 : (epoch + 1) * 38]) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(38)) for epoch in epochs)
    assert len(set(epochs)) == 3
    assert tuple(range(38)) not in epochs


def test_the_seed_decides_the_order(shards: TokenShards) -> None:
    assert windows(text_batches(shards).iterate(), 9) == windows(text_batches(shards).iterate(), 9)
    assert windows(text_batches(shards).iterate(), 9) != windows(text_batches(shards, data_seed=8).iterate(), 9)


def test_seeds_are_independent(shards: TokenShards) -> None:
    def epochs(seed: int, **settings: str) -> list[tuple[int, ...]]:
        batches = text_batches(shards, 38, data_seed=seed, **settings)
        return [tuple(windows([batches.batch(epoch)], 1)) for epoch in range(3)]

    assert not set(epochs(7)) & set(epochs(8))
    weights = {"code_weights": "物語=1,随筆=1,手紙=1"}
    assert not set(epochs(7, **weights)) & set(epochs(8, **weights))


def codes_of(batches: TextBatches, count: int) -> Counter[int]:
    return Counter(int(row[0]) - FIRST_CODE_ID for i in range(count) for row in batches.batch(i).tokens)


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0, 0), (0.25, 0.17, 0.33), (1.0, 1, 1)])
def test_code_dropout_hits_its_share_of_windows(shards: TokenShards, rate: float, low: float, high: float) -> None:
    found = codes_of(text_batches(shards, code_dropout=rate), 120)
    assert low <= found[0] / found.total() <= high


def test_code_dropout_differs_between_epochs(shards: TokenShards) -> None:
    batches = text_batches(shards, 38, code_dropout=0.5)
    dropped = [
        frozenset(int(row[1]) for row in batches.batch(epoch).tokens if row[0] == FIRST_CODE_ID) for epoch in range(4)
    ]
    assert len(set(dropped)) == 4


@pytest.mark.parametrize(
    ("weights", "essays"), [("", 8 / 38), ("随筆=1", 8 / 38), ("随筆=3", 24 / 54), ("物語=0", 1.0), ("随筆=0", 0.0)]
)
def test_a_window_is_drawn_by_the_weight_of_its_code(shards: TokenShards, weights: str, essays: float) -> None:
    found = codes_of(text_batches(shards, code_weights=weights, code_dropout=0.0), 57)
    assert found[2] / found.total() == pytest.approx(essays, abs=0.02)


def test_the_windows_of_a_weighted_code_come_equally_often(shards: TokenShards) -> None:
    batches = text_batches(shards, code_weights="随筆=3", code_dropout=0.0)
    drawn = Counter(window for window in windows(batches.iterate(), 60) if window >= 30)
    assert len(drawn) == 8
    assert max(drawn.values()) - min(drawn.values()) <= 1


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        ({"code_weights": "小説=1"}, "小説"),
        ({"code_weights": "物語=0,随筆=0"}, "code_weights"),
        ({"data_seed": -1}, "data_seed"),
        ({"data_seed": 1 << 32}, "data_seed"),
        ({"process": (0, 3)}, "batch=4"),
    ],
)
def test_bad_settings_are_named(shards: TokenShards, settings: dict, culprit: str) -> None:
    with pytest.raises(UserError, match=culprit):
        text_batches(shards, **settings)


def test_no_training_text_is_an_error(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 100):
        pass
    with pytest.raises(UserError, match="no training documents"):
        text_batches(TokenShards.open(tmp_path))


@pytest.mark.parametrize("processes", [1, 2])
def test_heldout_batches_are_every_window_once(shards: TokenShards, processes: int) -> None:
    parts = [
        HeldoutBatches(shards, LENGTH, BATCH, process_index=rank, process_count=processes) for rank in range(processes)
    ]
    whole = stream_hash(HeldoutBatches(shards, LENGTH, BATCH), 10)
    for _ in range(2):
        batches = list(joined(*parts))
        assert stream_hash(batches, 10) == whole
        assert len(batches) == len(parts[0]) == 10
        assert {array.shape for batch in batches for array in batch} == {(BATCH, LENGTH)}
        rows = [row for batch in batches for row in zip(batch.tokens, batch.segments, strict=True)]
        assert sorted(int(tokens[1]) - 100 for tokens, _ in rows[:38]) == list(range(38))
        assert all(tokens[0] == FIRST_CODE_ID + (1 if tokens[1] < 130 else 2) for tokens, _ in rows[:38])
        assert not any(tokens.any() or segments.any() for tokens, segments in rows[38:])
        # The first batches are a sample of all codes.
        assert len({int(tokens[0]) for tokens, _ in rows[:12]}) == 2
