"""Starting a run twice with the compilation cache on: what the second start still compiles, and the share of data wait.

`python bench/cases/second_start.py [--recipe NAME] [--steps N]` prints JSON. Each start is a process of its own, on the
embedded corpus; JAX's own log names each program that was compiled and the time it took.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COMPILED = re.compile(r"Finished XLA compilation of (\S+) in ([0-9.e-]+) sec")


def start(folder: Path, name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One training process; its summary and what it compiled."""
    summary = folder / f"{name}.json"
    words = [arguments.recipe, str(folder / name), "--data", str(folder / "data"), "--json", str(summary)]
    words += ["--steps", str(arguments.steps), "--batch", str(arguments.batch)]
    environment = os.environ | {"HAYAKUCHI_CACHE": str(folder / "cache"), "JAX_LOG_COMPILES": "1"}
    # The log is ours to read here, so it must not be turned down as the command line does.
    code = (
        "import logging, sys; import hayakuchi.cli as cli; cli.set_up_logging = lambda: None;"
        "logging.basicConfig(level=logging.WARNING); sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(  # noqa: S603 - our own program with our own arguments
        [sys.executable, "-c", code, "train", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    seconds = [float(found[2]) for found in COMPILED.finditer(done.stderr)]
    told = json.loads(summary.read_text())
    return {
        "programs": len(seconds),
        "longest_compile_seconds": round(max(seconds), 3),
        "step_compile_seconds": told["compile_seconds"],
        "data_wait_share": told["data_wait_share"],
        "tokens_per_second": told["tokens_per_second"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="ctrl-small")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare = ["prepare", "text", str(folder / "data"), "--source", "embedded", "--json", os.devnull]
        subprocess.run([sys.executable, "-m", "hayakuchi", *prepare], check=True, capture_output=True)  # noqa: S603
        starts = {name: start(folder, name, arguments) for name in ("first", "second")}
    result = {"case": "second_start", "recipe": arguments.recipe, "steps": arguments.steps, **starts}
    print(json.dumps({**result, "processors": os.cpu_count(), "python": platform.python_version()}, indent=2))


if __name__ == "__main__":
    main()
