"""Named runs. Each says what it is for, what it needs, and whether its figures are measured (bench/LEDGER.md)."""

from pathlib import Path

from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, SpeechDataConfig, TextDataConfig, TrainConfig
from hayakuchi.config.recipe import Recipe, read_recipe
from hayakuchi.config.vits import AudioConfig, VitsConfig, VitsOptimizerConfig, VitsRecipe
from hayakuchi.errors import UserError

# For: the demo and the tests. The embedded corpus (86,000 characters) in minutes on 2 cores. So little text is learnt
# by heart at once: hence the high dropout and decay, and no more width (dev/LOG.md).
CTRL_NANO = CtrlRecipe(
    name="ctrl-nano",
    model=CtrlConfig(vocabulary_size=2_600, length=128, layers=3, width=128, heads=4, feed_forward=512, dropout=0.3),
    optimizer=OptimizerConfig(learning_rate=4e-3, warmup_steps=50, weight_decay=0.3, clip_norm=1.0),
    train=TrainConfig(steps=500, batch=16, checkpoint_every=100),
)

# For: a first real model on one GPU, or a small one on a CPU overnight (the second seed's lower bound).
CTRL_SMALL = CtrlRecipe(
    name="ctrl-small",
    model=CtrlConfig(vocabulary_size=32_000, length=256, layers=6, width=384, heads=6, feed_forward=1_536),
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=200, clip_norm=1.0),
    train=TrainConfig(steps=20_000, batch=64),
)

# For: two GPUs or a TPU v3-8 for two weeks (the second seed's upper bound). Not measured yet.
CTRL_BASE = CtrlRecipe(
    name="ctrl-base",
    model=CtrlConfig(vocabulary_size=32_000, length=256, layers=12, width=768, heads=12, feed_forward=3_072),
    optimizer=OptimizerConfig(learning_rate=6e-4, warmup_steps=2_000, clip_norm=1.0),
    train=TrainConfig(steps=200_000, batch=256, checkpoint_every=1_000),
)

# As published (arXiv 1909.05858, section 3.2): 1.63 billion parameters, Adagrad, warm-up to 0.05 over 25,000 steps;
# two weeks on 256 TPU v3 cores there. Not measured here.
CTRL_PUBLISHED = CtrlRecipe(
    name="ctrl-published",
    model=CtrlConfig(vocabulary_size=246_534, length=256, layers=48, width=1_280, heads=16, feed_forward=8_192),
    optimizer=OptimizerConfig(
        optimizer="adagrad",
        learning_rate=0.05,
        schedule="constant",
        warmup_steps=25_000,
        weight_decay=0.0,
        clip_norm=0.25,
    ),
    data=TextDataConfig(code_dropout=0.0),
    train=TrainConfig(steps=800_000, batch=1_024, precision="bfloat16", checkpoint_every=1_000),
)

# For: the demo and the tests; a voice of one's own overnight on 2 cores. The decoder makes four subbands by an inverse
# STFT; durations are deterministic, since the flows of the stochastic predictor are a third of the equations.
VITS_NANO = VitsRecipe(
    name="vits-nano",
    model=VitsConfig(
        audio=AudioConfig(sample_rate_hz=24_000),
        vocabulary_size=48,
        speaker_channels=64,
        latent_channels=96,
        hidden_channels=96,
        filter_channels=256,
        text_layers=3,
        posterior_layers=4,
        flow_layers=2,
        stochastic_durations=False,
        duration_channels=96,
        decoder="mb_istft",
        subbands=4,
        upsample_rates=(4, 4),
        upsample_kernels=(16, 16),
        upsample_channels=256,
        resblock="2",
        resblock_kernels=(3, 5, 7),
        resblock_dilations=((1, 2), (2, 6), (3, 12)),
        discriminator_division=8,
    ),
    optimizer=VitsOptimizerConfig(learning_rate=4e-4, average_decay=0.999),
    train=TrainConfig(steps=20_000, batch=8, checkpoint_every=1_000),
)

# For: 100 Japanese speakers, on a GPU or a TPU v3-8 (the first seed's run).
VITS_JVS = VitsRecipe(
    name="vits-jvs",
    model=VitsConfig(audio=AudioConfig(sample_rate_hz=24_000), vocabulary_size=48, speakers=100),
    data=SpeechDataConfig(buckets=4),
    train=TrainConfig(steps=300_000, batch=64, precision="bfloat16", checkpoint_every=2_000, log_every=100),
)

# For: one Japanese speaker.
VITS_JSUT = VitsRecipe(
    name="vits-jsut",
    model=VitsConfig(audio=AudioConfig(sample_rate_hz=24_000), vocabulary_size=48),
    data=SpeechDataConfig(buckets=4),
    train=TrainConfig(steps=300_000, batch=64, precision="bfloat16", checkpoint_every=2_000, log_every=100),
)

# As published (arXiv 2106.06103, section 3): one speaker, and 109; 22.05 kHz, batch 64, 800,000 steps.
VITS_LJS = VitsRecipe(
    name="vits-ljs",
    data=SpeechDataConfig(buckets=4),
    train=TrainConfig(steps=800_000, batch=64, precision="bfloat16", checkpoint_every=2_000, log_every=100),
)
VITS_VCTK = VitsRecipe(
    name="vits-vctk",
    model=VitsConfig(speakers=109),
    data=SpeechDataConfig(buckets=4),
    train=TrainConfig(steps=800_000, batch=64, precision="bfloat16", checkpoint_every=2_000, log_every=100),
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        CTRL_NANO,
        CTRL_SMALL,
        CTRL_BASE,
        CTRL_PUBLISHED,
        VITS_NANO,
        VITS_JVS,
        VITS_JSUT,
        VITS_LJS,
        VITS_VCTK,
    )
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or of that JSON file.

    Raises:
      UserError: neither exists, or the file is no recipe.
    """
    if name in RECIPES:
        return RECIPES[name]
    if name.endswith(".json"):
        return read_recipe(Path(name))
    raise UserError(f"recipe {name!r} is not known; known are {', '.join(RECIPES)}, or give the path of a .json file")
