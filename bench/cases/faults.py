"""A training that is interrupted on purpose: what is lost, and what a fault is answered with.

`python bench/cases/faults.py [--kills N] [--flips N] [--only PART]` prints JSON; every start is a process of its own
on the embedded corpus and a small ctrl-nano. The parts:

- kill: a run killed (SIGKILL) N times at random moments, with a checkpoint every 3 steps, until it is done; its records
  are compared, line by line but for times, with those of a run that nothing interrupted, and its parameters bit by bit;
- owners: a second `train` on a run that is being trained;
- flips: one bit turned in the tokens or in the tokenizer of a data set, then `train --verify-data`;
- interrupt: SIGINT at 1, 2, ... 10 seconds after the start: exit code, time to the end, and whether the run goes on.

All random choices are those of `--seed`.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 60
TIMES = ("_per_second", "seconds", "wait_share")


class Bench:
    """Folder of one execution: the data set, the reference run, and how a training is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.environment = os.environ | {"HAYAKUCHI_CACHE": str(folder / "cache")}
        self._hayakuchi("prepare", "text", str(self.data), "--source", "embedded", "--vocab-size", "2400")

    def _hayakuchi(self, *words: str) -> None:
        command = [sys.executable, "-m", "hayakuchi", *words]
        subprocess.run(command, check=True, capture_output=True, env=self.environment)  # noqa: S603 - our own program

    def start(self, run: str, data: Path | None = None, *options: str, steps: int = STEPS) -> subprocess.Popen[str]:
        words = ["train", "ctrl-nano", str(self.folder / run), "--data", str(data or self.data)]
        words += ["--steps", str(steps), "--batch", "4", "--layers", "2", "--width", "64", "--feed-forward", "128"]
        words += ["--length", "32", "--checkpoint-every", "3", "--log-every", "1", *options]
        return subprocess.Popen(  # noqa: S603 - our own program with our own arguments
            [sys.executable, "-m", "hayakuchi", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, run: str, data: Path | None = None, *options: str, steps: int = STEPS) -> tuple[int, str]:
        """Exit code and last line of standard error."""
        process = self.start(run, data, *options, steps=steps)
        _, errors = process.communicate()
        return process.returncode, last_line(errors)

    def records(self, run: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl without times."""
        lines = (self.folder / run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [{k: v for k, v in json.loads(line).items() if not k.endswith(TIMES)} for line in lines]

    def parameters(self, run: str) -> dict[str, np.ndarray]:
        """The arrays of the last checkpoint by name."""
        import jax
        import orbax.checkpoint as ocp

        state = ocp.PyTreeCheckpointer().restore(self.folder / run / "checkpoints" / str(STEPS) / "state")
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(state)}


def last_line(text: str) -> str:
    return next(reversed([line.strip() for line in text.splitlines() if line.strip()]), "")


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ends_well(code: int, message: str) -> bool:
    """Whether a fault was answered as it should be: refused with one line that is no traceback."""
    return code == 2 and message.startswith("hayakuchi:") and "Traceback" not in message


def kill(bench: Bench, arguments: argparse.Namespace, random_: random.Random) -> dict[str, Any]:
    """Kills until `--kills` have hit a living training, then lets it end."""
    code, message = bench.finish("unbroken")
    assert code == 0, message
    hits, metrics = 0, bench.folder / "killed" / "metrics.jsonl"
    while hits < arguments.kills:
        process = bench.start("killed")
        if hits % 3 == 0:  # while it starts
            time.sleep(random_.uniform(0.5, 6.0))
        else:
            lines = count_lines(metrics) + random_.randrange(1, 7)
            while process.poll() is None and count_lines(metrics) < lines:
                time.sleep(0.005)
            time.sleep(random_.uniform(0.0, 0.1))
        if process.poll() is not None:
            process.communicate()
            break
        process.kill()
        process.communicate()
        hits += 1
    code, message = bench.finish("killed")
    whole, broken = bench.records("unbroken"), bench.records("killed")
    first, second = bench.parameters("unbroken"), bench.parameters("killed")
    return {
        "kills": hits,
        "exit_code": code,
        "last_line": message if code else "",
        "lines": len(broken),
        "lines_differing": sum(a != b for a, b in zip(whole, broken, strict=False)) + abs(len(whole) - len(broken)),
        "arrays": len(first),
        "arrays_differing": sum(not np.array_equal(first[name], second[name]) for name in first),
        "set_aside": len(list((bench.folder / "killed" / "checkpoints").glob("*.damaged"))),
    }


def owners(bench: Bench, _: argparse.Namespace, __: random.Random) -> dict[str, Any]:
    """Two trainings of one run at once."""
    first = bench.start("owned")
    while not (bench.folder / "owned" / "metrics.jsonl").exists() and first.poll() is None:
        time.sleep(0.1)
    code, message = bench.finish("owned")
    _, errors = first.communicate()
    steps = [record["step"] for record in bench.records("owned") if "learning_rate" in record]
    return {
        "second_exit_code": code,
        "second_message": message.replace(str(bench.folder), "..."),
        "first_exit_code": first.returncode,
        "first_last_line": "" if first.returncode == 0 else last_line(errors),
        "steps_recorded_twice": len(steps) - len(set(steps)),
    }


def flips(bench: Bench, arguments: argparse.Namespace, random_: random.Random) -> dict[str, Any]:
    """One bit turned at a time; a refusal is exit code 2 with one line."""
    result = {}
    for name in ("tokenizer.model", "train/tokens-00000.npy"):
        refused, others = 0, []
        for index in range(arguments.flips):
            damaged = bench.folder / f"data-{index}"
            shutil.copytree(bench.data, damaged)
            content = bytearray((damaged / name).read_bytes())
            place = random_.randrange(len(content))
            content[place] ^= 1 << random_.randrange(8)
            (damaged / name).write_bytes(content)
            code, message = bench.finish(f"flipped-{index}", damaged, "--verify-data", steps=1)
            refused += ends_well(code, message)
            if not ends_well(code, message):
                others.append({"byte": place, "exit_code": code, "message": message.replace(str(bench.folder), "...")})
            shutil.rmtree(damaged)
            shutil.rmtree(bench.folder / f"flipped-{index}", ignore_errors=True)
        result[name] = {"flips": arguments.flips, "refused": refused, "others": others}
    return result


def interrupt(bench: Bench, _: argparse.Namespace, __: random.Random) -> dict[str, Any]:
    """SIGINT after 1, 2, ... 10 seconds, with a cache that is empty before each, so that there is much to compile."""
    rows = []
    options = ("--schedule", "constant")  # with it a run may end at another step than it was started for
    for seconds in range(1, 11):
        shutil.rmtree(bench.folder / "cache", ignore_errors=True)
        run = f"interrupted-{seconds}"
        process = bench.start(run, None, *options, steps=100_000)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _, errors = process.communicate()
        waited = time.monotonic() - sent
        checkpoints = [folder.name for folder in (bench.folder / run).glob("checkpoints/*") if folder.name.isdigit()]
        reached = max(map(int, checkpoints), default=0)
        again, message = bench.finish(run, None, *options, steps=reached + 1)
        rows.append(
            {
                "after_seconds": seconds,
                "exit_code": process.returncode,
                "seconds_to_the_end": round(waited, 2),
                "traceback": "Traceback" in errors,
                "checkpoint": reached,
                "goes_on": again == 0 or message.replace(str(bench.folder), "..."),
            }
        )
        shutil.rmtree(bench.folder / run, ignore_errors=True)
    return {"rows": rows, "exit_codes": sorted({row["exit_code"] for row in rows})}


PARTS: dict[str, Callable[[Bench, argparse.Namespace, random.Random], dict[str, Any]]] = {
    "kill": kill,
    "owners": owners,
    "flips": flips,
    "interrupt": interrupt,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--flips", type=int, default=10, help="of each file")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeat for more; all by default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary))
        parts = {
            name: PARTS[name](bench, arguments, random.Random(arguments.seed))  # noqa: S311 - no secret
            for name in arguments.only or PARTS
        }
    result = {"case": "faults", "seed": arguments.seed, "steps": STEPS, **parts}
    print(json.dumps({**result, "processors": os.cpu_count(), "python": platform.python_version()}, indent=2))


if __name__ == "__main__":
    main()
