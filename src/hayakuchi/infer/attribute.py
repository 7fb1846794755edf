"""Source attribution: which control code a text fits (CTRL, arXiv 1909.05858, section 5).

p(code | text) is proportional to p(text | code) p(code). The released script ranks by perplexity and drops the priors
it has loaded; here they count, and the result is a distribution.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from hayakuchi.errors import UserError
from hayakuchi.infer.run import TextRun
from hayakuchi.text.normalise import normalise


@dataclass(frozen=True)
class Attribution:
    """What the named codes have to do with a text. Dictionaries are by code, in the order of their slots.

    Attributes:
      probabilities: p(code | text), which sum to 1.
      log_likelihoods: log p(text | code) in nats.
      bits_per_character: the same as a cost, of the normalised text; 0 for an empty one.
      tokens: number of tokens of the text.
      characters: number of characters of the normalised text.
    """

    probabilities: dict[str, float]
    log_likelihoods: dict[str, float]
    bits_per_character: dict[str, float]
    tokens: int
    characters: int


def attribute(
    run: TextRun, text: str, priors: Mapping[str, float] | None = None, *, temperature: float = 1.0
) -> Attribution:
    """Says how probable each of the run's named codes is for a text.

    A text longer than the window is read in pieces, each after the code, as in training; memory does not grow with it.

    Args:
      run: the model.
      text: any text, whole or not: its end is not predicted. It is normalised as the training data was.
      priors: relative weight of each code before the text is seen; a code left out weighs 1, None weighs all alike.
        `training_priors` gives those of the training data. They are the result for an empty text.
      temperature: divides the log-likelihoods. Tokens of one text are not independent evidence, so that long texts make
        a model too sure; a value above 1, fitted on held-out texts, calibrates it.

    Raises:
      UserError: the run has no named codes, a prior or the temperature is out of range, or the model is broken.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise UserError(f"temperature={temperature!r} must be above 0")
    names = run.codes.names
    if not names:
        raise UserError("this run has no named codes to choose from; prepare its data with code=NAME for each source")
    log_priors = _log_priors(run, priors or {})
    text = normalise(text, run.info.normalisation)
    ids = run.tokenizer.encode(text)
    likelihoods = _log_likelihoods(run, ids, [run.codes.slot(name) for name in names])
    if not np.isfinite(likelihoods).all():
        raise UserError("the model gives no finite likelihood; it is broken, choose another checkpoint")
    scores = likelihoods / temperature + log_priors
    weights = np.exp(scores - scores.max())
    bits = -likelihoods / math.log(2) / max(len(text), 1)
    return Attribution(
        probabilities=_by_name(names, weights / weights.sum()),
        log_likelihoods=_by_name(names, likelihoods),
        bits_per_character=_by_name(names, bits),
        tokens=len(ids),
        characters=len(text),
    )


def training_priors(run: TextRun) -> dict[str, float]:
    """Each named code's number of training tokens, for use as priors."""
    counts = run.info.counts["train"]
    return {name: float(counts[name].tokens) if name in counts else 0.0 for name in run.codes.names}


def _log_priors(run: TextRun, priors: Mapping[str, float]) -> Float[np.ndarray, " C"]:
    """Logarithms of the weights of all named codes, -inf where one is 0."""
    weights = dict.fromkeys(run.codes.names, 1.0)
    for given, weight in priors.items():
        name = run.codes.name(run.codes.slot(given, "priors"))
        if name not in weights:
            raise UserError("priors: the unconditional code has no prior; name one of " + ", ".join(weights))
        if not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"priors: {name}={weight!r} must be a finite number, 0 or more")
        weights[name] = weight
    if not any(weights.values()):
        raise UserError("priors: every code weighs 0, so that none could be the answer; raise one")
    with np.errstate(divide="ignore"):
        return np.log(np.array(list(weights.values()), np.float64))


def _log_likelihoods(run: TextRun, ids: Int[np.ndarray, " N"], slots: list[int]) -> Float[np.ndarray, " C"]:
    """Log p(ids | code) in nats for each code, a window at a time for all codes at once."""
    graph, parameters = nnx.split(run.model)
    room = run.model.config.length - 1
    codes = np.array([[run.tokenizer.code_id(slot)] for slot in slots], np.int32)
    total = np.zeros(len(slots))
    for start in range(0, len(ids), room):
        piece = ids[start : start + room]
        # Powers of two, so that texts of all lengths share a few compiled shapes.
        padding = min(1 << len(piece).bit_length(), room + 1) - 1 - len(piece)
        padded = np.pad(piece, (0, padding), constant_values=run.tokenizer.pad_id)
        windows = np.concatenate([codes, np.tile(padded, (len(slots), 1))], axis=1, dtype=np.int32)
        nats = _nats(graph, parameters, windows, np.int32(len(piece)))
        # Window after window in float64: a long text's sum has more digits than float32.
        total -= np.asarray(nats, np.float64)
    return total


@partial(jax.jit, static_argnames="graph")
def _nats(graph: Any, parameters: Any, windows: Int[Array, "C T"], count: Int[Array, ""]) -> Float[Array, " C"]:
    """-log p of the `count` tokens that follow the first of each window."""
    model = nnx.merge(graph, parameters)
    positions = jnp.broadcast_to(jnp.arange(windows.shape[1]), windows.shape)
    hidden = model.hidden(windows, jnp.ones_like(windows), positions)
    losses = model.token_losses(hidden, jnp.roll(windows, -1, axis=1))
    return jnp.sum(jnp.where(positions < count, losses, 0), axis=1)


def _by_name(names: list[str], values: Float[np.ndarray, " C"]) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))
