"""Batches of speech: few shapes, every clip once an epoch, resumable, the same for any number of processes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayakuchi.config import SpeechDataConfig
from hayakuchi.data.speech_batches import (
    Bucket,
    Framing,
    SpeechBatches,
    assemble,
    choose_buckets,
    heldout_batches,
)
from hayakuchi.errors import UserError

FRAMING = Framing(hop=4, edge=6, least=8)


class Clips:
    """Clips whose every sample is the clip's own number."""

    def __init__(self, samples):
        self.samples = np.asarray(samples)
        self.symbols = np.maximum(self.samples // 40, 1)
        self.speakers = np.arange(len(self.samples)) % 3

    def __len__(self):
        return len(self.samples)

    def name(self, index):
        return f"clip {index}"

    def ids(self, index):
        return np.arange(1, self.symbols[index] + 1)

    def audio(self, index):
        return np.full(self.samples[index], index + 1, np.int16)


def clips(count=50, seed=0):
    return Clips(np.random.default_rng(seed).integers(40, 2_000, count))


def numbers(batch):
    """Which clips a batch holds."""
    return batch.audio[:, 0] - 1


def test_all_clips_of_one_length_make_one_bucket():  # S1
    stream = SpeechBatches(Clips([400 * 4] * 7), SpeechDataConfig(buckets=4), 3, FRAMING)
    assert len(stream.buckets) == 1
    assert stream.batch(5).frame_lengths.tolist() == [400] * 3


def test_no_clips_is_one_line():
    with pytest.raises(UserError, match="no training clips"):
        SpeechBatches(Clips([]), SpeechDataConfig(), 3, FRAMING)


def test_more_symbols_than_frames_is_one_line_that_names_a_clip():  # S2, where the hop is not that of `prepare`
    found = Clips([400] * 5)
    found.symbols = np.array([10, 49, 50, 60, 2])
    with pytest.raises(UserError, match=r"2 clips have more symbols than frames .*clip 2: 101 and 100"):
        SpeechBatches(found, SpeechDataConfig(), 3, FRAMING)


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 900)), min_size=1, max_size=40), st.integers(1, 6))
def test_buckets_hold_every_clip_and_are_no_more_than_asked(sizes, count):
    symbols, frames = np.array(sizes).T
    buckets = choose_buckets(symbols, frames, count, least_frames=32)
    assert 1 <= len(buckets) <= count
    assert [bucket.frames for bucket in buckets] == sorted({bucket.frames for bucket in buckets})
    homes = np.searchsorted([bucket.frames for bucket in buckets], frames)
    for index, (length, home) in enumerate(zip(symbols, homes, strict=True)):
        assert buckets[home].symbols >= length, index
        assert buckets[home].frames >= 32


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 4))
def test_buckets_pad_as_little_as_any_choice_could(steps, count):
    frames = np.array(steps) * 32
    found = choose_buckets(np.ones_like(frames), frames, count)

    def padded(edges):
        return sum(min(edge for edge in edges if edge >= length) for length in frames.tolist())

    largest = int(frames.max())
    options = set(frames.tolist()) - {largest}
    best = min(
        padded([*chosen, largest])
        for size in range(min(count, len(options) + 1))
        for chosen in itertools.combinations(options, size)
    )
    assert padded([bucket.frames for bucket in found]) == best


def test_every_clip_comes_once_in_an_epoch_of_its_bucket():
    found = clips(60)
    stream = SpeechBatches(found, SpeechDataConfig(buckets=1), 4, FRAMING)
    seen = np.concatenate([numbers(stream.batch(index)) for index in range(15)])
    assert sorted(seen.tolist()) == list(range(60))
    again = np.concatenate([numbers(stream.batch(index)) for index in range(15, 30)])
    assert sorted(again.tolist()) == list(range(60))
    assert again.tolist() != seen.tolist()


def test_buckets_take_turns_in_proportion_to_their_clips():
    found = clips(400)
    stream = SpeechBatches(found, SpeechDataConfig(buckets=3), 4, FRAMING)
    shapes = [stream.batch(index).audio.shape[1] for index in range(100)]
    frames = found.samples // 4
    edges = [bucket.frames for bucket in stream.buckets]
    homes = np.searchsorted(edges, frames)
    for index, bucket in enumerate(stream.buckets):
        share = np.mean(homes == index)
        assert shapes.count((bucket.frames + FRAMING.margin) * FRAMING.hop) == pytest.approx(100 * share, abs=2)


def test_a_stream_is_resumed_by_a_number():
    config = SpeechDataConfig(buckets=2)
    stream = SpeechBatches(clips(), config, 4, FRAMING)
    whole = [next(iterator) for iterator in [stream.iterate(0)] for _ in range(9)]
    later = SpeechBatches(clips(), config, 4, FRAMING).iterate(5)
    for expected in whole[5:]:
        for one, other in zip(expected, next(later), strict=True):
            np.testing.assert_array_equal(one, other)
    assert later.position == 9


def test_processes_share_the_batch_of_one():
    config = SpeechDataConfig(buckets=2)
    alone = SpeechBatches(clips(), config, 4, FRAMING)
    parts = [SpeechBatches(clips(), config, 4, FRAMING, process_index=i, process_count=2) for i in range(2)]
    for index in range(6):
        together = [np.concatenate(arrays) for arrays in zip(*(part.batch(index) for part in parts), strict=True)]
        for one, other in zip(alone.batch(index), together, strict=True):
            np.testing.assert_array_equal(one, other)


def test_symbols_have_blanks_and_audio_goes_on_as_its_mirror_image():
    class Ramp(Clips):
        def audio(self, index):
            return np.arange(self.samples[index], dtype=np.int16)

    batch = assemble(Ramp([43]), np.array([0]), Bucket(9, 12), FRAMING)
    assert batch.symbols[0].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert batch.symbol_lengths.tolist() == [3]
    assert batch.frame_lengths.tolist() == [10]  # the three samples over are cut
    assert batch.audio.shape == (1, (12 + 2) * 4)
    assert batch.audio[0, 36:48].tolist() == [36, 37, 38, 39, 38, 37, 36, 35, 34, 33, 0, 0]


@pytest.mark.parametrize(
    ("count", "batch", "multiple", "limit", "sizes"),
    [
        (10, 4, 1, 9, [2] * 5),
        (10, 4, 1, 4, [3] * 3),  # one clip is left out rather than another repeated
        (3, 8, 1, 4, [3]),
        (130, 64, 1, 4, [43] * 3),
        (9, 8, 8, 4, [8]),
        (100, 8, 2, 4, [8] * 4),
    ],
)
def test_held_out_batches_are_always_the_same_and_repeat_no_clip(count, batch, multiple, limit, sizes):
    found, bucket = clips(count), Bucket(200, 512)
    first, second = (list(heldout_batches(found, bucket, batch, FRAMING, limit, multiple)) for _ in range(2))
    assert [numbers(each).tolist() for each in first] == [numbers(each).tolist() for each in second]
    assert [len(each.symbols) for each in first] == sizes
    seen = [int(number) for each in first for number in numbers(each)]
    assert len(seen) == len(set(seen))


def test_held_out_batches_where_few_or_no_clips_fit():
    [batch] = heldout_batches(clips(3), Bucket(200, 512), 8, FRAMING, 4, 4)
    assert len(batch.symbols) == 4  # one a device
    assert not list(heldout_batches(clips(10), Bucket(200, 1), 4, FRAMING, 9))


@pytest.mark.parametrize("buckets", [1, 2])
def test_seeds_and_buckets_are_independent(buckets):
    # Of two buckets with clips of their own, the order within each: its place among the bucket's clips.
    found = Clips([100] * 12 + [1_500] * 12)

    def orders(seed):
        stream = SpeechBatches(found, SpeechDataConfig(buckets=buckets, data_seed=seed), 4, FRAMING)
        drawn = np.concatenate([numbers(stream.batch(index)) for index in range(3 * 24 // 4)]).tolist()
        parts = [drawn] if buckets == 1 else [[n for n in drawn if n < 12], [n - 12 for n in drawn if n >= 12]]
        size = 24 // buckets
        return {tuple(part[start : start + size]) for part in parts for start in range(0, len(part), size)}

    assert len(orders(7)) == 3 * buckets
    assert not orders(7) & orders(8)
