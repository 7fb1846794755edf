"""Decoding while a model is still writing: text appears as soon as it is whole, and never as broken characters."""

import codecs

from hayakuchi.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes ids one at a time: text comes as soon as its last byte has come.

    What all calls return adds up to `Tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.piece_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, index: int) -> str:
        """The text that id `index` completes; "" while bytes of a character are missing."""
        return self._decoder.decode(self._bytes[index])

    def flush(self) -> str:
        """What is left at the end: U+FFFD if a character stayed incomplete. The decoder then starts anew."""
        return self._decoder.decode(b"", final=True)
