"""Named runs. Each says what it is for, what it needs, and whether its figures are measured (bench/LEDGER.md)."""

from pathlib import Path

from hayakuchi import config
from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, TextDataConfig, TrainConfig
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

RECIPES: dict[str, CtrlRecipe] = {recipe.name: recipe for recipe in (CTRL_NANO, CTRL_SMALL, CTRL_BASE, CTRL_PUBLISHED)}


def find_recipe(name: str) -> CtrlRecipe:
    """The recipe of that name, or of that JSON file.

    Raises:
      UserError: neither exists, or the file is no recipe.
    """
    if name in RECIPES:
        return RECIPES[name]
    if name.endswith(".json"):
        return config.read_json(CtrlRecipe, Path(name))
    raise UserError(f"recipe {name!r} is not known; known are {', '.join(RECIPES)}, or give the path of a .json file")
