"""Runs the cases and the peers one after the other, keeps what each tells, and renews the ledger's table of ratios.

`python bench/suite.py [--only NAME ...] [--tiny]`. Each result goes to bench/results/NAME.json with its command, commit
and date. A case that fails is told at the end; the others run all the same. `lighter_networks.py` is not among them: it
takes hours and a data set.

--tiny runs those that have it at tiny sizes, one round each, only to see that they run: their results lie apart, and
the ledger stays as it is.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench import ledger, turns

CASES: dict[str, tuple[str, ...]] = {
    "ctrl_step": ("bench/peers/ctrl_step.py",),
    "ctrl_step_dropout": ("bench/peers/ctrl_step.py", "--dropout", "0.1"),
    "ctrl_step_huge_pages": ("bench/peers/ctrl_step.py", "--malloc", "huge"),
    "vits_step": ("bench/peers/vits_step.py", "--package"),
    "vits_step_as_shipped": ("bench/peers/vits_step.py", "--malloc", "shipped"),
    "vits_step_lean": ("bench/peers/vits_step.py", "--lean", "--malloc", "shipped"),
    "vits_synthesis": ("bench/peers/vits_synthesis.py",),
    "generate": ("bench/peers/generate.py",),
    "weak_scaling": ("bench/cases/weak_scaling.py",),
    "generate_cache": ("bench/cases/generate_cache.py",),
    "generate_cache_8": ("bench/cases/generate_cache.py", "--samples", "8", "--rounds", "3"),
    "second_start": ("bench/cases/second_start.py",),
    "faults": ("bench/cases/faults.py",),
    "prepare_text": ("bench/cases/prepare_text.py",),
    "frontend_accuracy": ("bench/cases/frontend_accuracy.py",),
    "vits_alignment": ("bench/cases/vits_alignment.py",),
    "vits_compile": ("bench/cases/vits_compile.py",),
}
WITH_TINY = ("ctrl_step", "vits_step", "vits_synthesis", "generate", "weak_scaling")


def commit() -> str:
    """The commit of the working tree, "+changes" where it differs; "unknown" without git."""
    git = shutil.which("git")
    if git is None or not (turns.ROOT / ".git").exists():
        return "unknown"
    words = [git, "-C", str(turns.ROOT), "describe", "--always", "--exclude=*", "--dirty=+changes"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - only asks


def run(words: tuple[str, ...]) -> dict[str, Any] | None:
    """What a case tells, or None if it failed; its complaints go to our standard error."""
    about = {"command": " ".join(["python", *words]), "commit": commit()}
    done = subprocess.run(  # noqa: S603 - our own programs
        [sys.executable, *words], cwd=turns.ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        return None
    told: dict[str, Any] = json.loads(done.stdout)
    return told | about | {"date": dt.datetime.now(tz=dt.UTC).date().isoformat()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    names = [name for name in arguments.only if name in WITH_TINY] if arguments.tiny else arguments.only
    if not turns.default_python():
        print("no peers here (`make peers`): only our sides are timed", file=sys.stderr)
    folder = ledger.RESULTS / "tiny" if arguments.tiny else ledger.RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        words = (*CASES[name], *(("--tiny", "--rounds", "1") if arguments.tiny else ()))
        print(f"{name}: {' '.join(words)} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
        told = run(words)
        if told is None:
            failed.append(name)
        else:
            (folder / f"{name}.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if not arguments.tiny:
        ledger.rewrite(ledger.LEDGER, ledger.table(ledger.read_results(folder)))
    for name in failed:
        print(f"{name}: failed; see above", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
