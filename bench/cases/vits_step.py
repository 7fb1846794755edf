"""Step time and memory of VITS training against PyTorch: published sizes, segments of 8,192 samples, float32.

`python bench/cases/vits_step.py --torch PYTHON [--lean] [--rounds N] [--speakers N]` prints JSON. PYTHON is an
interpreter with torch and transformers; without it only our side is timed. The sides are two processes that step in
turns, one waiting while the other computes, so that load from outside meets both. A step is everything from the batch
(random data) to the changed parameters of both networks; `bench/vits_torch.py` says what PyTorch computes, and what
--lean spares it. The peak of memory is that of the process over the timed steps; that of the start, compiling included,
is told apart.

Run it on a quiet machine: where threads have to share a processor, PyTorch's wait for each other in every operation,
and its step takes many times as long. On two quiet processors its processor seconds are nearly twice its seconds.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WARM_UP_STEPS = 2
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

Step = Callable[[], dict[str, float]]


def ours(arguments: argparse.Namespace) -> tuple[Step, dict[str, Any]]:
    """The step of `VitsTask`, and what is to be told of it."""
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

    def step() -> dict[str, float]:
        nonlocal state
        state, metrics = program.step(state, program.batch, program.key)
        jax.block_until_ready((state, metrics))
        return {name: float(value) for name, value in metrics.items()}

    del program.facts["equations"]  # of other sizes than the budget's: see vits_compile.py
    return step, {"parameters": sizes, **program.facts, "jax": jax.__version__}


def theirs(arguments: argparse.Namespace) -> tuple[Step, dict[str, Any]]:
    """The same in PyTorch."""
    import numpy as np
    import torch
    import transformers
    from bench import vits_torch

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
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
    facts = {"parameters": trained.parameters(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return lambda: trained(batch), {**facts, "transformers": transformers.__version__}


def serve(step: Step, facts: dict[str, Any]) -> None:
    """Steps once for every line of standard input; each answer is a line of JSON."""
    for _ in range(WARM_UP_STEPS):
        metrics = step()
    facts["peak_megabytes_of_start"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
    _forget_peak()
    _tell({**facts, "metrics_after_warm_up": {name: float(f"{value:.4g}") for name, value in metrics.items()}})
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        step()
        seconds, used = time.perf_counter() - start, time.process_time() - used
        _tell({"seconds": seconds, "processor_seconds": used, "peak_bytes": _peak_bytes()})


def _tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _forget_peak() -> None:
    """Makes the kernel count the peak of resident memory anew, without what compiling has freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


class Side:
    """One of the processes."""

    def __init__(self, python: str, side: str) -> None:
        command = [python, __file__, *sys.argv[1:], "--side", side]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this very program
        self.facts = self._answer()

    def measure(self) -> dict[str, Any]:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._process.args[0]}: the process ended early; see above")
        return json.loads(line)


def summary(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="", metavar="PYTHON", help="interpreter with torch and transformers")
    parser.add_argument("--lean", action="store_true", help="PyTorch without the published code's detours")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--speakers", type=int, default=100, help="0 for the model of one speaker")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--symbols", type=int, default=120, help="of a clip, blanks included")
    parser.add_argument("--tiny", action="store_true", help="another, tiny model: only to see that all runs")
    parser.add_argument("--side", choices=("ours", "pytorch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        sys.path.insert(0, str(ROOT))
        serve(*(ours if arguments.side == "ours" else theirs)(arguments))
        return

    # One after the other, so that warming up disturbs no one.
    sides = {"ours": Side(sys.executable, "ours")}
    if arguments.torch:
        sides["pytorch"] = Side(arguments.torch, "pytorch")
    rounds = [{name: side.measure() for name, side in sides.items()} for _ in range(arguments.rounds)]
    for side in sides.values():
        side.close()
    names = ("batch", "frames", "symbols", "speakers", "tiny", "lean", "rounds")
    result: dict[str, Any] = {"case": "vits_step", **{name: getattr(arguments, name) for name in names}}
    for what in ("seconds", "processor_seconds"):
        result[what] = {name: summary([one[name][what] for one in rounds]) for name in sides}
    if arguments.torch:
        result["ratio"] = summary([one["ours"]["seconds"] / one["pytorch"]["seconds"] for one in rounds])
    result["peak_megabytes"] = {name: round(max(one[name]["peak_bytes"] for one in rounds) / 1e6) for name in sides}
    result["sides"] = {name: side.facts for name, side in sides.items()}
    result |= {"processors": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
