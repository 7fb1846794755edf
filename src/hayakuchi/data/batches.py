"""Batches of a prepared text data set: endless for training, each window once for evaluation.

The training stream is a pure function of the batch's number, so that one integer resumes it exactly. Its order is
shuffle -> code dropout -> global batch -> slice by process: the slices of all processes together are the same batch
however many processes there are. (Slicing before batching would draw other batches for another number of processes.)
"""

import math
from collections.abc import Iterator
from typing import Self, TypeVar

import grain
import numpy as np

from hayakuchi.config import TextDataConfig
from hayakuchi.data.batch import Batch
from hayakuchi.data.packing import WindowPlan, assemble, plan_windows
from hayakuchi.data.shards import TokenShards
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS, CodeBook, parse_code_weights

BatchT = TypeVar("BatchT")
_ORDER, _DROPOUT = 0, 1  # streams of `stream_seed`
PREFETCHED_BATCHES = 4
"""Batches assembled ahead by each worker thread."""


def stream_seed(seed: int, *stream: int) -> int:
    """A seed of 32 bits for one of several random streams that have nothing in common.

    Grain shuffles epoch e with its seed + e: of the user's own seeds, epoch e of one would be epoch e - 1 of the next.

    Args:
      seed: the user's, 0 or more.
      stream: which of the streams.
    """
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0])


class BatchIterator(Iterator[BatchT]):
    """Endless training batches from a given one on.

    Attributes:
      position: number of the batch that comes next, whatever has been assembled ahead. Given to `TextBatches.iterate`,
        it continues the stream.
    """

    def __init__(self, batches: Iterator[BatchT], position: int) -> None:
        self._batches = batches
        self.position = position

    def __next__(self) -> BatchT:
        batch = next(self._batches)
        self.position += 1
        return batch

    def __iter__(self) -> Self:
        return self


class TextBatches:
    """The training stream of one process.

    Every window comes once an epoch, in an order of that epoch's own. Epochs follow one another inside a batch, so that
    no window is lost and the shape never changes. With `code_weights` each code has its own epochs, and a window is
    drawn in proportion to the weight of its code.

    Args:
      shards: the training documents.
      config: seed, code dropout, code weights and threads.
      length: L.
      batch: B, windows of a batch over all processes; a multiple of `process_count`.
      codes: the codes of the data set, for `code_weights`.
      process_index: which process this is.
      process_count: how many there are.

    Attributes:
      plan: what stands in which window.
      epoch_batches: batches that hold as many windows as there are.

    Raises:
      UserError: no windows, a bad weight or seed, or a batch that the processes cannot share evenly.
    """

    def __init__(
        self,
        shards: TokenShards,
        config: TextDataConfig,
        length: int,
        batch: int,
        *,
        codes: CodeBook,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        if not 0 <= config.data_seed < 1 << 32:
            raise UserError(f"data_seed={config.data_seed} must be in 0..{(1 << 32) - 1}")
        self.plan = plan_windows(shards.documents["tokens"], shards.documents["code"], length)
        if not self.plan.windows:
            raise UserError("the data set has no training documents: prepare it from more text")
        self.epoch_batches = self.plan.windows / batch
        self._shards = shards
        self._rows = rows_of(batch, process_index, process_count)
        self._workers = config.data_workers

        # Everything up to the batch handles numbers of windows only; text is read for this process's rows alone.
        def mark(window: int, random: np.random.Generator) -> tuple[int, bool]:
            return window, random.random() < config.code_dropout

        windows = _drawn_windows(self.plan, config, codes)
        self._dataset = (
            windows.random_map(mark, seed=stream_seed(config.data_seed, _DROPOUT)).batch(batch).map(self._assemble)
        )

    def batch(self, index: int) -> Batch:
        """Batch number `index`, 0 or more: this process's rows, int32 [B / process_count, L]."""
        batch: Batch = self._dataset[index]
        return batch

    def iterate(self, start: int = 0) -> BatchIterator[Batch]:
        """Batches `start`, `start + 1`, ..., assembled ahead in `data_workers` threads."""
        options = grain.ReadOptions(num_threads=self._workers, prefetch_buffer_size=PREFETCHED_BATCHES * self._workers)
        return BatchIterator(iter(self._dataset[start:].to_iter_dataset(options)), start)

    def _assemble(self, drawn: tuple[np.ndarray, np.ndarray]) -> Batch:
        windows, unconditional = drawn
        return assemble(self.plan, self._shards, windows[self._rows], unconditional[self._rows])


class HeldoutBatches:
    """All windows of a split once, without code dropout; can be iterated again.

    The order is random but always the same, so that the first few batches are a fair sample of all codes. Every token
    of every document is the target of exactly one position, so sums over all batches are sums over the split. The codes
    are at the positions where `segments > 0` and `positions == 0`.

    Args:
      shards: the held-out documents.
      length: L.
      batch: B, windows of a batch over all processes; the last batch is filled up with padding.
      process_index: which process this is.
      process_count: how many there are.
    """

    def __init__(
        self, shards: TokenShards, length: int, batch: int, *, process_index: int = 0, process_count: int = 1
    ) -> None:
        self.plan = plan_windows(shards.documents["tokens"], shards.documents["code"], length)
        self._shards = shards
        self._batch = batch
        self._rows = rows_of(batch, process_index, process_count)
        self._order = np.random.default_rng(0).permutation(self.plan.windows)

    def __len__(self) -> int:
        return math.ceil(self.plan.windows / self._batch)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, self.plan.windows, self._batch):
            # The last batch, and with it a process's share of it, may be short.
            batch = assemble(self.plan, self._shards, self._order[first : first + self._batch][self._rows])
            missing = self._rows.stop - self._rows.start - len(batch.tokens)
            yield Batch(*(np.pad(array, ((0, missing), (0, 0))) for array in batch))


def rows_of(batch: int, process_index: int, process_count: int) -> slice:
    """The rows of a global batch that belong to one process."""
    if batch % process_count:
        raise UserError(f"batch={batch} must be a multiple of the number of processes ({process_count})")
    share = batch // process_count
    return slice(process_index * share, (process_index + 1) * share)


def _drawn_windows(plan: WindowPlan, config: TextDataConfig, codes: CodeBook) -> grain.MapDataset:
    """Numbers of windows in the order of training, endless."""
    weights = parse_code_weights(config.code_weights, codes)
    if not weights:
        return grain.MapDataset.range(plan.windows).shuffle(stream_seed(config.data_seed, _ORDER)).repeat()
    parts, shares = [], []
    for slot in range(CODE_SLOTS):
        first, last = plan.first_window[slot : slot + 2].tolist()
        share = (last - first) * (weights.get(codes.name(slot), 1.0) if last > first else 0)
        if share > 0:
            seed = stream_seed(config.data_seed, _ORDER, slot)
            parts.append(grain.MapDataset.range(first, last).shuffle(seed).repeat())
            shares.append(share)
    if not parts:
        raise UserError(f"code_weights={config.code_weights!r}: no code with training text has a weight above 0")
    return grain.MapDataset.mix(parts, shares)
