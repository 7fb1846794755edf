"""No verb's output overwrites a run, a data set, a checkpoint or an input."""

from pathlib import Path

import pytest

from hayakuchi import cli
from hayakuchi.config import to_json
from hayakuchi.directories import check_output
from hayakuchi.errors import UserError
from hayakuchi.recipes import RECIPES
from helpers import random_dataset


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "checkpoints" / "10").mkdir(parents=True)
    (folder / "recipe.json").write_text(to_json(RECIPES["ctrl-nano"]), encoding="utf-8")
    for name in ("dataset.json", "tokenizer.model", "metrics.jsonl"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        "plan ctrl-nano --budget 1h --out {run}",
        "plan {run}/recipe.json --json {run}/recipe.json",
        "plan {tmp}/own.json --budget 1h --out {tmp} --json -",
        "plan {tmp}/own.json --json {tmp}/own.json",
        "bench ctrl-nano --out {run}",
        "bench ctrl-nano --json {run}/checkpoints/10/new.json",
        "inspect ctrl-nano --out {data}",
        "inspect ctrl-nano --out {data}/train",
        "inspect {tmp}/steps.py:step --json {tmp}/steps.py",
        "inspect ctrl-nano --diff {tmp}/own.json --json {tmp}/own.json",
        "evaluate {run} --data {data} --out {data}",
        "evaluate {run} --data {data} --json {data}/report.json",
        "generate {run} --json {run}/metrics.jsonl",
        "attribute {run} text --json {run}/dataset.json",
        "speak {run} text --out {run}/tokenizer.model",
        "convert {run} {tmp}/in.wav --from a --to b --out {tmp}/in.wav",
        "export {run} {tmp}/exported --json {run}/recipe.json",
        "train ctrl-nano {tmp}/new --data {data} --json {data}/dataset.json",
        "prepare text {tmp}/new --source jsonl:{tmp}/own.json,code=a --json {tmp}/own.json",
        "prepare speech {tmp}/new --source embedded --user-dictionary {tmp}/in.wav --json {tmp}/in.wav",
        "demo --out {run}",
    ],
)
def test_an_output_that_would_overwrite_work_is_refused(words, run, tmp_path, capsys):
    data = random_dataset(tmp_path / "data")
    (tmp_path / "own.json").write_text(to_json(RECIPES["ctrl-nano"]), encoding="utf-8")
    for name in ("in.wav", "steps.py"):
        (tmp_path / name).write_bytes(b"input")
    before = contents(tmp_path)
    assert cli.main(words.format(run=run, data=data, tmp=tmp_path).split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "would overwrite" in message
    assert contents(tmp_path) == before


def test_the_default_folder_of_a_search_is_checked_too(run, monkeypatch, capsys):
    recipe = RECIPES["ctrl-nano"]
    monkeypatch.chdir(run.parent)
    run.rename(run.with_name("ctrl-nano-cpu-plan"))
    assert cli.main(["plan", recipe.name, "--budget", "1h"]) == 2
    assert "ctrl-nano-cpu-plan" in capsys.readouterr().err


def test_a_json_file_does_not_replace_what_the_command_itself_made(run):
    cli._finish(run.parent / "new.json", {}, "")
    with pytest.raises(UserError, match="would overwrite files of the run"):
        cli._finish(run / "recipe.json", {}, "")


def test_a_report_may_be_written_again_and_beside_a_run(run, tmp_path):
    check_output("--out", run / "report")
    check_output("--json", run / "evaluation.json")
    check_output("--out", tmp_path, [run, run / "recipe.json"])
    former = tmp_path / "plan"
    former.mkdir()
    (former / "recipe.json").write_text(to_json(RECIPES["ctrl-nano"]), encoding="utf-8")
    check_output("--out", former)


def test_a_symbolic_link_to_a_run_is_that_run(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(UserError, match="the run"):
        check_output("--out", tmp_path / "link")
