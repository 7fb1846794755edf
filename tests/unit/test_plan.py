"""The verb `plan` as people and scripts use it."""

import json

import pytest

from hayakuchi import cli
from hayakuchi.data.shards import Counts, DatasetInfo
from hayakuchi.plan import measure as measure_module
from hayakuchi.plan.cost import cost_of, with_train
from hayakuchi.plan.devices import find_devices
from hayakuchi.plan.measure import after_training
from hayakuchi.plan.plan import make_plan
from hayakuchi.plan.shares import add_to_history, band, history, ideal_seconds
from hayakuchi.recipes import CTRL_NANO, VITS_NANO
from hayakuchi.text.codes import CodeBook


@pytest.fixture(autouse=True)
def _own_history(tmp_path, monkeypatch):
    monkeypatch.setattr("hayakuchi.plan.shares.history_path", lambda: tmp_path / "history.jsonl")


def plan(*words, capsys):
    code = cli.main(["plan", *map(str, words), "--json", "-"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def test_the_json_has_the_keys_of_the_contract(capsys):
    found = plan("ctrl-nano", "--device", "v3-8", "--no-compiler", capsys=capsys)
    assert found["fits"] is True
    assert 0 < found["memory_bytes"] < found["limit_bytes"]
    assert 0 < found["step_seconds"][0] < found["step_seconds"][1]
    assert found["days"][0] == pytest.approx(found["step_seconds"][0] * found["steps"] / 86_400)
    assert found["usd"]["on_demand"][0] == pytest.approx(found["days"][0] * 24 * 8.0)
    assert found["usd"]["spot"][0] < found["usd"]["on_demand"][0]
    assert found["memory_source"] == "estimate"
    assert found["price"]["date"]
    assert found["price"]["source"]


def test_a_batch_that_is_too_large_is_told_by_how_much(capsys):
    found = plan("ctrl-nano", "--device", "v3-8", "--batch", "1048576", "--no-compiler", capsys=capsys)
    assert found["fits"] is False
    assert found["memory_bytes"] > found["limit_bytes"]
    assert 0 < found["largest_batch"] < 1_048_576
    assert cli.main(["plan", "ctrl-nano", "--device", "v3-8", "--batch", "1048576", "--no-compiler"]) == 0
    assert "does not fit: needs" in capsys.readouterr().out


def test_the_largest_batch_fits_and_twice_it_does_not():
    device = find_devices("t4")
    largest = make_plan(with_train(CTRL_NANO, precision="float16"), device)["largest_batch"]
    here, twice = (
        cost_of(with_train(CTRL_NANO, precision="float16", batch=batch), device) for batch in (largest, 2 * largest)
    )
    assert here.memory <= device.limit_bytes
    assert twice.memory > device.limit_bytes


def test_wanted_batches_are_made_of_what_fits(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.02")
    found = make_plan(CTRL_NANO, find_devices("t4"))
    for wanted, parts in found["accumulation"].items():
        assert int(wanted) % parts == 0
        assert int(wanted) // parts <= found["largest_batch"]
    assert found["accumulation"]["1024"] > found["accumulation"]["256"] >= 1


def test_a_precision_that_the_device_lacks_is_replaced_and_told():
    found = make_plan(with_train(CTRL_NANO, precision="bfloat16"), find_devices("t4"))
    assert found["precision"] == "float16"
    assert any("no bfloat16" in note for note in found["notes"])


def test_two_devices_take_less_time_a_step_and_not_half():
    one, two = (make_plan(with_train(CTRL_NANO, batch=512), find_devices(name)) for name in ("t4", "t4x2"))
    assert one["step_seconds"][0] / 2 < two["step_seconds"][0] < one["step_seconds"][0]
    assert one["product_flops_per_step"] == pytest.approx(two["product_flops_per_step"], rel=0.01)


def test_a_voice_is_planned_too(capsys):
    found = plan("vits-nano", "--device", "a100", "--no-compiler", capsys=capsys)
    assert found["fits"]
    assert found["frames_per_second"][0] > 0
    assert found["accumulation"]["256"] in {1, None}


def test_a_data_set_decides_the_vocabulary(tmp_path, capsys):
    counts = {"train": {"story": Counts(1, 10**6, 1, 1)}, "heldout": {"story": Counts()}}
    DatasetInfo(CodeBook({"story": 1}), "", 5_000, "nfkc", (), counts).save(tmp_path / "dataset.json")
    small, large = (
        plan("ctrl-nano", "--device", "t4", *options, capsys=capsys)["parameters"]
        for options in ([], ["--data", tmp_path])
    )
    assert large - small == (5_000 - CTRL_NANO.model.vocabulary_size) * (CTRL_NANO.model.width + 1)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ctrl-nano", "--device", "t5"], "t4"),
        (["ctrl-nona"], "ctrl-nano"),
        (["ctrl-nano", "--device", "v3-8", "--batch", "12"], "multiple of devices"),
        (["ctrl-nano", "--device", "v3-8", "--mesh", "data=4"], "there are 8"),
        (["ctrl-nano", "--device", "t4", "--budget", "soon"], "--budget"),
        (["ctrl-nano", "--device", "t4", "--usd", "-5"], "--usd"),
        (["ctrl-nano", "--device", "t4", "--usd", "5"], "no price of t4"),
        (["vits-nano", "--device", "t4", "--budget", "14d"], "language models"),
        (["ctrl-nano", "--device", "t4", "--max-devices", "2"], "--budget or --usd"),
        (["ctrl-nano", "--device", "t4", "--budget", "1d", "--steps", "5"], "--steps"),
        (["ctrl-nano", "--device", "t4", "--budget", "1d", "--calibrate"], "--calibrate"),
        (["ctrl-nano", "--device", "t4", "--verify"], "this machine has"),
        (["ctrl-nano", "--device", "t4", "--prices", "none.toml"], "none.toml"),
        (["ctrl-nano", "--device", "t4", "--data", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(words, told, capsys):
    assert cli.main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_calibration_narrows_the_band(monkeypatch, capsys):
    cpu = find_devices("cpu")
    assumed = band(cpu, "ctrl", "float32")
    monkeypatch.setattr(measure_module, "CALIBRATION_SECONDS", 0.1)
    found = plan("ctrl-nano", "--calibrate", capsys=capsys)
    actual = found["actual"]
    assert actual["step_seconds"] > 0
    assert actual["steps"] >= 2
    after = band(cpu, "ctrl", "float32")
    assert after.measured == 1
    assert after.low < actual["share"] < after.high
    assert after.high / after.low < assumed.high / assumed.low
    assert len(history()) == 1


def test_many_measurements_narrow_it_more():
    cpu = find_devices("cpu")
    widths = []
    for _ in range(4):
        add_to_history(cpu, "r", "ctrl", "float32", ideal=0.5, actual=1.0)
        found = band(cpu, "ctrl", "float32")
        widths.append(found.high / found.low)
    assert widths == sorted(widths, reverse=True)
    assert band(cpu, "vits", "float32").measured == 0
    assert band(find_devices("t4"), "ctrl", "float32").measured == 0


def test_a_damaged_history_is_passed_over(tmp_path):
    cpu = find_devices("cpu")
    add_to_history(cpu, "r", "ctrl", "float32", ideal=0.5, actual=1.0)
    path = tmp_path / "history.jsonl"
    with path.open("ab") as file:
        file.write(b'{"share": "much"}\n[]\n\xff\xfe\n{"share": 0.5}\n' + b"x" * 10_000 + b"\n")
    add_to_history(cpu, "r", "ctrl", "float32", ideal=0.5, actual=1.0)
    assert len(history()) == 2


def summary_of_training(**changes):
    devices = {"platform": "cpu", "kind": "cpu", "count": 1, "processes": 1}
    return {"steps": 100, "first_step": 0, "seconds": 50.0, "devices": devices, **changes}


def test_training_tells_planned_against_actual():
    found = after_training(CTRL_NANO, summary_of_training())
    assert found["actual_step_seconds"] == 0.5
    assert found["step_seconds"][0] < found["step_seconds"][1]
    [entry] = history()
    cpu = find_devices("cpu")
    assert entry["share"] == pytest.approx(ideal_seconds(cost_of(CTRL_NANO, cpu), cpu, "float32") / 0.5)


def test_a_voices_batches_count_by_their_frames():
    usual = VITS_NANO.train.batch * 400 * 100
    whole, half = (
        after_training(VITS_NANO, summary_of_training(frames=frames))["step_seconds"][0]
        for frames in (usual, usual // 2)
    )
    # The second is planned with what the first has taught: the same share.
    assert half < whole
    shares = [entry["share"] for entry in history()]
    assert shares[1] == pytest.approx(shares[0] / 2)


@pytest.mark.parametrize("changes", [{"steps": 5}, {"seconds": 3.0}, {"first_step": 100}])
def test_a_short_training_teaches_nothing(changes):
    assert after_training(CTRL_NANO, summary_of_training(**changes)) is None
    assert history() == []


def test_an_unknown_device_teaches_nothing():
    devices = {"platform": "gpu", "kind": "Gaudi", "count": 1, "processes": 1}
    assert after_training(CTRL_NANO, summary_of_training(devices=devices)) is None
