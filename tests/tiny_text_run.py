"""A tiny CTRL of random parameters with a tokenizer that needs no training."""

import hashlib
import re

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hayakuchi.config import CtrlConfig, CtrlRecipe
from hayakuchi.data.shards import DatasetInfo
from hayakuchi.infer.run import TextRun
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.text.codes import CodeBook
from hayakuchi.text.tokenizer import FIRST_BYTE_ID, FIRST_LEARNT_ID, SPECIAL_PIECES, Tokenizer

LEARNT = [
    *"あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほ日月火水木金土。、",
    "です",
    "ました",
    "東京",
    "、と",
]
MODEL = b"stand-in"
"""Of a data set for `tiny_text_run`: its tokenizer.model."""
SHA256 = hashlib.sha256(MODEL).hexdigest()


class TinyTokenizer(Tokenizer):
    """The pieces of `LEARNT`, the longest first, the line feed and the space; all else as bytes."""

    def __init__(self):
        self.vocabulary_size = FIRST_LEARNT_ID + len(LEARNT)
        special = [b""] * (len(SPECIAL_PIECES) - 2) + [b"\n", b" "]
        # Set before its first use, so that the cached property of the parent never asks SentencePiece.
        self.piece_bytes = [*special, *(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in LEARNT)]

    def encode(self, text):
        ids = []
        for part in re.findall("|".join([*sorted(LEARNT, key=len, reverse=True), "."]), text, re.DOTALL):
            if part in LEARNT:
                ids.append(FIRST_LEARNT_ID + LEARNT.index(part))
            elif part in "\n ":
                ids.append(FIRST_BYTE_ID - 2 + "\n ".index(part))
            else:
                ids.extend(FIRST_BYTE_ID + byte for byte in part.encode())
        return np.array(ids, np.int32)


def tiny_text_run(*, seed=0, codes=("story", "essay", "letter"), eos_bias=-30.0, byte_bias=-30.0, **sizes):
    """A run whose model writes characters of `LEARNT`; raise a bias to let it write <eos> or single bytes."""
    tokenizer = TinyTokenizer()
    sizes = {"length": 16, "layers": 2, "width": 32, "heads": 2, "feed_forward": 64} | sizes
    config = CtrlConfig(vocabulary_size=tokenizer.vocabulary_size, **sizes)
    model = Ctrl(config, jax.random.key(seed))
    bias = np.zeros(config.vocabulary_size, np.float32)
    bias[FIRST_BYTE_ID:FIRST_LEARNT_ID] = byte_bias
    bias[tokenizer.eos_id] = eos_bias
    model.vocabulary_bias[...] = jnp.asarray(bias)
    # At the published scale a random model hardly minds what it reads.
    model.embedding[...] = 3 * model.embedding[...]
    for path, parameter in nnx.iter_graph(model):
        if isinstance(parameter, nnx.Param) and path[-1] == "kernel":
            parameter[...] = 4 * parameter[...]
    book = CodeBook.from_names(codes)
    info = DatasetInfo(book, SHA256, config.vocabulary_size, "nfkc", (), {"train": {}, "heldout": {}})
    return TextRun(model, CtrlRecipe(model=config), tokenizer, info, 0)
