"""Normalising flow of the prior: mean-only affine couplings (arXiv 2106.06103, sections 2.2.1 and 2.5.1).

Every coupling keeps volume, so the flow has no log-determinant.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from hayakuchi.config import Remat
from hayakuchi.config.vits import VitsConfig
from hayakuchi.models import ops
from hayakuchi.models.module import Module
from hayakuchi.models.vits.layers import Pointwise, masked, scan_stack
from hayakuchi.models.vits.starts import Source, stacked
from hayakuchi.models.vits.wavenet import WaveNet


class _Coupling(Module):
    """Shifts the second half of the channels by a function of the first."""

    def __init__(self, config: VitsConfig, source: Source, remat: Remat) -> None:
        half, channels = config.latent_channels // 2, config.hidden_channels
        self.enter = Pointwise(half, channels, source)
        self.wavenet = WaveNet(
            channels, config.wavenet_kernel, config.flow_layers, config.condition_channels, source, remat
        )
        self.leave = Pointwise(channels, half, source, zero=True, precision=ops.HIGHEST)

    def shift(
        self, first: Float[Array, "B T D"], mask: Bool[Array, "B T"], speaker: Float[Array, "B G"] | None, dtype: Any
    ) -> Float[Array, "B T D"]:
        x = self.wavenet(masked(self.enter(first.astype(dtype)), mask), mask, speaker)
        return masked(self.leave(x), mask)


class Flow(Module):
    """Couplings, the channels reversed after each; one scan over the stacked couplings."""

    def __init__(self, config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> None:
        self.couplings = stacked(lambda: _Coupling(config, source, remat), config.flow_couplings)
        self.dtype = dtype

    def forward(
        self, z: Float[Array, "B T C"], mask: Bool[Array, "B T"], speaker: Float[Array, "B G"] | None
    ) -> Float[Array, "B T C"]:
        """From the posterior's space to the prior's, in float32."""

        def body(coupling: _Coupling, z: Array, _: None) -> tuple[Array, None]:
            first, second = jnp.split(z, 2, axis=-1)
            second = masked(second, mask) + coupling.shift(first, mask, speaker, self.dtype)
            return lax.rev(lax.concatenate([first, second], 2), (2,)), None

        return jnp.asarray(scan_stack(self.couplings, body, z))

    def inverse(
        self, z: Float[Array, "B T C"], mask: Bool[Array, "B T"], speaker: Float[Array, "B G"] | None
    ) -> Float[Array, "B T C"]:
        """From the prior's space to the posterior's, in float32."""

        def body(coupling: _Coupling, z: Array, _: None) -> tuple[Array, None]:
            first, second = jnp.split(lax.rev(z, (2,)), 2, axis=-1)
            second = masked(second - coupling.shift(first, mask, speaker, self.dtype), mask)
            return lax.concatenate([first, second], 2), None

        return jnp.asarray(scan_stack(self.couplings, body, z, reverse=True))
