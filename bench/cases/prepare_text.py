"""`prepare text` with a tokenizer that is there already: MB/s of input, and peak memory over all processes.

`python bench/cases/prepare_text.py [--source KIND:PATH] [--rounds N]` prints JSON. Without --source it reads the Aozora
sample of the developers' corpora (25.6 MB of Shift_JIS), and says so if that is not there. The tokenizer is trained
once, outside the measurement.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parents[3] / "shared" / "corpora" / "aozora_raw_sample.tar.xz"


def prepare(out: Path, source: str, *options: str) -> dict[str, Any]:
    """The report of one preparation, in a process of its own, so that the peak of memory is its own too."""
    words = [sys.executable, "-m", "hayakuchi", "prepare", "text", str(out), "--source", source, *options]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own program
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=f"aozora:{SAMPLE}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=16_000)
    arguments = parser.parse_args()
    if arguments.source == f"aozora:{SAMPLE}" and not SAMPLE.exists():
        print(json.dumps({"case": "prepare_text", "skipped": "the Aozora sample is not there; give --source"}))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        training = prepare(folder / "trained", arguments.source, "--vocab-size", str(arguments.vocab_size))
        given = ("--tokenizer", str(folder / "trained" / "tokenizer.model"))
        reports = [prepare(folder / str(i), arguments.source, *given) for i in range(arguments.rounds)]
    speeds = [report["megabytes_per_second"] for report in reports]
    result = {
        "case": "prepare_text",
        "source": Path(arguments.source).name,
        "input_megabytes": reports[0]["input_megabytes"],
        "documents": reports[0]["documents_out"],
        "megabytes_per_second": {"median": statistics.median(speeds), "least": min(speeds), "most": max(speeds)},
        "peak_memory_megabytes": round(max(report["peak_memory_bytes"] for report in reports) / 1e6),
        "peak_memory_megabytes_with_training": round(training["peak_memory_bytes"] / 1e6),
        "tokenizer_training_seconds": round(training["seconds"]["tokenizer"], 1),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
