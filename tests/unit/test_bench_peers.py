"""The benchmarks' machinery: processes in turns, and the ledger's table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from bench import ledger, suite, turns  # noqa: E402 - found there only
from bench.cases import weak_scaling  # noqa: E402

CASE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from bench import turns

if "--side" in sys.argv:
    name, log = sys.argv[-1], open(sys.argv[2], "a")
    def work(line):
        print(name, line, file=log, flush=True)
        print("a library's own message")
        if line == "fail":
            sys.exit(3)
        return {"length": len(line)}
    turns.serve(work, {"name": name, "malloc": os.environ.get("GLIBC_TUNABLES", "")}, warm_ups=("warm",))
else:
    sides = {
        n: turns.Side(sys.executable, "--side", n, environment=turns.allocator("shipped", ours=n == "ours")).wait()
        for n in ("ours", "theirs")
    }
    found = turns.in_turns(sides, 2, sys.argv[3:])
    print(json.dumps({"found": found, "facts": {n: side.facts for n, side in sides.items()}}))
"""


def run_case(folder, *lines):
    script, log = folder / "case.py", folder / "log"
    script.write_text(CASE)
    done = subprocess.run(
        [sys.executable, script, ROOT, log, *lines],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
    )
    return done, log.read_text().splitlines()


def test_sides_work_in_strict_turns_after_warming_up_one_by_one(tmp_path):
    done, log = run_case(tmp_path, "a", "bb")
    assert done.returncode == 0, done.stderr
    # Each turn twice: the first piece of work is not timed.
    turn = [f"{side} {line}" for line in ("a", "bb") for side in ("ours", "theirs") for _ in range(2)]
    assert log == ["ours warm", "ours warm", "theirs warm", "theirs warm", *turn, *turn]
    told = json.loads(done.stdout)
    assert [one["theirs"]["told"] for one in told["found"]["bb"]] == [{"length": 2}] * 2
    assert all(one["ours"]["seconds"] > 0 and one["ours"]["peak_bytes"] > 1e6 for one in told["found"]["a"])
    # Not what this process was started with.
    mallocs = {name: facts["malloc"] for name, facts in told["facts"].items()}
    assert mallocs == {"ours": "glibc.malloc.hugetlb=1", "theirs": ""}


def test_a_side_that_ends_early_ends_the_case(tmp_path):
    done, _ = run_case(tmp_path, "fail")
    assert done.returncode != 0
    assert "the process ended early" in done.stderr
    assert not done.stdout


def test_the_ratio_is_taken_within_a_round():
    """Load that doubles both sides' times in one round leaves the ratio as it is."""
    rounds = [{"ours": {"seconds": 1.0 * load}, "theirs": {"seconds": 2.0 * load}} for load in (1, 2, 5)]
    assert turns.ratio(rounds, "ours", "theirs") == {"median": 0.5, "least": 0.5, "most": 0.5}
    assert turns.seconds_of(rounds)["theirs"] == {"median": 4.0, "least": 2.0, "most": 10.0}


@pytest.mark.parametrize("choice", [name for name in turns.MALLOC if name != "shipped"])
def test_an_allocator_is_the_same_for_both(choice):
    assert turns.allocator(choice, ours=True) == turns.allocator(choice, ours=False)


def result(case, ratios, **changes):
    machine = {"processors": 2, "processor": "CPU", "vectors": ["avx2"], "memory_gigabytes": 25, "system": "Linux"}
    return {
        "case": case,
        "ratios": {name: {"median": value, "least": value / 2, "most": 2 * value} for name, value in ratios.items()},
        "rounds": 7,
        "machine": machine | {"python": "3.11.7", "load": [0.1, 0.2, 0.3]},
        "versions": {"jax": "1.2"},
        "command": f"python bench/{case}.py",
        "commit": "abc1234",
        "date": "2026-12-01",
        **changes,
    }


def write(folder, **results):
    for name, value in results.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


def test_the_ledger_keeps_all_but_the_table(tmp_path):
    results, file = tmp_path / "results", tmp_path / "LEDGER.md"
    results.mkdir()
    write(results, one=result("one", {"a / b": 0.5, "a|c": 0.25}), two={"case": "two", "speed": 3})
    write(results, three=result("three", {"x": 2}, versions={"jax": "1.3"}))
    file.write_text(f"# Title\n日本語\n{ledger.BEGIN}\nold\n{ledger.END}\n\nafter\n", encoding="utf-8")
    for _ in range(2):  # a second time changes nothing
        ledger.rewrite(file, ledger.table(ledger.read_results(results)))
        text = file.read_text(encoding="utf-8")
        assert text.startswith(f"# Title\n日本語\n{ledger.BEGIN}\n")
        assert text.endswith(f"{ledger.END}\n\nafter\n")
    assert "old" not in text
    assert "| one: a / b | 0.5 (0.25-1) | 7 | `python bench/one.py` | abc1234, 2026-12-01 |" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    # Two machines, a head and a rule each, three ratios; a bar within a name ends no cell.
    assert len(rows) == 7
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
    assert [line for line in text.splitlines() if line.startswith("2 processors")] == [
        f"2 processors of CPU (avx2), 25 GB, Linux; Python 3.11.7, jax {version}." for version in ("1.2", "1.3")
    ]


@pytest.mark.parametrize(
    "text", ["no marks", f"{ledger.END} {ledger.BEGIN}", f"{ledger.BEGIN}{ledger.END}{ledger.END}"]
)
def test_a_ledger_without_its_marks_stays(tmp_path, text):
    file = tmp_path / "LEDGER.md"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"LEDGER\.md"):
        ledger.rewrite(file, "table")
    assert file.read_text() == text


def test_the_suite_names_programs_that_are_there():
    assert set(suite.WITH_TINY) <= set(suite.CASES)
    named = {words[0] for words in suite.CASES.values()}
    programs = {
        str(path.relative_to(ROOT)) for folder in ("cases", "peers") for path in (ROOT / "bench" / folder).glob("*.py")
    }
    assert programs - named == {
        "bench/cases/lighter_networks.py",  # hours
        "bench/peers/vits_torch.py",
        "bench/peers/vits_coqui.py",
    }
    assert named <= programs


def test_weak_scaling_tells_the_exchange_from_what_two_at_once_cost_anyway():
    """Alone 2 s; two at once 3 s, since they share the memory; 4 s with the exchange. A slow round counts as any."""
    rounds = [{"alone": 2.0 * load, "apart": 3.0 * load, "together": 4.0 * load} for load in (1, 3, 1)]
    efficiency, share = weak_scaling.ratios(rounds).values()
    assert efficiency == {"median": 0.5, "least": 0.5, "most": 0.5}
    assert share == {"median": 0.25, "least": 0.25, "most": 0.25}


def test_a_group_is_as_slow_as_its_slower_process():
    class Fixed:
        asked = 0

        def __init__(self, seconds):
            self.seconds = seconds

        def ask(self):
            Fixed.asked += 1

        def answer(self):
            assert Fixed.asked == 2  # both began before either was waited for
            return {"seconds": self.seconds}

    assert weak_scaling.measure([Fixed(3.0), Fixed(2.0)]) == 3.0
