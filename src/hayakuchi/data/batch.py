"""What a model is trained on in one step."""

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """Windows of packed documents. NumPy or JAX arrays of int32 [B, L].

    Attributes:
      tokens: token ids; each segment is a control code and the tokens of a piece of a document.
      segments: 1, 2, ... for the segments of a window, 0 where it is padding.
      positions: 0, 1, ... from the control code of each segment; 0 in padding.
    """

    tokens: Any
    segments: Any
    positions: Any


class SpeechBatch(NamedTuple):
    """Clips with their symbols, padded to the shape of a bucket. NumPy or JAX arrays.

    Attributes:
      symbols: int32 [B, L], symbol ids with blanks; 0 past a clip's end.
      symbol_lengths: int32 [B].
      audio: int16 [B, (T + margin) * hop]; past its end a clip goes on as its mirror image, then as zeros.
      frame_lengths: int32 [B], at most T.
      speakers: int32 [B], speaker indices.
    """

    symbols: Any
    symbol_lengths: Any
    audio: Any
    frame_lengths: Any
    speakers: Any
