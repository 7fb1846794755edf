"""One-dimensional convolutions of channels-last arrays, in forms that are fast on every platform.

XLA:CPU is quick at ordinary convolutions and their gradients, but the weight gradient of a transposed or of a grouped
convolution takes it 10 to 50 times longer than the arithmetic needs. Both are rewritten here, exactly.
`tests/unit/test_convolutions.py` holds each to `lax.conv_general_dilated`, gradients included.

Alphabet: B batch, T positions, U positions of the result, W kernel width, I input and O output channels, G groups.
Kernels are cast to the dtype of `x`; results have that dtype.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from hayakuchi.models import ops


def convolution(
    x: Float[Array, "B T C"],
    kernel: Float[Array, "W I O"],
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: int | None = None,
    groups: int = 1,
    precision: lax.Precision | None = None,
) -> Float[Array, "B U O"]:
    """Plain convolution, I = C / groups.

    `padding` zeros stand on both sides, by default those that keep the length at stride 1.
    """
    reach = dilation * (kernel.shape[0] - 1)
    if padding is None:
        padding = reach // 2
    if x.shape[1] <= reach:
        # XLA:CPU leaves its fast path where the kernel is longer than the input, but for what is padded beforehand.
        x, padding = pad_time(x, padding, padding), 0
    return lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride,),
        [(padding, padding)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
        precision=precision,
    )


def pad_time(x: Float[Array, "B T C"], left: int, right: int) -> Float[Array, "B U C"]:
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (left, right, 0), (0, 0, 0)])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolution_in_scan(
    x: Float[Array, "B T I"], kernel: Float[Array, "W I O"], precision: lax.Precision | None = None
) -> Float[Array, "B T O"]:
    """`convolution` of stride 1 and an odd width, for the body of a loop.

    XLA:CPU brings the gradients that autodiff makes into the order of axes it is fast at only outside loops; inside a
    `lax.scan` they are 50 to 500 times slower. Here they are written in that order.
    """
    return convolution(x, kernel, precision=precision)


def _in_scan_forward(x: Array, kernel: Array, precision: lax.Precision | None) -> tuple[Array, tuple[Array, Array]]:
    return convolution(x, kernel, precision=precision), (x, kernel)


def _in_scan_backward(
    precision: lax.Precision | None, residuals: tuple[Array, Array], grad: Array
) -> tuple[Array, Array]:
    x, kernel = residuals
    grad_x = convolution(grad, lax.rev(kernel, (0,)).swapaxes(1, 2), precision=precision)
    # For each input channel, its correlation with the gradient: batch and channels change places.
    padding = kernel.shape[0] // 2
    grad_kernel = convolution(x.transpose(2, 1, 0), grad.swapaxes(0, 1), padding=padding, precision=precision)
    return grad_x, grad_kernel.swapaxes(0, 1).astype(kernel.dtype)


convolution_in_scan.defvjp(_in_scan_forward, _in_scan_backward)


def transposed_convolution(
    x: Float[Array, "B T I"], kernel: Float[Array, "W O I"], stride: int, padding: int
) -> Float[Array, "B U O"]:
    """Transposed convolution, U = (T - 1) * stride + W - 2 * padding, in its polyphase form.

    Output n of the uncropped result is the sum over d of x[n // stride - d] * kernel[d * stride + n % stride]: an
    ordinary convolution of W / stride taps gives all `stride` phases of one input position at once.
    """
    width, outputs, inputs = kernel.shape
    batch, length, _ = x.shape
    taps = -(-width // stride)
    kernel = lax.pad(kernel, jnp.zeros((), kernel.dtype), [(0, taps * stride - width, 0), (0, 0, 0), (0, 0, 0)])
    phases = lax.rev(kernel.reshape(taps, stride, outputs, inputs), (0,))
    phases = phases.transpose(0, 3, 1, 2).reshape(taps, inputs, stride * outputs)
    # Padded here, not by the convolution: where the result is longer than the input, XLA:CPU would leave its fast path
    # for the weight gradient.
    y = convolution(pad_time(x, taps - 1, taps - 1), phases, padding=0)
    y = y.reshape(batch, (length + taps - 1) * stride, outputs)
    return lax.slice_in_dim(y, padding, (length - 1) * stride + width - padding, axis=1)


def grouped_convolution(
    x: Float[Array, "B T C"], kernel: Float[Array, "W I O"], groups: int, stride: int, padding: int
) -> Float[Array, "B U O"]:
    """Convolution in which output channels o of group o // (O / G) see the I = C / G input channels of that group."""
    if not ops.on_cpu():
        return convolution(x, kernel, stride=stride, padding=padding, groups=groups)
    width, inputs, outputs = kernel.shape
    batch, length, _ = x.shape
    count = (length + 2 * padding - width) // stride + 1
    # With a width of whole strides the windows are ready for the product as they are; the added taps are zeros.
    full = -(-width // stride) * stride
    kernel = kernel.astype(x.dtype)
    kernel = lax.pad(kernel, jnp.zeros((), x.dtype), [(0, full - width, 0), (0, 0, 0), (0, 0, 0)])
    kernel_gio = kernel.reshape(full * inputs, groups, outputs // groups).swapaxes(0, 1)
    x_gbti = x.reshape(batch, length, groups, inputs).transpose(2, 0, 1, 3).reshape(groups * batch, length, inputs)
    right = (count - 1) * stride + full - length - padding
    patches = windows(pad_time(x_gbti, padding, right), full, stride)
    y_gbo = jnp.matmul(patches.reshape(groups, batch * count, full * inputs), kernel_gio)
    return y_gbo.reshape(groups, batch, count, outputs // groups).transpose(1, 2, 0, 3).reshape(batch, count, outputs)


def windows(x: Float[Array, "B T *C"], width: int, stride: int) -> Float[Array, "B U {width} *C"]:
    """Overlapping pieces: result[:, u, w] = x[:, u * stride + w], U = (T - width) // stride + 1.

    Built by shape changes alone, so that the gradient is a sum and no scatter.
    """
    batch, length, *rest = x.shape
    count = (length - width) // stride + 1
    strides = -(-width // stride)
    blocks = count - 1 + strides
    zero = jnp.zeros((), x.dtype)
    whole = [(0, 0, 0)] * len(rest)
    x = lax.pad(x, zero, [(0, 0, 0), (0, blocks * stride - length, 0), *whole]).reshape(batch, blocks, stride, *rest)
    # Copy number i of the blocks starts i blocks late: read in rows one block longer than they are, copies shift by
    # one from row to row.
    axes = (0, *range(2, x.ndim + 1))
    copies = lax.broadcast_in_dim(x, (batch, strides, *x.shape[1:]), axes).reshape(batch, -1, stride, *rest)
    copies = lax.pad(copies, zero, [(0, 0, 0), (0, strides, 0), (0, 0, 0), *whole])
    shifted = lax.slice_in_dim(copies.reshape(batch, strides, blocks + 1, stride, *rest), 0, count, axis=2)
    joined = shifted.swapaxes(1, 2).reshape(batch, count, strides * stride, *rest)
    return lax.slice_in_dim(joined, 0, width, axis=2)


def reflect_pad(x: Float[Array, "B T"], left: int, right: int) -> Float[Array, "B U"]:
    """Continues a signal by its mirror image, the end samples not repeated; both pads are shorter than T."""
    length = x.shape[1]
    if max(left, right) >= length:
        raise ValueError(f"cannot reflect {max(left, right)} samples of a signal of {length}")
    before = lax.rev(lax.slice_in_dim(x, 1, 1 + left, axis=1), (1,))
    after = lax.rev(lax.slice_in_dim(x, length - 1 - right, length - 1, axis=1), (1,))
    return lax.concatenate([before, x, after], 1)


@jax.custom_vjp
def add_bias(x: Float[Array, "B T O"], bias: Float[Array, " O"]) -> Float[Array, "B T O"]:
    """x + bias; the bias gradient is a product with ones (see `ops.column_sums`)."""
    return _add_bias_forward(x, bias)[0]


def _add_bias_forward(x: Array, bias: Array) -> tuple[Array, None]:
    return lax.add(x, lax.broadcast_in_dim(bias.astype(x.dtype), x.shape, (2,))), None


def _add_bias_backward(_: None, grad: Float[Array, "B T O"]) -> tuple[Array, Array]:
    ones = lax.full(grad.shape[:2], 1, grad.dtype)
    axes = (((0, 1), (0, 1)), ((), ()))
    return grad, lax.dot_general(ones, grad, axes, precision=ops.HIGHEST, preferred_element_type=jnp.float32)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def leaky_relu(x: Float[Array, "..."], slope: float) -> Float[Array, "..."]:
    """max(x, slope * x). Its gradient needs the result alone, which the next layer keeps anyway."""
    return _leaky_relu_forward(x, slope)[0]


def _leaky_relu_forward(x: Array, slope: float) -> tuple[Array, Array]:
    y = lax.max(x, x * slope)
    return y, y


def _leaky_relu_backward(slope: float, y: Array, grad: Array) -> tuple[Array]:
    return (lax.select(y > 0, grad, grad * slope),)


leaky_relu.defvjp(_leaky_relu_forward, _leaky_relu_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def weight_norm(direction: Float[Array, "*N O"], gain: Float[Array, "..."], stack: int) -> Float[Array, "*N O"]:
    """gain * direction / ||direction||, the norm taken for each output channel (arXiv 1602.07868).

    The first `stack` axes number layers that are normalised each for itself; `gain` has these and the last axis.
    """
    return _weight_norm_forward(direction, gain, stack)[0]


def _weight_norm_forward(direction: Array, gain: Array, stack: int) -> tuple[Array, tuple[Array, ...]]:
    norm = jnp.sqrt(_channel_sums(direction * direction, stack))
    scale = gain / norm
    return direction * _spread(scale, direction, stack), (direction, norm, scale)


def _weight_norm_backward(stack: int, residuals: tuple[Array, ...], grad: Array) -> tuple[Array, Array]:
    direction, norm, scale = residuals
    grad_gain = _channel_sums(grad * direction, stack) / norm
    along = direction * _spread(grad_gain / norm, direction, stack)
    return _spread(scale, direction, stack) * (grad - along), grad_gain


weight_norm.defvjp(_weight_norm_forward, _weight_norm_backward)


def _channel_sums(x: Float[Array, "..."], stack: int) -> Float[Array, "..."]:
    """Sums over all axes but the first `stack` and the last.

    On a CPU as a product with ones, which is faster there.
    """
    axes = tuple(range(stack, x.ndim - 1))
    if not ops.on_cpu():
        return jnp.sum(x, axis=axes)
    layers = tuple(range(stack))
    dimensions = ((axes, axes), (layers, layers))
    return lax.dot_general(lax.full(x.shape[:-1], 1, x.dtype), x, dimensions, precision=ops.HIGHEST)


def _spread(x: Float[Array, "..."], like: Float[Array, "..."], stack: int) -> Float[Array, "..."]:
    """Inverse of the axes of `_channel_sums`: repeats x over the axes it lacks."""
    return lax.broadcast_in_dim(x, like.shape, (*range(stack), like.ndim - 1))
