"""Settings of a VITS run, as plain values."""

import math
from dataclasses import dataclass, field
from typing import Literal

from hayakuchi.config import SpeechDataConfig, TrainConfig
from hayakuchi.errors import require

# Samples of each resolution of the subband loss (models/vits/subband_loss.py).
SUBBAND_WINDOWS = (150, 300, 60)


@dataclass(frozen=True)
class AudioConfig:
    """How audio becomes spectrograms (arXiv 2106.06103, section 3.3).

    Attributes:
      sample_rate_hz: of all audio, in and out.
      fft_samples: length of the Fourier transform; the linear spectrogram has fft_samples // 2 + 1 bins.
      window_samples: length of the Hann window, at most `fft_samples`.
      hop_samples: samples per frame.
      mel_bins: M, bands of the log-mel spectrogram of the reconstruction loss.
      mel_low_hz: lower edge of the lowest band.
      mel_high_hz: upper edge of the highest band; None is half the sample rate.
    """

    sample_rate_hz: int = 22_050
    fft_samples: int = 1_024
    window_samples: int = 1_024
    hop_samples: int = 256
    mel_bins: int = 80
    mel_low_hz: float = 0.0
    mel_high_hz: float | None = None

    def __post_init__(self) -> None:
        for name in ("sample_rate_hz", "fft_samples", "window_samples", "hop_samples", "mel_bins"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be 1 or more")
        require(
            self.window_samples <= self.fft_samples,
            "window_samples",
            self.window_samples,
            f"must be at most fft_samples ({self.fft_samples})",
        )
        require(
            self.fft_samples >= self.hop_samples and (self.fft_samples - self.hop_samples) % 2 == 0,
            "hop_samples",
            self.hop_samples,
            f"must be at most fft_samples ({self.fft_samples}) and differ from it by an even number",
        )
        half = self.sample_rate_hz / 2
        high = half if self.mel_high_hz is None else self.mel_high_hz
        require(0 <= self.mel_low_hz < high, "mel_low_hz", self.mel_low_hz, f"must be in [0, {high:g})")
        require(high <= half, "mel_high_hz", self.mel_high_hz, f"must be at most half the sample rate ({half:g})")

    @property
    def bins(self) -> int:
        """F, bins of the linear spectrogram."""
        return self.fft_samples // 2 + 1


@dataclass(frozen=True)
class VitsConfig:
    """Sizes of VITS; the defaults are the published ones for one speaker (LJ Speech).

    Attributes:
      audio: spectrogram settings.
      vocabulary_size: number of symbol ids.
      speakers: number of speakers; 0 leaves out all conditioning.
      speaker_channels: G, width of a speaker's embedding.
      latent_channels: C of z; even.
      hidden_channels: width of both encoders, the flow and the stochastic duration predictor.
      filter_channels: inner width of the text encoder's feed-forward layers.
      heads: attention heads; divides `hidden_channels`.
      text_layers: layers of the text encoder.
      text_kernel: kernel width of its feed-forward layers and of the duration predictors.
      text_dropout: dropout of the text encoder.
      attention_window: offsets up to this have embeddings of their own in the attention.
      posterior_layers: WaveNet layers of the posterior encoder.
      flow_couplings: coupling layers of the flow.
      flow_layers: WaveNet layers in each.
      wavenet_kernel: kernel width of all WaveNets.
      stochastic_durations: the flow-based duration predictor, or else the deterministic one.
      duration_channels: width of the deterministic one.
      duration_dropout: dropout of either.
      resblock: kind of the decoder's residual blocks (arXiv 2010.05646).
      resblock_kernels: kernel widths of the parallel residual blocks.
      resblock_dilations: dilations of each.
      decoder: "hifigan" (arXiv 2010.05646) makes samples itself; "istft" (arXiv 2203.02395) short-time spectra;
        "mb_istft" spectra of subbands, "ms_istft" of streams joined by learnt filters (both arXiv 2210.15975).
      istft_samples: length of those spectra's transform; the iSTFT decoders only, as all of istft_hop.
      istft_hop: samples between them.
      subbands: number of subbands or streams: 1, or 4 as published (8 or 16) with "mb_istft" and "ms_istft".
      upsample_rates: factors from frames to samples, or to spectra; with "hifigan" their product is the hop, else
        their product times istft_hop times subbands.
      upsample_kernels: kernel width at each factor.
      upsample_channels: channels before the first; halved at each.
      segment_samples: length of the random piece that is decoded in training.
      discriminator_division: the discriminators have the published channels divided by this, a power of 2.
    """

    audio: AudioConfig = field(default_factory=AudioConfig)
    vocabulary_size: int = 178
    speakers: int = 0
    speaker_channels: int = 256
    latent_channels: int = 192
    hidden_channels: int = 192
    filter_channels: int = 768
    heads: int = 2
    text_layers: int = 6
    text_kernel: int = 3
    text_dropout: float = 0.1
    attention_window: int = 4
    posterior_layers: int = 16
    flow_couplings: int = 4
    flow_layers: int = 4
    wavenet_kernel: int = 5
    stochastic_durations: bool = True
    duration_channels: int = 256
    duration_dropout: float = 0.5
    decoder: Literal["hifigan", "istft", "mb_istft", "ms_istft"] = "hifigan"
    istft_samples: int = 16
    istft_hop: int = 4
    subbands: int = 1
    resblock: Literal["1", "2"] = "1"
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    upsample_rates: tuple[int, ...] = (8, 8, 2, 2)
    upsample_kernels: tuple[int, ...] = (16, 16, 4, 4)
    upsample_channels: int = 512
    segment_samples: int = 8_192
    discriminator_division: int = 1

    def __post_init__(self) -> None:
        for name in (
            "vocabulary_size", "latent_channels", "hidden_channels", "filter_channels", "heads", "text_layers",
            "attention_window", "posterior_layers", "flow_couplings", "flow_layers", "duration_channels",
            "upsample_channels",
        ):  # fmt: skip
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be 1 or more")
        for name in ("posterior_layers", "flow_layers"):
            require(getattr(self, name) >= 2, name, getattr(self, name), "must be 2 or more")
        require(self.speakers >= 0, "speakers", self.speakers, "must be 0 or more")
        require(not self.speakers or self.speaker_channels >= 1, "speaker_channels", self.speaker_channels, "is 0")
        require(self.latent_channels % 2 == 0, "latent_channels", self.latent_channels, "must be even")
        require(
            self.hidden_channels % self.heads == 0,
            "hidden_channels",
            self.hidden_channels,
            f"must be a multiple of heads ({self.heads})",
        )
        for name in ("text_dropout", "duration_dropout"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must be in [0, 1)")
        for name in ("text_kernel", "wavenet_kernel"):
            kernel = getattr(self, name)
            require(kernel >= 1 and kernel % 2 == 1, name, kernel, "must be odd")
        division = self.discriminator_division
        require(division in (1, 2, 4, 8, 16), "discriminator_division", division, "must be 1, 2, 4, 8 or 16")
        self._check_decoder()

    def _check_decoder(self) -> None:
        hop = self.audio.hop_samples
        require(self.resblock in ("1", "2"), "resblock", self.resblock, 'must be "1" or "2"')
        require(
            bool(self.resblock_kernels) and all(kernel % 2 == 1 for kernel in self.resblock_kernels),
            "resblock_kernels",
            self.resblock_kernels,
            "must be odd numbers",
        )
        require(
            len(self.resblock_dilations) == len(self.resblock_kernels) and all(self.resblock_dilations),
            "resblock_dilations",
            self.resblock_dilations,
            f"must have one list for each of resblock_kernels {self.resblock_kernels}",
        )
        self._check_istft()
        factor = math.prod(self.upsample_rates)
        if self.decoder == "hifigan":
            rule = f"must multiply to hop_samples ({hop})"
            require(factor == hop, "upsample_rates", self.upsample_rates, rule)
        else:
            rule = f"times istft_hop ({self.istft_hop}) times subbands ({self.subbands}) must be hop_samples ({hop})"
            require(factor * self.istft_hop * self.subbands == hop, "upsample_rates", self.upsample_rates, rule)
            require(factor > 1, "upsample_rates", self.upsample_rates, "must multiply to 2 or more")
        require(
            len(self.upsample_kernels) == len(self.upsample_rates)
            and all(
                k >= r and (k - r) % 2 == 0 for k, r in zip(self.upsample_kernels, self.upsample_rates, strict=True)
            ),
            "upsample_kernels",
            self.upsample_kernels,
            f"must each exceed its rate {self.upsample_rates} by an even number or nothing",
        )
        require(
            self.upsample_channels % 2 ** len(self.upsample_rates) == 0,
            "upsample_channels",
            self.upsample_channels,
            f"must be divisible by 2 ** {len(self.upsample_rates)}, once for each upsampling",
        )
        require(
            self.segment_samples >= hop and self.segment_samples % hop == 0,
            "segment_samples",
            self.segment_samples,
            f"must be a multiple of hop_samples ({hop})",
        )
        shortest = self.subbands * (max(SUBBAND_WINDOWS) // 2 + 1)
        require(
            self.decoder != "mb_istft" or self.segment_samples >= shortest,
            "segment_samples",
            self.segment_samples,
            f"must be {shortest} or more for the loss on {self.subbands} subbands",
        )

    def _check_istft(self) -> None:
        kinds = ("hifigan", "istft", "mb_istft", "ms_istft")
        require(self.decoder in kinds, "decoder", self.decoder, f"must be one of {', '.join(kinds)}")
        several = self.decoder in ("mb_istft", "ms_istft")
        require(
            self.subbands in ((4, 8, 16) if several else (1,)),
            "subbands",
            self.subbands,
            f"must be {'4, 8 or 16' if several else '1'} with decoder={self.decoder!r}",
        )
        require(self.istft_hop >= 1, "istft_hop", self.istft_hop, "must be 1 or more")
        require(
            self.istft_samples >= 2 * self.istft_hop and self.istft_samples % (2 * self.istft_hop) == 0,
            "istft_samples",
            self.istft_samples,
            f"must be a multiple of twice istft_hop ({self.istft_hop})",
        )

    @property
    def segment_frames(self) -> int:
        return self.segment_samples // self.audio.hop_samples

    @property
    def condition_channels(self) -> int:
        """Width of the speaker vectors that reach the layers: 0 for one speaker."""
        return self.speaker_channels if self.speakers else 0


@dataclass(frozen=True)
class VitsOptimizerConfig:
    """AdamW for generator and discriminators; the defaults are the published ones (arXiv 2106.06103, section 3.3).

    Attributes:
      learning_rate: at the first step.
      decay: factor of the learning rate at each epoch or step.
      decay_every: which of the two.
      warmup_steps: steps of linear warm-up; the published run has none.
      beta1: first-moment decay.
      beta2: second-moment decay.
      epsilon: denominator floor.
      weight_decay: decoupled decay of all parameters.
      average_decay: decay of the running average of the generator that `speak` uses; 0 keeps none.
    """

    learning_rate: float = 2e-4
    decay: float = 0.999875
    decay_every: Literal["epoch", "step"] = "epoch"
    warmup_steps: int = 0
    beta1: float = 0.8
    beta2: float = 0.99
    epsilon: float = 1e-9
    weight_decay: float = 0.01
    average_decay: float = 0.0

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "must be above 0")
        require(0 < self.decay <= 1, "decay", self.decay, "must be in (0, 1]")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "must be 0 or more")
        for name in ("beta1", "beta2", "average_decay"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must be in [0, 1)")
        require(self.epsilon > 0, "epsilon", self.epsilon, "must be above 0")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must be 0 or more")


@dataclass(frozen=True)
class VitsRecipe:
    """A named VITS run: everything that decides its result but the data."""

    name: str = "vits-ljs"
    task: Literal["vits"] = "vits"
    model: VitsConfig = field(default_factory=VitsConfig)
    optimizer: VitsOptimizerConfig = field(default_factory=VitsOptimizerConfig)
    data: SpeechDataConfig = field(default_factory=SpeechDataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
