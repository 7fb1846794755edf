"""A language model of random weights, ready to generate: the parts of a `TextRun` that decoding looks at."""

from types import SimpleNamespace

import jax
import numpy as np

from hayakuchi.config import CtrlConfig
from hayakuchi.models.ctrl import Ctrl

PAD_ID, UNK_ID, EOS_ID, FIRST_CODE_ID, NEWLINE_ID = 0, 1, 2, 3, 67


def make_run(config: CtrlConfig) -> SimpleNamespace:
    model = Ctrl(config, jax.random.key(0))
    # So that no sample ends early.
    model.vocabulary_bias[...] = model.vocabulary_bias[...].at[EOS_ID].set(-1e9)
    tokenizer = SimpleNamespace(
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        eos_id=EOS_ID,
        code_id=lambda slot: FIRST_CODE_ID + slot,
        encode=lambda text: np.array([NEWLINE_ID] * len(text)),
    )
    return SimpleNamespace(model=model, tokenizer=tokenizer)
