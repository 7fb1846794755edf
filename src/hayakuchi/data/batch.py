"""What a language model is trained on in one step."""

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
