"""Training objectives (arXiv 2106.06103, sections 2.1 and 2.3; least-squares GAN: arXiv 1611.04076), in float32."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from hayakuchi.models.vits.discriminators import Judgement

MEL_WEIGHT = 45.0
FEATURE_WEIGHT = 2.0


def mel_loss(real: Float[Array, "B T M"], fake: Float[Array, "B T M"]) -> Float[Array, ""]:
    """Mean absolute difference of log-mel spectrograms, weighted."""
    return MEL_WEIGHT * jnp.mean(jnp.abs(real - fake))


def kl_loss(
    z: Float[Array, "B T C"],
    posterior_log_scale: Float[Array, "B T C"],
    mean: Float[Array, "B T C"],
    log_scale: Float[Array, "B T C"],
    mask: Bool[Array, "B T"],
) -> Float[Array, ""]:
    """One-sample estimate of KL(posterior || prior) in nats per frame.

    Args:
      z: the posterior's sample in the prior's space.
      posterior_log_scale: of the distribution the sample is from.
      mean: of the prior at each frame.
      log_scale: of the prior at each frame.
      mask: frames that count.

    The estimate may be negative, and is then right to be.
    """
    squares = jnp.square(z - mean) * jnp.exp(-2 * log_scale)
    terms = log_scale - posterior_log_scale - 0.5 + 0.5 * squares
    return jnp.sum(terms * mask[..., None]) / jnp.sum(mask)


def discriminator_loss(judgements: list[Judgement]) -> Float[Array, ""]:
    """Least squares of scores towards 1 for the first, real half of the batch and 0 for the second, generated half."""
    scores, weights = _scores(judgements)
    target = np.repeat([1.0, 0.0], len(scores) // 2)[:, None].astype(np.float32)
    return jnp.sum(weights * jnp.square(scores - target))


def adversarial_loss(judgements: list[Judgement]) -> Float[Array, ""]:
    """Least squares towards 1 of the scores of the second, generated half of the batch."""
    scores, weights = _scores(judgements)
    return jnp.sum(weights * jnp.square(scores[len(scores) // 2 :] - 1))


def _scores(judgements: list[Judgement]) -> tuple[Float[Array, "B N"], Float[np.ndarray, " N"]]:
    """All scores side by side, and weights that make a sum over half the batch the sum of each one's mean."""
    scores = [judgement.score for judgement in judgements]
    weights = np.concatenate([np.full(score.shape[1], 2 / score.size, np.float32) for score in scores])
    return lax.concatenate(scores, 1), weights


def feature_loss(judgements: list[Judgement]) -> Float[Array, ""]:
    """Mean absolute difference of every layer's output between the real and the generated half, weighted.

    The real half is a target and has no gradient.
    """
    features = [feature for judgement in judgements for feature in judgement.features]
    return FEATURE_WEIGHT * jnp.sum(jnp.stack([_mean_difference(feature) for feature in features]))


@jax.custom_vjp
def _mean_difference(x: Float[Array, "B ..."]) -> Float[Array, ""]:
    """Mean absolute difference of the two halves of a batch; the gradient is that of the second half."""
    return _mean_difference_forward(x)[0]


def _mean_difference_forward(x: Array) -> tuple[Array, Array]:
    half = x.shape[0] // 2
    real, fake = lax.split(x, (half, half))
    difference = fake - real
    return jnp.sum(jnp.abs(difference), dtype=jnp.float32) * (1 / difference.size), difference


def _mean_difference_backward(difference: Array, grad: Array) -> tuple[Array]:
    scale = (grad * (1 / difference.size)).astype(difference.dtype)
    sides = lax.sign(difference) * scale
    edges = [(difference.shape[0], 0, 0), *((0, 0, 0) for _ in difference.shape[1:])]
    return (lax.pad(sides, jnp.zeros((), sides.dtype), edges),)


_mean_difference.defvjp(_mean_difference_forward, _mean_difference_backward)
