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
    features = tuple(feature for judgement in judgements for feature in judgement.features)
    return FEATURE_WEIGHT * _mean_differences(features)


@jax.custom_vjp
def _mean_differences(features: tuple[Float[Array, "..."], ...]) -> Float[Array, ""]:
    """Sum over arrays of the mean absolute difference of the two halves of their batch.

    The gradient is that of the second half.
    """
    return _mean_differences_forward(features)[0]


def _mean_differences_forward(features: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
    halves = [lax.split(feature, (len(feature) // 2,) * 2) for feature in features]
    differences = tuple(fake - real for real, fake in halves)
    sums = jnp.stack([jnp.sum(jnp.abs(difference), dtype=jnp.float32) for difference in differences])
    return jnp.sum(sums * _shares(differences)), differences


def _mean_differences_backward(differences: tuple[Array, ...], grad: Array) -> tuple[tuple[Array, ...]]:
    scales = (grad * _shares(differences)).astype(differences[0].dtype)
    zero = jnp.zeros((), scales.dtype)
    sides = []
    for difference, scale in zip(differences, jnp.unstack(scales), strict=True):
        edges = [(difference.shape[0], 0, 0), *((0, 0, 0) for _ in difference.shape[1:])]
        sides.append(lax.pad(lax.sign(difference) * scale, zero, edges))
    return (tuple(sides),)


_mean_differences.defvjp(_mean_differences_forward, _mean_differences_backward)


def _shares(differences: tuple[Array, ...]) -> Float[np.ndarray, " N"]:
    return np.array([1 / difference.size for difference in differences], np.float32)
