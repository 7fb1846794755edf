"""Step time and memory of VITS training against PyTorch: published sizes, segments of 8,192 samples, float32.

`python bench/peers/vits_step.py [--torch PYTHON] [--lean] [--package] [--rounds N] [--speakers N]` prints JSON. PYTHON
is an interpreter with torch and transformers, that of `make peers` if it is there; without one only our side is timed.
The sides are processes that step in turns, one waiting while the others compute, so that load from outside meets all. A
step is everything from the batch (random data) to the changed parameters of both networks; `vits_torch.py` says what
PyTorch computes, and what --lean spares it. --package adds the training step of the package coqui-tts
(`vits_coqui.py`). The peak of memory is that of the process over the timed steps; that of the start, compiling
included, is told apart.

Run it on a quiet machine: where threads have to share a processor, PyTorch's wait for each other in every operation,
and its step takes many times as long. On two quiet processors its processor seconds are nearly twice its seconds.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import turns

VOCABULARY, RATE_HZ = 178, 22_050
# For a look at whether it runs: our names, then those of transformers.
TINY_OURS = {
    "latent_channels": 16, "hidden_channels": 16, "filter_channels": 32, "text_layers": 1, "posterior_layers": 2,
    "flow_layers": 2, "upsample_channels": 32, "segment_samples": 2_048, "discriminator_division": 16,
}  # fmt: skip
TINY_THEIRS = {
    "flow_size": 16, "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 1,
    "posterior_encoder_num_wavenet_layers": 2, "prior_encoder_num_wavenet_layers": 2, "upsample_initial_channel": 32,
}  # fmt: skip


def ours(arguments: argparse.Namespace) -> tuple[turns.Work, dict[str, Any]]:
    """The step of `VitsTask`, and what is to be told of it."""
    facts = turns.jax_versions()
    import jax
    from bench import vits_program

    from hayakuchi.config.vits import VitsRecipe
    from hayakuchi.data.speech_batches import Bucket

    model = {"speakers": arguments.speakers, "vocabulary_size": VOCABULARY, **(TINY_OURS if arguments.tiny else {})}
    recipe = vits_program.resized(VitsRecipe(), batch=arguments.batch, **model)
    bucket = Bucket(arguments.symbols, arguments.frames)
    program = vits_program.compile_step(recipe, bucket)
    program = vits_program.filled(program, recipe, vits_program.full_batch(recipe, bucket))
    state = program.state
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(values)) for name, values in state.parameters.items()}

    def step(_: str) -> dict[str, float]:
        nonlocal state
        state, metrics = program.step(state, program.batch, program.key)
        jax.block_until_ready((state, metrics))
        return {name: float(value) for name, value in metrics.items()}

    del program.facts["equations"]  # of other sizes than the budget's: see vits_compile.py
    return step, {**facts, "parameters": sizes, **program.facts}


def pytorch(arguments: argparse.Namespace) -> tuple[turns.Work, dict[str, Any]]:
    """The same in PyTorch."""
    facts = turns.torch_versions()
    import numpy as np
    import torch
    import transformers
    from bench.peers import vits_torch

    config = transformers.VitsConfig(
        vocab_size=VOCABULARY,
        num_speakers=max(arguments.speakers, 1),
        speaker_embedding_size=256 if arguments.speakers else 0,
        layerdrop=0.0,  # not in the published model
        sampling_rate=RATE_HZ,
        attn_implementation="eager",
        **(TINY_THEIRS if arguments.tiny else {}),
    )
    segment, division = (TINY_OURS["segment_samples"], 16) if arguments.tiny else (8_192, 1)
    trained = vits_torch.Step(config, division, segment, RATE_HZ, lean=arguments.lean)
    random = np.random.default_rng(0)
    rows = arguments.batch
    audio = torch.tensor(random.standard_normal((rows, arguments.frames * vits_torch.HOP)), dtype=torch.float32) / 11
    batch = vits_torch.Batch(
        symbols=torch.tensor(random.integers(1, VOCABULARY, (rows, arguments.symbols))),
        audio=audio[:, None],
        # Read from a file in the published run, so not part of the step.
        spectrogram=vits_torch.linear_spectrogram(audio),
        speakers=torch.tensor(random.integers(0, max(arguments.speakers, 1), rows)),
    )
    return lambda _: trained(batch), {**facts, "parameters": trained.parameters()}


def package(arguments: argparse.Namespace) -> tuple[turns.Work, dict[str, Any]]:
    """The same as a package trains it."""
    facts = turns.torch_versions()
    from importlib.metadata import version

    from bench.peers import vits_coqui

    trained = vits_coqui.Step(
        arguments.batch, arguments.frames, arguments.symbols, arguments.speakers, tiny=arguments.tiny
    )
    facts["versions"]["coqui-tts"] = version("coqui-tts")
    return lambda _: trained(), {**facts, "parameters": trained.parameters()}


SIDES = {"ours": ours, "pytorch": pytorch, "package": package}


def main() -> None:
    parser = turns.parser(__doc__, rounds=7)
    parser.add_argument("--lean", action="store_true", help="PyTorch without the published code's detours")
    parser.add_argument("--package", action="store_true", help="the package's training step too")
    parser.add_argument("--speakers", type=int, default=100, help="0 for the model of one speaker")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--symbols", type=int, default=120, help="of a clip, blanks included")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.batch, arguments.frames, arguments.symbols = 1, 60, 20
    if arguments.side:
        turns.serve(*SIDES[arguments.side](arguments))
        return

    names = ["ours", *(["pytorch"] if arguments.torch else []), *(["package"] if arguments.package else [])]
    if arguments.package and not arguments.torch:
        parser.error("--package needs an interpreter: --torch PYTHON, or `make peers`")
    # One after the other, so that warming up disturbs no one.
    sides = {
        name: turns.Side(
            sys.executable if name == "ours" else arguments.torch,
            *("--side", name),
            environment=turns.allocator(arguments.malloc, ours=name == "ours"),
        ).wait()
        for name in names
    }
    counts = [side.facts["parameters"] for side in sides.values()]
    if not arguments.tiny and any(count != counts[0] for count in counts):
        sys.exit(f"not the same model on all sides; parameters: {dict(zip(sides, counts, strict=True))}")
    rounds = turns.in_turns(sides, arguments.rounds)[""]
    told = ("batch", "frames", "symbols", "speakers", "tiny", "lean", "malloc", "rounds")
    labels = {"pytorch": "PyTorch, lean" if arguments.lean else "PyTorch", "package": "coqui-tts"}
    result = {
        "case": "vits_step",
        **{name: getattr(arguments, name) for name in told},
        "ratios": {f"ours / {labels[name]}": turns.ratio(rounds, "ours", name) for name in names if name != "ours"},
        "seconds": turns.seconds_of(rounds),
        "processor_seconds": turns.seconds_of(rounds, "processor_seconds"),
        "peak_megabytes": turns.peak_megabytes(rounds),
        "versions": turns.versions(sides.values()),
        "sides": {name: side.facts for name, side in sides.items()},
        "machine": turns.machine(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
