"""Text from a trained CTRL: the requests, and tokens turned into text as they come.

The work on the device is in `decoding`.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hayakuchi.errors import UserError, require
from hayakuchi.infer.decoding import decoded_blocks
from hayakuchi.infer.run import TextRun
from hayakuchi.infer.sampling import SamplingConfig
from hayakuchi.text.codes import UNCONDITIONAL
from hayakuchi.text.normalise import normalise
from hayakuchi.text.streaming import StreamDecoder
from hayakuchi.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FinishReason = Literal["end", "stop", "length"]

LARGEST_SAMPLES = 1_024
LARGEST_MAX_TOKENS = 1_000_000
LARGEST_TOTAL = 1 << 24  # the history of all samples is held on the device


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one sample's continuation.

    Attributes:
      index: which sample, 0 .. n - 1.
      text: text that is certain by now; may be "". Never half a character, never part of a stop string.
      tokens: ids drawn since the last piece, without <eos>; their text may come later.
      finish_reason: in the sample's last piece why it ended: "end" (<eos>), "stop" (a stop string) or "length".
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Generation:
    """One sample's continuation, without the prompt: the sum of its pieces."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason


def generate(
    run: TextRun,
    prompt: str,
    code: str | None = None,
    *,
    max_tokens: int = 256,
    sampling: SamplingConfig | None = None,
    stop: Sequence[str] = (),
    n: int = 1,
    seed: int = 0,
    strict_window: bool = False,
) -> list[Generation]:
    """Continues a prompt `n` times. Arguments and errors are those of `stream`."""
    return generations(
        stream(
            run,
            prompt,
            code,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            n=n,
            seed=seed,
            strict_window=strict_window,
        ),
        n,
    )


def generations(pieces: Iterable[Piece], n: int) -> list[Generation]:
    """Sums the pieces of `n` samples up."""
    texts: list[list[str]] = [[] for _ in range(n)]
    tokens: list[list[int]] = [[] for _ in range(n)]
    reasons: list[FinishReason] = ["length"] * n
    for piece in pieces:
        texts[piece.index].append(piece.text)
        tokens[piece.index].extend(piece.tokens)
        reasons[piece.index] = piece.finish_reason or "length"
    return [
        Generation("".join(text), tuple(ids), reason) for text, ids, reason in zip(texts, tokens, reasons, strict=True)
    ]


def stream(
    run: TextRun,
    prompt: str,
    code: str | None = None,
    *,
    max_tokens: int = 256,
    sampling: SamplingConfig | None = None,
    stop: Sequence[str] = (),
    n: int = 1,
    seed: int = 0,
    strict_window: bool = False,
) -> Iterator[Piece]:
    """Continues a prompt and gives the text as it is written.

    Past the window's end the model goes on with the control code and the newest half of the window. Of a prompt longer
    than the window the newest tokens are kept, and a warning says how many were dropped. Penalty and n-gram ban look at
    the whole text, the kept part of the prompt included.

    Args:
      run: the model.
      prompt: text to continue; may be "". It is normalised as the training data was, and so are the stop strings.
      code: name of a control code; None or "" for none.
      max_tokens: most tokens of a sample.
      sampling: how tokens are chosen; None for the defaults.
      stop: a sample ends before the first of these strings.
      n: number of samples, drawn as one batch. Sample i does not depend on n, but for rounding.
      seed: the same seed gives the same samples.
      strict_window: refuse a prompt longer than the window instead.

    Raises:
      UserError: at the call, not at the first piece: an unknown code, a number out of range, an empty stop string, or,
        with `strict_window`, a prompt that does not fit the window.
    """
    require(1 <= max_tokens <= LARGEST_MAX_TOKENS, "max_tokens", max_tokens, f"must be 1 to {LARGEST_MAX_TOKENS:,}")
    require(1 <= n <= LARGEST_SAMPLES, "n", n, f"must be 1 to {LARGEST_SAMPLES:,}")
    most = LARGEST_TOTAL // n
    require(max_tokens <= most, "max_tokens", max_tokens, f"must be {most:,} or less for {n:,} samples")
    require(0 <= seed < 2**32, "seed", seed, "must be 0 to 2**32 - 1")
    stops = [normalise(string, run.info.normalisation) for string in stop]
    for given, string in zip(stop, stops, strict=True):
        require(bool(string), "stop", given, "holds no text: leave it out")
    code_id = run.tokenizer.code_id(run.codes.slot(code or UNCONDITIONAL))
    ids = run.tokenizer.encode(normalise(prompt, run.info.normalisation)).tolist()
    room = run.model.config.length - 1  # beside the code
    dropped = len(ids) - room
    if dropped > 0:
        told = f"prompt: {len(ids):,} tokens; the model's window holds {room:,} beside the code"
        if strict_window:
            raise UserError(f"{told}: shorten the prompt, or leave out --strict-window")
        logger.warning("%s: the first %s were dropped", told, f"{dropped:,}")
    ids = [code_id, *ids[-room:]]
    rows = [_Row(index, run.tokenizer, stops) for index in range(n)]
    blocks = decoded_blocks(run, ids, sampling or SamplingConfig(), max_tokens=max_tokens, rows=n, seed=seed)
    return _pieces(blocks, rows, max_tokens)


def _pieces(blocks: Iterable[np.ndarray], rows: list["_Row"], max_tokens: int) -> Iterator[Piece]:
    left = max_tokens
    for block in blocks:
        left -= block.shape[1]
        for row in rows:
            if not row.done:
                yield row.read(block[row.index].tolist(), last=left == 0)
        if all(row.done for row in rows):
            return


class _Row:
    """Turns one sample's tokens into text, on the host."""

    def __init__(self, index: int, tokenizer: Tokenizer, stops: list[str]) -> None:
        self.index = index
        self.done = False
        self._eos_id = tokenizer.eos_id
        self._decoder = StreamDecoder(tokenizer)
        self._stops = stops
        self._held = ""

    def read(self, drawn: list[int], *, last: bool) -> Piece:
        """The piece that the newly drawn tokens give; `last` if no more will come."""
        written: list[str] = []
        tokens: list[int] = []
        reason: FinishReason | None = None
        for token in drawn:
            if token == self._eos_id:
                reason = "end"
                break
            tokens.append(token)
            text, stopped = self._release(token)
            written.append(text)
            if stopped:
                reason = "stop"
                break
        if reason is None and last:
            reason = "length"
        if reason in ("end", "length"):
            # The start of a stop string that did not come is text; bytes of a character that did not come are not.
            written.append(self._held)
        self.done = reason is not None
        return Piece(self.index, "".join(written), tuple(tokens), reason)

    def _release(self, token: int) -> tuple[str, bool]:
        """The text that is certain after a token, and whether a stop string follows it."""
        # Bytes that are no UTF-8 come out of the decoder as U+FFFD, and a terminal has no use for it.
        self._held += self._decoder.push(token).replace("\ufffd", "")
        found = [place for place in map(self._held.find, self._stops) if place >= 0]
        if found:
            return self._held[: min(found)], True
        keep = max((_overlap(self._held, string) for string in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text, False


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that begins `string`, but is not all of it."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
