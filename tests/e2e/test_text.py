"""The main job through the command line: corpus -> data set -> run -> text, and what goes wrong told in one line."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hayakuchi import cli

TINY = [
    *("--layers", "1", "--width", "32", "--heads", "2", "--feed-forward", "64", "--length", "32"),
    *("--batch", "4", "--steps", "4", "--log-every", "1"),
]


def hayakuchi(*words):
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("e2e") / "data"
    assert hayakuchi("prepare", "text", out, "--source", "embedded", "--vocab-size", 3000, "--workers", 1) == 0
    return out


@pytest.fixture(scope="module")
def run(data) -> Path:
    folder = data.parent / "run"
    assert hayakuchi("train", "ctrl-nano", folder, "--data", data, *TINY) == 0
    return folder


def result(capsys, *words):
    """What a verb gives under --json -."""
    capsys.readouterr()
    assert hayakuchi(*words, "--json", "-") == 0
    return json.loads(capsys.readouterr().out)


def test_prepared_data_has_the_seven_codes(data):
    info = json.loads((data / "dataset.json").read_text())
    assert set(info["codes"]) == {"dialogue", "diary", "encyclopaedia", "essay", "howto", "letter", "story"}
    report = json.loads((data / "report.json").read_text())
    assert report["documents_in"] == report["documents_out"] > 100


def test_generate_gives_n_samples_and_the_same_seed_the_same_text(run, capsys):
    words = ("generate", run, "昔、", "--code", "story", "--n", 2, "--max-tokens", 12, "--seed", 3)
    first, again = result(capsys, *words), result(capsys, *words)
    assert first == again
    assert len(first["samples"]) == 2
    assert first["samples"][0]["text"] != first["samples"][1]["text"]


def test_generate_writes_prompt_and_text(run, capsys):
    capsys.readouterr()
    assert hayakuchi("generate", run, "春の朝、", "--code", "diary", "--max-tokens", 8) == 0
    assert capsys.readouterr().out.startswith("春の朝、")


def test_attribute_sums_to_one(run, capsys):
    found = result(capsys, "attribute", run, "拝啓　お元気ですか。")
    assert abs(sum(found["probabilities"].values()) - 1) < 1e-6
    assert len(found["probabilities"]) == 7


def test_evaluate_reports_every_code(run, data, tmp_path, capsys):
    report = result(capsys, "evaluate", run, "--data", data, "--out", tmp_path / "report")
    assert len(report["codes"]) == 7
    assert 0 < report["bits_per_character"] < 16
    assert {path.suffix for path in (tmp_path / "report").iterdir()} >= {".json", ".png"}


def test_export_makes_a_directory_for_transformers(run, tmp_path, capsys):
    result(capsys, "export", run, tmp_path / "hf", "--format", "hf")
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (tmp_path / "hf").iterdir()
    }


def test_resumes_to_the_same_end(run, data, capsys):
    assert hayakuchi("train", "ctrl-nano", run, "--data", data, *TINY) == 0
    assert "4 steps already" in capsys.readouterr().out


LONG = "長" * 5000

MISTAKES = [
    ("train ctrl-nano {run} --data {data} --steps 9", "the run was started with"),
    ("train ctrl-nano {tmp}/new --data {tmp}/nowhere", "nowhere: not a data set"),
    ("train ctrl-nano {tmp}/new --data {data} --vocabulary-size 100", "--vocabulary-size: the data set decides it"),
    ("prepare text {tmp}/out", "--source is missing"),
    ("train ctrl-big {tmp}/new --data {data}", "recipe 'ctrl-big' is not known"),
    ("train {tmp}/broken.json {tmp}/new --data {data}", "broken.json: unknown key 'layres'"),
    ("train ctrl-nano {tmp}/new --data {data} --heads 5", "must be a multiple of heads (5)"),
    ("train ctrl-nano {tmp}/new --data {data} --code-weights poem=2", "unknown code 'poem'"),
    ("train ctrl-nano {tmp}/file --data {data}", "file: holds something else than a run"),
    ("generate {run} 昔 --code sotry", "did you mean 'story'?"),
    ("generate {run} {long} --code story --strict-window", "window"),
    ("generate {run} 昔 --temperature -1", "temperature=-1.0 must be"),
    ("generate {run} 昔 --top-p 1.5", "top_p=1.5 must be"),
    ("generate {run} 昔 --n 0", "n=0 must be"),
    ("generate {tmp} 昔", "not a run directory"),
    ("evaluate {run} --data {tmp}", "not a data set directory"),
    ("export {run} {tmp}/full", "full: exists and is not an empty directory"),
    ("prepare text {tmp}/out --source plain:{tmp}/nothing", "no such file or folder"),
    ("prepare text {tmp}/out --source plain:{tmp}/empty", "empty: holds no .txt or .md file"),
    ("prepare text {tmp}/out --source plain:{tmp}/blank.txt", "blank.txt: dropped 1 empty"),
    ("prepare text {tmp}/out --source plain:{tmp}/noise.txt", "noise.txt: dropped 1 not text"),
    (
        "prepare text {tmp}/out --source embedded --vocab-size 60000",
        "--vocab-size 60000 is more than the texts support",
    ),
    ("prepare text {tmp}/out --source tape:x", "unknown kind 'tape'"),
    ("prepare text {data} --source embedded", "exists and is not an empty directory"),
    ("prepare text {tmp}/file --source embedded", "file: exists and is not an empty directory"),
    ("prepare text {tmp}/out --source embedded --tokenizer {tmp}/blank.txt", "blank.txt: not a tokenizer"),
    ("prepare text {tmp}/out --source embedded --heldout 2", "--heldout 2.0: must be in"),
    ("serve --text {tmp}/run", "serve: planned, not built yet"),
    ("prepare text gs://bucket/data --source embedded", "gs:// paths are planned"),
    ("fly", "'fly' is not a verb"),
    ("generate", "Missing from hayakuchi generate: RUN"),
    ("demo --minutes 0.1", "--minutes 0.1: must be"),
]


@pytest.mark.parametrize(("line", "culprit"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_culprit(line, culprit, run, data, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("important")
    (tmp_path / "file").write_text("important")
    (tmp_path / "blank.txt").write_text("")
    (tmp_path / "broken.json").write_text('{"name": "x", "layres": 3}')
    (tmp_path / "noise.txt").write_bytes(bytes(range(128, 256)) * 20)
    before = {path: path.stat().st_mtime_ns for path in (*data.rglob("*"), *run.rglob("*")) if path.is_file()}
    capfd.readouterr()
    words = line.format(run=run, data=data, tmp=tmp_path, long=LONG).split(" ")
    assert cli.main(words) == 2
    told = capfd.readouterr().err
    assert told.count("\n") == 1, told
    assert culprit in told
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (tmp_path / "file").read_text() == "important"
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize(("size", "code"), [(30, 0), (31, 2)])
def test_standard_input_is_read_whole_or_refused(size, code, run, monkeypatch, capfd):
    monkeypatch.setattr(cli, "_STDIN_LIMIT_BYTES", 30)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("朝の川。" * 9).encode()[:size])))
    assert hayakuchi("attribute", run, "-") == code
    assert ("standard input: over 30 bytes" in capfd.readouterr().err) == (code == 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told(run, capsys):
    assert hayakuchi("generate", run, "昔", "--max-tokens", 2, "--json", "/dev/full") == 2
    assert "/dev/full" in capsys.readouterr().err


def with_files_limited(words, size):
    """Runs a command in a process in which every write past a file size fails, as on a full disk."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}));"
        "from hayakuchi.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = map(str, words)
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


def test_a_disk_full_at_a_checkpoint_is_one_line(data, tmp_path):
    done = with_files_limited(["train", "ctrl-nano", tmp_path / "run", "--data", data, *TINY], 250_000)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"{tmp_path / 'run' / 'checkpoints'}: the checkpoint could not be written" in done.stderr
    assert len(done.stderr) < 400


def test_a_full_disk_while_preparing_leaves_nothing_behind(tmp_path):
    (tmp_path / "big.txt").write_text("\n".join(f"{number}番目の行に書かれた文である。" for number in range(40_000)))
    words = ["prepare", "text", str(tmp_path / "out"), "--source", f"plain:{tmp_path / 'big.txt'}", "--workers", "1"]
    done = with_files_limited(words, 300_000)
    assert done.returncode == 2, done.stderr
    assert str(tmp_path / "out") in done.stderr
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("words", [["generate", "{run}", "昔", "--max-tokens", "4"], ["attribute", "--help"]])
def test_output_survives_a_narrow_terminal_encoding(run, words):
    words = [word.format(run=run) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "hayakuchi", *words],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    assert "昔" in done.stdout.decode() or "拝啓" in done.stdout.decode()
