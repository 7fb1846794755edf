"""The CTRL training step against transformers' CTRLLMHeadModel in PyTorch: equal weights, batch, loss and update.

`python bench/peers/ctrl_step.py [--torch PYTHON] [--rounds N] [--dropout P] [--malloc CHOICE]` prints
JSON. The sides are processes that step in strict turns: ours in float32 and bfloat16, the very step that `hayakuchi
train` runs; PyTorch's eager in float32 and under bfloat16 autocast, and `torch.compile`d in float32, where there is a
C++ compiler. A ratio is our step's time over theirs of the same precision and the same round.

All start from our weights (the embedding tied to the output) and step on one random batch with AdamW, as both tell it:
decay of matrices only, clipping by global norm. PyTorch takes its fused AdamW and its own choice of attention. Without
dropout the losses after warming up must agree, else nothing is printed: so both do the same work.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import ctrl_sizes, turns

# Of the two, our side's name and the precision it is held against.
OURS = {"ours_float32": "float32", "ours_bfloat16": "bfloat16"}
THEIRS = {"eager_float32": "float32", "compiled_float32": "float32", "eager_bfloat16": "bfloat16"}
LEARNING_RATE, BETAS, EPSILON, DECAY, CLIP = 1e-3, (0.9, 0.98), 1e-8, 0.1, 1.0
# Relative; bfloat16 rounds otherwise in each library.
LOSS_TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-2}
TINY = {"layers": 2, "width": 64, "heads": 4, "feed_forward": 128, "vocabulary": 500, "batch": 2, "length": 32}


def random_tokens(arguments: argparse.Namespace) -> Any:
    import numpy as np

    shape = arguments.batch, arguments.length
    return np.random.default_rng(0).integers(0, arguments.vocabulary, shape, np.int32)


def ours(arguments: argparse.Namespace, precision: str) -> tuple[turns.Work, dict[str, Any]]:
    """The step of `CtrlTask`, compiled as a run compiles it."""
    facts = turns.jax_versions()
    import jax
    import numpy as np

    from hayakuchi.config import CtrlRecipe, OptimizerConfig, TrainConfig
    from hayakuchi.export.hf_weights import to_hf
    from hayakuchi.models.sharding import make_mesh
    from hayakuchi.train.ctrl_task import CtrlTask
    from hayakuchi.train.loop import compile_task

    recipe = CtrlRecipe(
        model=ctrl_sizes.model_config(arguments, dropout=arguments.dropout),
        optimizer=OptimizerConfig(
            learning_rate=LEARNING_RATE,
            schedule="constant",
            warmup_steps=0,
            weight_decay=DECAY,
            beta1=BETAS[0],
            beta2=BETAS[1],
            epsilon=EPSILON,
            clip_norm=CLIP,
        ),
        train=TrainConfig(batch=arguments.batch, precision=precision),
    )
    task = CtrlTask(recipe)
    programs = compile_task(task, make_mesh("", jax.devices()[:1]))
    state, key = programs.init(jax.random.key(0)), jax.random.key(1)
    batch = programs.place(task.example_batch(task.batch_specs()[0])._replace(tokens=random_tokens(arguments)))
    if not arguments.weights.exists():
        np.savez(arguments.weights, **to_hf(jax.device_get(state.parameters), recipe.model))

    def step(_: str) -> dict[str, float]:
        nonlocal state
        state, metrics = programs.step(state, batch, key)
        jax.block_until_ready((state, metrics))
        return {"loss": float(metrics["loss"]), "gradient_norm": float(metrics["gradient_norm"])}

    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.parameters))
    return step, {**facts, "parameters": parameters, "compile_seconds": round(programs.seconds, 2)}


def theirs(arguments: argparse.Namespace, precision: str, *, compiled: bool) -> tuple[turns.Work, dict[str, Any]]:
    """The same in PyTorch."""
    facts = turns.torch_versions()
    import numpy as np
    import torch
    import transformers

    config = transformers.CTRLConfig(
        vocab_size=arguments.vocabulary,
        n_positions=arguments.length,
        n_embd=arguments.width,
        dff=arguments.feed_forward,
        n_layer=arguments.layers,
        n_head=arguments.heads,
        resid_pdrop=arguments.dropout,
        embd_pdrop=arguments.dropout,
        use_cache=False,
    )
    model = transformers.CTRLLMHeadModel(config).train()
    with np.load(arguments.weights) as tensors:
        missing, unexpected = model.load_state_dict({k: torch.from_numpy(v) for k, v in tensors.items()}, strict=False)
    # Tied to the embedding.
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected, unexpected
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, BETAS, EPSILON, weight_decay=DECAY, fused=True)
    tokens = torch.from_numpy(random_tokens(arguments)).long()
    forward = torch.compile(model) if compiled else model

    def step(_: str) -> dict[str, float]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.item(), "gradient_norm": norm.item()}

    attention = model.config._attn_implementation  # noqa: SLF001 - told nowhere else
    return step, {**facts, "parameters": sum(p.numel() for p in parameters), "attention": attention}


def serve(arguments: argparse.Namespace) -> None:
    side = arguments.side
    if side in OURS:
        made = ours(arguments, OURS[side])
    else:
        made = theirs(arguments, THEIRS[side], compiled=side.startswith("compiled"))
    turns.serve(*made)


def check_equal_work(sides: dict[str, turns.Side], *, dropout: bool) -> None:
    """Ends the program where the sides do not compute the same."""
    counts = {name: side.facts["parameters"] for name, side in sides.items()}
    if len(set(counts.values())) > 1:
        sys.exit(f"not the same model on all sides; parameters: {counts}")
    for name, precision in THEIRS.items() if not dropout else ():
        if name not in sides or f"ours_{precision}" not in sides:
            continue
        mine, other = (sides[n].facts["after_warm_up"]["loss"] for n in (f"ours_{precision}", name))
        if abs(mine - other) > LOSS_TOLERANCE[precision] * abs(other):
            sys.exit(f"not the same work: after warming up our loss is {mine}, that of {name} {other}")


def main() -> None:
    parser = turns.parser(__doc__, rounds=7)
    ctrl_sizes.add_options(parser, layers=6, width=512, heads=8, feed_forward=2_048, vocabulary=32_000, length=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0, help="on both sides; above 0 losses are not compared")
    parser.add_argument("--only", nargs="+", choices=[*OURS, *THEIRS], default=[*OURS, *THEIRS], help="sides")
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny:
        vars(arguments).update(TINY)
    if arguments.side:
        serve(arguments)
        return

    skipped = {}
    names = [name for name in arguments.only if name in OURS or arguments.torch]
    if "compiled_float32" in names and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        names.remove("compiled_float32")
        skipped["compiled_float32"] = "torch.compile needs a C++ compiler, and there is none"
    if names and not set(names) & set(OURS):
        sys.exit("--only: name one of our sides too; PyTorch takes its weights")
    sides: dict[str, turns.Side] = {}
    with tempfile.TemporaryDirectory() as folder:
        # Ours first, since it writes the weights; and one after the other, so that warming up disturbs no one.
        for name in sorted(names, key=lambda name: name not in OURS):
            python = sys.executable if name in OURS else arguments.torch
            words = ("--side", name, "--weights", str(Path(folder) / "weights.npz"))
            environment = turns.allocator(arguments.malloc, ours=name in OURS)
            sides[name] = turns.Side(python, *words, environment=environment).wait()
    check_equal_work(sides, dropout=arguments.dropout > 0)
    rounds = turns.in_turns(sides, arguments.rounds)[""]
    ratios = {
        f"ours / PyTorch {other.replace('_', ', ')}": turns.ratio(rounds, f"ours_{precision}", other)
        for other, precision in THEIRS.items()
        if other in sides and f"ours_{precision}" in sides
    }
    if set(OURS) <= set(sides):
        ratios["ours: bfloat16 / float32"] = turns.ratio(rounds, "ours_bfloat16", "ours_float32")
    told = ("layers", "width", "heads", "feed_forward", "vocabulary", "batch", "length", "dropout", "malloc", "tiny")
    result = {
        "case": "ctrl_step",
        **{name: getattr(arguments, name) for name in told},
        "rounds": arguments.rounds,
        "ratios": ratios,
        "seconds": turns.seconds_of(rounds),
        "processor_seconds": turns.seconds_of(rounds, "processor_seconds"),
        "peak_megabytes": turns.peak_megabytes(rounds),
        "skipped": skipped,
        "versions": turns.versions(sides.values()),
        "sides": {name: side.facts for name, side in sides.items()},
        "machine": turns.machine(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
