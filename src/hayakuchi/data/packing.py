"""Documents into fixed windows of L positions.

Every window is a row of segments, each a control code and the tokens of a document or of a piece of one. A document
that does not fit is cut into full windows, and what is left at its end is packed with the other short ones by
best-fit decreasing, so that no document is cut more often than its length demands and almost no position is padding
("Fewer Truncations Improve Language Modeling", arXiv 2404.10830, section 3.1). All segments of a window have one
control code, so that windows can be drawn by code with exact weights.
"""

from dataclasses import dataclass

import numpy as np

from hayakuchi.data.batch import Batch
from hayakuchi.data.shards import TokenShards
from hayakuchi.text.codes import CODE_SLOTS
from hayakuchi.text.tokenizer import FIRST_CODE_ID


@dataclass(frozen=True)
class WindowPlan:
    """Which piece of which document stands in which window; windows of one code lie together.

    Attributes:
      length: L.
      document: [S] index of each segment's document.
      start: [S] its first token within the document.
      tokens: [S] how many tokens it takes, its control code not counted: 1..L-1.
      first_segment: [W + 1] segments of window w are first_segment[w] to before first_segment[w + 1].
      first_window: [CODE_SLOTS + 1] windows of the code in slot c are first_window[c] to before first_window[c + 1].
    """

    length: int
    document: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    first_segment: np.ndarray
    first_window: np.ndarray

    @property
    def windows(self) -> int:
        return len(self.first_segment) - 1


def plan_windows(lengths: np.ndarray, codes: np.ndarray, length: int) -> WindowPlan:
    """Plans the windows of a split. Deterministic, and O(n log n) in the number of documents.

    Args:
      lengths: [N] tokens of each document; one without tokens gets no segment.
      codes: [N] slot of each document's control code.
      length: L, 2 or more.
    """
    room = length - 1
    lengths = lengths.astype(np.int64)
    full = lengths // room
    rest = lengths % room

    # Segments of full windows: pieces 0, 1, ... of each document.
    whole_document = np.repeat(np.arange(len(lengths), dtype=np.int32), full)
    piece = np.arange(len(whole_document)) - np.repeat(np.cumsum(full) - full, full)
    whole_code = codes[whole_document]

    # What is left, longest first; stable, so that equals stay in the order of the documents.
    short_document = np.flatnonzero(rest).astype(np.int32)
    short_document = short_document[np.argsort(-rest[short_document], kind="stable")]
    short_code = codes[short_document]

    document, start, tokens, sizes, first_window = [], [], [], [], [0]
    for code in range(CODE_SLOTS):
        whole = whole_code == code
        short = short_document[short_code == code]
        bins = _best_fit(rest[short] + 1, length)
        short = short[np.argsort(bins, kind="stable")]
        document += [whole_document[whole], short]
        start += [(piece[whole] * room).astype(np.uint32), (full[short] * room).astype(np.uint32)]
        tokens += [np.full(np.count_nonzero(whole), room, np.int32), rest[short].astype(np.int32)]
        sizes += [np.ones(np.count_nonzero(whole), np.int64), np.bincount(bins)]
        first_window.append(first_window[-1] + len(sizes[-2]) + len(sizes[-1]))
    return WindowPlan(
        length=length,
        document=np.concatenate(document),
        start=np.concatenate(start),
        tokens=np.concatenate(tokens),
        first_segment=np.concatenate([[0], np.cumsum(np.concatenate(sizes))]),
        first_window=np.array(first_window),
    )


def _best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Best-fit bin packing in the order given.

    Args:
      sizes: [n] positions each item takes, 2..capacity.
      capacity: positions of a bin.

    Returns:
      [n] the bin of each item; bins are numbered from 0 and none is empty.
    """
    bins_with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    # Bit r is set where some bin has exactly r positions left: the best fit is the lowest set bit from the item's
    # size up, found without a search tree.
    rooms = 0
    opened = 0
    chosen = []
    for size in sizes.tolist():
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            stack = bins_with_room[room]
            target = stack.pop()
            if not stack:
                rooms ^= 1 << room
        else:
            room, target = capacity, opened
            opened += 1
        chosen.append(target)
        # One position left holds nothing: a segment is a code and a token.
        if room - size > 1:
            bins_with_room[room - size].append(target)
            rooms |= 1 << (room - size)
    return np.array(chosen, np.int64)


def assemble(
    plan: WindowPlan, shards: TokenShards, windows: np.ndarray, unconditional: np.ndarray | None = None
) -> Batch:
    """Reads windows into arrays.

    Args:
      plan: made from the documents of `shards`.
      shards: the documents.
      windows: [B] which windows.
      unconditional: [B] bool; where true, the window's codes are replaced by the unconditional one. None: nowhere.

    Returns:
      Int32 arrays [B, L].
    """
    tokens, segments, positions = (np.zeros((len(windows), plan.length), np.int32) for _ in range(3))
    slots = np.searchsorted(plan.first_window, windows, side="right") - 1
    code_ids = FIRST_CODE_ID + (slots if unconditional is None else np.where(unconditional, 0, slots))
    counting = np.arange(plan.length, dtype=np.int32)
    for row, window in enumerate(windows.tolist()):
        at = 0
        first, last = plan.first_segment[window : window + 2].tolist()
        for number, segment in enumerate(range(first, last), start=1):
            start, count = int(plan.start[segment]), int(plan.tokens[segment])
            end = at + 1 + count
            tokens[row, at] = code_ids[row]
            tokens[row, at + 1 : end] = shards.tokens(int(plan.document[segment]), start, start + count)
            segments[row, at:end] = number
            positions[row, at:end] = counting[: count + 1]
            at = end
    return Batch(tokens, segments, positions)
