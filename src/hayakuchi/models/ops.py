"""The few operations whose gradients are written by hand, and every choice that depends on the platform.

XLA:CPU turns some of autodiff's own rules into code several times slower than the arithmetic needs (column sums for
bias gradients, bf16 products of a transposed operand, float32 logits kept for the backward pass). The forms below
are exact and suit GPU and TPU too. `tests/unit/test_ops.py` holds each to plain autodiff.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

HIGHEST = lax.Precision.HIGHEST
"""For what is promised in float32: a GPU would else multiply float32 arrays in TF32, a TPU in one pass of bfloat16."""

_BLOCK = 32
_PLATFORM: ContextVar[str] = ContextVar("platform", default="")


def on_cpu() -> bool:
    """Whether the default device is a CPU: the one question platform choices are made by."""
    return (_PLATFORM.get() or jax.default_backend()) == "cpu"


@contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """In its body functions are traced as for that platform ("cpu", "gpu", "tpu"), which this machine may lack."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def matmul(
    a: Float[Array, "N I"], b: Float[Array, "I O"], precision: lax.Precision | None = None
) -> Float[Array, "N O"]:
    """a @ b, accumulated and returned in float32 whatever the operands' dtype."""
    return _product(a, b, ((1,), (0,)), precision)


def _matmul_transposed(
    a: Float[Array, "N O"], b: Float[Array, "I O"], precision: lax.Precision | None = None
) -> Float[Array, "N I"]:
    """a @ b.T, accumulated and returned in float32."""
    return _product(a, b, ((1,), (1,)), precision)


def _outer(
    a: Float[Array, "N I"], b: Float[Array, "N O"], precision: lax.Precision | None = None
) -> Float[Array, "I O"]:
    """a.T @ b, accumulated and returned in float32: the weight gradient."""
    rows, columns = a.shape
    if a.dtype == jnp.bfloat16 and on_cpu() and rows % _BLOCK == 0 and columns % _BLOCK == 0:
        # XLA:CPU runs a bf16 product that contracts over the leading axis of both operands as if in float32. A
        # transpose by blocks, which XLA does not fold back into the product, reaches the fast kernel.
        blocks = a.reshape(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
        return matmul(blocks.transpose(2, 3, 0, 1).reshape(columns, rows), b)
    return _product(a, b, ((0,), (0,)), precision)


def _product(
    a: Array, b: Array, contracted: tuple[tuple[int, ...], tuple[int, ...]], precision: lax.Precision | None
) -> Array:
    return lax.dot_general(a, b, (contracted, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def column_sums(x: Float[Array, "N O"]) -> Float[Array, " O"]:
    """x.sum(0) in float32, as a product with ones: XLA:CPU's own column reduction is several times slower."""
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return matmul(ones, x, HIGHEST)[0]


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense(
    x: Float[Array, "N I"],
    kernel: Float[Array, "I O"],
    bias: Float[Array, " O"],
    precision: lax.Precision | None = None,
) -> Float[Array, "N O"]:
    """x @ kernel + bias, computed in `x.dtype` with float32 sums, returned in `x.dtype`.

    Kernel and bias are float32 parameters; their gradients are float32. `precision` is that of the product and of its
    gradients where x is float32.
    """
    return (matmul(x, kernel.astype(x.dtype), precision) + bias).astype(x.dtype)


def _dense_forward(
    x: Float[Array, "N I"], kernel: Float[Array, "I O"], bias: Float[Array, " O"], precision: lax.Precision | None
) -> tuple[Float[Array, "N O"], tuple[Array, Array]]:
    return dense(x, kernel, bias, precision), (x, kernel)


def _dense_backward(
    precision: lax.Precision | None, residuals: tuple[Array, Array], grad: Float[Array, "N O"]
) -> tuple[Array, Array, Array]:
    x, kernel = residuals
    grad_x = _matmul_transposed(grad, kernel.astype(grad.dtype), precision).astype(x.dtype)
    return grad_x, _outer(x, grad, precision), column_sums(grad)


dense.defvjp(_dense_forward, _dense_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: Float[Array, "N D"], scale: Float[Array, " D"], bias: Float[Array, " D"], epsilon: float
) -> Float[Array, "N D"]:
    """Layer normalisation (arXiv 1607.06450) over the last axis, computed and returned in float32."""
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x: Array, scale: Array, bias: Array, epsilon: float) -> tuple[Array, tuple[Array, ...]]:
    centred = x.astype(jnp.float32)
    centred = centred - _row_means(centred)
    inverse = lax.rsqrt(_row_means(jnp.square(centred)) + epsilon)
    normal = centred * inverse
    # An empty array is the least that carries the dtype of x to the backward pass.
    return normal * scale + bias, (normal, inverse, scale, lax.empty((0,), x.dtype))


def _layer_norm_backward(_: float, residuals: tuple[Array, ...], grad: Array) -> tuple[Array, Array, Array]:
    normal, inverse, scale, like = residuals
    scaled = grad * scale
    grad_x = inverse * (scaled - _row_means(scaled) - normal * _row_means(scaled * normal))
    return grad_x.astype(like.dtype), column_sums(grad * normal), column_sums(grad)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def _row_means(x: Float[Array, "N D"]) -> Float[Array, "N 1"]:
    return jnp.sum(x, axis=1, keepdims=True) * (1 / x.shape[1])


def dropout(x: Float[Array, "..."], rate: float, key: Array | None) -> Float[Array, "..."]:
    """Zeroes a share `rate` of the elements and scales the rest; the identity without a key."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bits(key, x.shape, jnp.uint32) >= np.uint32(rate * 2**32)
    return lax.select(keep, x * (1 / (1 - rate)), lax.full_like(x, 0))


def head_chunks(batch: int, length: int, vocabulary_size: int, limit_bytes: int = 64 << 20) -> int:
    """Number of pieces, a divisor of `length`, that keeps one piece's float32 logits under `limit_bytes`."""
    divisors = [pieces for pieces in range(1, length + 1) if length % pieces == 0]
    fitting = (pieces for pieces in divisors if 4 * batch * (length // pieces) * vocabulary_size <= limit_bytes)
    return next(fitting, length)


def _split_positions(x: Array, chunks: int) -> Array:
    """[B, L, ...] -> [chunks, B * L / chunks, ...]: pieces along positions, so that a sharded batch stays sharded."""
    batch, length, *rest = x.shape
    pieces = x.reshape(batch, chunks, length // chunks, *rest)
    return jnp.moveaxis(pieces, 1, 0).reshape(chunks, batch * length // chunks, *rest)


def _join_positions(x: Array, batch: int) -> Array:
    """Inverse of `_split_positions`."""
    chunks, rows, *rest = x.shape
    pieces = x.reshape(chunks, batch, rows // batch, *rest)
    return jnp.moveaxis(pieces, 0, 1).reshape(batch, chunks * rows // batch, *rest)


def logits(x: Float[Array, "N D"], embedding: Float[Array, "V D"], bias: Float[Array, " V"]) -> Float[Array, "N V"]:
    """Tied softmax logits in float32: x @ embedding.T + bias."""
    return _matmul_transposed(x, embedding.astype(x.dtype)) + bias


def token_losses(
    x: Float[Array, "B L D"],
    embedding: Float[Array, "V D"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B L"],
    chunks: int = 1,
) -> Float[Array, "B L"]:
    """-log p(label) of every position in nats, holding one chunk's logits at a time."""

    def piece(_: None, inputs: tuple[Array, Array]) -> tuple[None, Array]:
        x_nd, labels_n = inputs
        scores = logits(x_nd, embedding, bias)
        return None, jax.nn.logsumexp(scores, axis=-1) - jnp.take_along_axis(scores, labels_n[:, None], axis=-1)[:, 0]

    _, losses = lax.scan(piece, None, (_split_positions(x, chunks), _split_positions(labels, chunks)))
    return _join_positions(losses, x.shape[0])


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def weighted_loss(
    x: Float[Array, "B L D"],
    embedding: Float[Array, "V D"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B L"],
    weights: Float[Array, "B L"],
    chunks: int,
) -> Float[Array, ""]:
    """Sum over positions of weight * -log p(label), in nats.

    Under differentiation the gradients are computed in the forward pass, chunk by chunk, so that no more than one
    chunk of [tokens, V] logits ever exists. Labels and weights have no gradient.
    """
    return jnp.sum(token_losses(x, embedding, bias, labels, chunks) * weights)


def _weighted_loss_forward(
    x: Array, embedding: Array, bias: Array, labels: Array, weights: Array, chunks: int
) -> tuple[Array, tuple[Array, Array, Array]]:
    return _loss_with_gradients(x, embedding, bias, (labels, weights), _label_loss, chunks)


def _label_loss(scores: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted -log p(label) of one chunk, summed, and its gradient by the scores."""
    peak = jnp.max(scores, axis=-1, keepdims=True)
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    label_scores = jnp.take_along_axis(scores, labels[:, None], axis=-1)
    losses = jnp.log(total) + peak - label_scores
    is_label = labels[:, None] == jnp.arange(scores.shape[1])[None]
    return jnp.sum(losses[:, 0] * weights), (exponentials / total - is_label) * weights[:, None]


def _loss_with_gradients(
    x: Array, embedding: Array, bias: Array, others: Any, chunk_loss: Callable[..., tuple[Array, Array]], chunks: int
) -> tuple[Array, tuple[Array, Array, Array]]:
    """A loss of the tied logits and its gradients by x, embedding and bias, one chunk's logits at a time.

    Args:
      x: hidden states, [B, L, D].
      embedding: [V, D].
      bias: [V].
      others: arrays [B, L, ...] that `chunk_loss` takes beside the scores.
      chunk_loss: (scores [N, V], *others [N, ...]) -> the loss, summed over N, and its gradient by the scores. Instead
        of one number it may be an array, of which the gradient is that of the first.
      chunks: see `head_chunks`.
    """
    table = embedding.astype(x.dtype)

    def piece(x_nd: Array, others_n: Any) -> tuple[Array, Array, Array]:
        loss, grad_scores = chunk_loss(logits(x_nd, table, bias), *others_n)
        grad_scores = grad_scores.astype(x.dtype)
        return loss, grad_scores, matmul(grad_scores, table).astype(x.dtype)

    def add(sums: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        grad_transposed, grad_bias = sums
        x_nd, *others_n = inputs
        loss, grad_scores, grad_x = piece(x_nd, others_n)
        sums = (grad_transposed + _outer(x_nd, grad_scores), grad_bias + column_sums(grad_scores))
        return sums, (loss, grad_x)

    if chunks == 1:
        # Without a sum over chunks XLA:CPU would fold the transposition below into the product, and a bf16 product of
        # that form compiles there and then cannot run.
        x_nd, *others_n = (part.reshape(-1, *part.shape[2:]) for part in (x, *others))
        loss, grad_scores, grad_x = piece(x_nd, others_n)
        return loss, (grad_x.reshape(x.shape), _outer(grad_scores, x_nd), column_sums(grad_scores))
    # The table's gradient is summed as [D, V]: [N, D].T @ [N, V] turns the small operand round, not the large one.
    transposed = jnp.zeros(embedding.shape[::-1], jnp.float32)
    zeros = (transposed, jnp.zeros(bias.shape, jnp.float32))
    inputs = tuple(_split_positions(part, chunks) for part in (x, *others))
    (transposed, grad_bias), (losses, grad_x) = lax.scan(add, zeros, inputs)
    return jnp.sum(losses, axis=0), (_join_positions(grad_x, x.shape[0]), transposed.T, grad_bias)


def _weighted_loss_backward(
    _chunks: int, gradients: tuple[Array, Array, Array], scale: Float[Array, ""]
) -> tuple[Array | None, ...]:
    grad_x, grad_table, grad_bias = gradients
    return (grad_x * scale).astype(grad_x.dtype), grad_table * scale, grad_bias * scale, None, None


weighted_loss.defvjp(_weighted_loss_forward, _weighted_loss_backward)


class Teacher(NamedTuple):
    """What a teacher says of a batch: its logits are those of `hidden`, never held as a whole.

    Attributes:
      hidden: [B, L, E].
      embedding: [V, E].
      bias: [V].
    """

    hidden: Array
    embedding: Array
    bias: Array


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def distilled_loss(
    x: Float[Array, "B L D"],
    embedding: Float[Array, "V D"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B L"],
    weights: Float[Array, "B L"],
    teacher: Teacher,
    soft_weight: float,
    temperature: float,
    chunks: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum over positions of weight * ((1 - a) * -log p(label) + a * T**2 * KL(q_T || p_T)), in nats.

    Beside it, that of weight * -log p(label), which is to be looked at and has no gradient.

    p is the student's distribution, q the teacher's, p_T and q_T those of the logits divided by T (arXiv 1503.02531,
    section 2; a is `soft_weight`). Like `weighted_loss` it holds one chunk of logits at a time, of both models.
    """
    return _distilled_loss_forward(x, embedding, bias, labels, weights, teacher, soft_weight, temperature, chunks)[0]


def _distilled_loss_forward(
    x: Array,
    embedding: Array,
    bias: Array,
    labels: Array,
    weights: Array,
    teacher: Teacher,
    soft_weight: float,
    temperature: float,
    chunks: int,
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    table = teacher.embedding.astype(teacher.hidden.dtype)

    def chunk_loss(scores: Array, labels: Array, weights: Array, hidden: Array) -> tuple[Array, Array]:
        hard, grad_hard = _label_loss(scores, labels, weights)
        log_p = jax.nn.log_softmax(scores / temperature)
        log_q = jax.nn.log_softmax(logits(hidden, table, teacher.bias) / temperature)
        q = jnp.exp(log_q)
        divergence = jnp.sum(q * (log_q - log_p), axis=-1)
        soft = temperature**2 * jnp.sum(weights * divergence)
        grad_soft = temperature * weights[:, None] * (jnp.exp(log_p) - q)
        losses = jnp.stack([(1 - soft_weight) * hard + soft_weight * soft, hard])
        return losses, (1 - soft_weight) * grad_hard + soft_weight * grad_soft

    losses, gradients = _loss_with_gradients(x, embedding, bias, (labels, weights, teacher.hidden), chunk_loss, chunks)
    return (losses[0], losses[1]), gradients


def _distilled_loss_backward(
    _soft_weight: float,
    _temperature: float,
    chunks: int,
    gradients: tuple[Array, Array, Array],
    scales: tuple[Array, Array],
) -> tuple[Any, ...]:
    return *_weighted_loss_backward(chunks, gradients, scales[0]), None


distilled_loss.defvjp(_distilled_loss_forward, _distilled_loss_backward)
