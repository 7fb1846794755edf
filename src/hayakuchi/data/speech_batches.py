"""Batches of a prepared speech data set, in a few fixed shapes.

Clips of like length share a bucket, and every batch of a bucket has its shape: few shapes, little padding. As with
text (`batches.py`), batch number i is a pure function of i: each bucket has its own epochs, and the buckets take turns
in proportion to their clips.
"""

from collections.abc import Iterator
from typing import NamedTuple

import grain
import numpy as np

from hayakuchi.config import SpeechDataConfig
from hayakuchi.data.batch import SpeechBatch
from hayakuchi.data.batches import PREFETCHED_BATCHES, BatchIterator, rows_of, stream_seed
from hayakuchi.data.speech_shards import SpeechClips
from hayakuchi.errors import UserError
from hayakuchi.speech.symbols import with_blanks

_FRAME_STEP = 32
_SYMBOL_STEP = 16


class Framing(NamedTuple):
    """How samples become frames.

    Attributes:
      hop: samples of a frame.
      edge: samples beyond its own that the first and the last frame of a clip look at.
      least: frames that every batch has at least.
    """

    hop: int
    edge: int
    least: int

    @property
    def margin(self) -> int:
        """Frames of room behind the last, for the edge."""
        return -(-self.edge // self.hop)


class Bucket(NamedTuple):
    """Shape of a batch: symbols with blanks, and frames."""

    symbols: int
    frames: int


def choose_buckets(symbols: np.ndarray, frames: np.ndarray, count: int, least_frames: int = 1) -> list[Bucket]:
    """At most `count` shapes that hold all clips with the least padding of frames, the smallest first.

    Args:
      symbols: [N] symbols of each clip, with blanks.
      frames: [N] its frames.
      count: most shapes.
      least_frames: no shape has fewer frames.

    Raises:
      UserError: no clips.
    """
    if not len(frames):
        raise UserError("the data set has no training clips: prepare it from more recordings")
    ceilings = -(-np.maximum(frames, least_frames) // _FRAME_STEP) * _FRAME_STEP
    sizes, clips = np.unique(ceilings, return_counts=True)
    # best[k][j]: least padded frames of the sizes before j in k buckets; a bucket takes its largest size.
    before = np.concatenate([[0], np.cumsum(clips)])
    best = np.where(np.arange(len(sizes) + 1) == 0, 0.0, np.inf)
    cuts = []
    for _ in range(min(count, len(sizes))):
        # cost[i, j]: the sizes i..j-1 as one more bucket.
        cost = best[:, None] + (before[None, 1:] - before[:, None]) * sizes[None, :]
        cost[np.tril_indices(len(sizes) + 1, -1, len(sizes))] = np.inf
        cuts.append(np.argmin(cost, axis=0))
        best = np.concatenate([[0.0], np.min(cost, axis=0)])
    edges, end = [], len(sizes)
    for cut in reversed(cuts):
        if end:
            edges.append(int(sizes[end - 1]))
            end = int(cut[end - 1])
    edges.reverse()
    chosen = np.searchsorted(edges, ceilings)
    return [
        Bucket(int(-(-symbols[chosen == index].max() // _SYMBOL_STEP) * _SYMBOL_STEP), edge)
        for index, edge in enumerate(edges)
    ]


class SpeechBatches:
    """The training stream of one process.

    Args:
      clips: the training clips.
      config: seed, number of buckets and threads.
      batch: B, clips of a batch over all processes; a multiple of `process_count`.
      framing: how samples become frames.
      process_index: which process this is.
      process_count: how many there are.

    Attributes:
      buckets: the shapes that come.
      epoch_batches: batches that hold as many clips as there are, 1 or more.

    Raises:
      UserError: no clips, a clip with more symbols than frames, or a batch that the processes cannot share evenly.
    """

    def __init__(
        self,
        clips: SpeechClips,
        config: SpeechDataConfig,
        batch: int,
        framing: Framing,
        *,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        symbols, frames = _lengths(clips, framing)
        crowded = np.flatnonzero(symbols > frames)
        if len(crowded):
            first = int(crowded[0])
            raise UserError(
                f"{len(crowded)} clips have more symbols than frames of {framing.hop} samples ({clips.name(first)}: "
                f"{symbols[first]} and {frames[first]}): the recipe needs a smaller hop_samples, 256 or less"
            )
        self.buckets = choose_buckets(symbols, frames, config.buckets, framing.least)
        self.epoch_batches = max(round(len(clips) / batch), 1)
        self._clips = clips
        self._framing = framing
        self._rows = rows_of(batch, process_index, process_count)
        self._workers = config.data_workers
        edges = [bucket.frames for bucket in self.buckets]
        homes = np.searchsorted(edges, frames)
        members = [np.flatnonzero(homes == index) for index in range(len(self.buckets))]
        parts = [_drawn(index, numbers, batch, config.data_seed) for index, numbers in enumerate(members)]
        shares = [float(len(numbers)) for numbers in members]
        self._dataset = grain.MapDataset.mix(parts, shares).map(self._assemble)

    def batch(self, index: int) -> SpeechBatch:
        """Batch number `index`, 0 or more: this process's rows."""
        batch: SpeechBatch = self._dataset[index]
        return batch

    def iterate(self, start: int = 0) -> BatchIterator[SpeechBatch]:
        """Batches `start`, `start + 1`, ..., assembled ahead in `data_workers` threads."""
        options = grain.ReadOptions(num_threads=self._workers, prefetch_buffer_size=PREFETCHED_BATCHES * self._workers)
        return BatchIterator(iter(self._dataset[start:].to_iter_dataset(options)), start)

    def _assemble(self, drawn: tuple[int, np.ndarray]) -> SpeechBatch:
        bucket, numbers = drawn
        return assemble(self._clips, numbers[self._rows], self.buckets[bucket], self._framing)


def heldout_batches(
    clips: SpeechClips,
    bucket: Bucket,
    batch: int,
    framing: Framing,
    limit: int,
    multiple: int = 1,
    *,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[SpeechBatch]:
    """Up to `limit` batches of held-out clips that fit a bucket, in an order that is always the same.

    All are of one size, the one at most `batch` with which the most clips are measured, so that none has to come twice
    to fill the last batch. Nothing comes where no clip fits; fewer clips than `multiple` are repeated.

    Args:
      clips: the held-out clips.
      bucket: shape of the batches.
      batch: most clips of a batch over all processes.
      framing: how samples become frames.
      limit: most batches.
      multiple: of what the size of a batch must be a multiple: the number of devices; divides `batch`.
      process_index: which process this is.
      process_count: how many there are.
    """
    symbols, frames = _lengths(clips, framing)
    fitting = np.flatnonzero((symbols <= bucket.symbols) & (frames <= bucket.frames))
    order = np.random.default_rng(0).permutation(fitting)

    def size(count: int) -> int:
        return min(batch, len(order) // count // multiple * multiple)

    if 0 < len(order) < multiple:
        order = np.resize(order, multiple)
    count = max(range(1, limit + 1), key=lambda count: count * size(count))
    if not size(count):
        return
    rows = rows_of(size(count), process_index, process_count)
    for part in np.split(order[: count * size(count)], count):
        yield assemble(clips, part[rows], bucket, framing)


def assemble(clips: SpeechClips, numbers: np.ndarray, bucket: Bucket, framing: Framing) -> SpeechBatch:
    """The clips of these numbers as one batch of a bucket's shape."""
    room = (bucket.frames + framing.margin) * framing.hop
    symbols = np.zeros((len(numbers), bucket.symbols), np.int32)
    audio = np.zeros((len(numbers), room), np.int16)
    symbol_lengths, frame_lengths = np.zeros((2, len(numbers)), np.int32)
    for row, number in enumerate(numbers.tolist()):
        ids = with_blanks(clips.ids(number).tolist())
        frames = int(clips.samples[number]) // framing.hop
        # Past its end a clip goes on as its mirror image, so that its last frame is what it is without padding.
        end = frames * framing.hop
        sound = clips.audio(number)[:end]
        symbols[row, : len(ids)] = ids
        audio[row, :end] = sound
        audio[row, end : end + framing.edge] = sound[-2 : -2 - framing.edge : -1]
        symbol_lengths[row], frame_lengths[row] = len(ids), frames
    return SpeechBatch(symbols, symbol_lengths, audio, frame_lengths, clips.speakers[numbers].astype(np.int32))


def _lengths(clips: SpeechClips, framing: Framing) -> tuple[np.ndarray, np.ndarray]:
    """Symbols with blanks, and whole frames, of every clip."""
    return 2 * clips.symbols.astype(np.int64) + 1, clips.samples.astype(np.int64) // framing.hop


def _drawn(bucket: int, members: np.ndarray, batch: int, seed: int) -> grain.MapDataset:
    """(bucket, numbers of the clips of a batch), endless."""
    order = grain.MapDataset.range(len(members)).shuffle(stream_seed(seed, bucket)).repeat()

    def number(positions: np.ndarray) -> tuple[int, np.ndarray]:
        return bucket, members[positions]

    return order.batch(batch).map(number)
