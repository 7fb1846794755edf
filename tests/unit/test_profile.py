"""`--profile`: which steps are taken, and whose time is whose."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from hayakuchi.errors import UserError
from hayakuchi.tracing.hlo import instructions, module_of
from hayakuchi.train.profile import Profiler, operation_times, summed
from hayakuchi.train.train_ctrl import train_ctrl
from helpers import random_dataset, tiny_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return random_dataset(tmp_path_factory.mktemp("dataset"))


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_profile_names_modules_and_changes_no_number(tmp_path, data, capsys):
    plain, profiled = tmp_path / "plain", tmp_path / "profiled"
    train_ctrl(tiny_recipe(steps=8), plain, data)
    train_ctrl(tiny_recipe(steps=8, profile=3), profiled, data)
    for one, other in zip(lines_of(plain), lines_of(profiled), strict=True):
        for name in ("loss", "gradient_norm", "tokens"):
            assert one.get(name) == other.get(name)
    assert list((profiled / "profile").rglob("*.xplane.pb"))
    assert list((profiled / "profile").rglob("perfetto_trace.json.gz"))
    found = json.loads((profiled / "profile" / "sinks.json").read_text())
    assert found["steps"] == 3
    for kind in ("modules", "operations"):
        assert sum(sink["share"] for sink in found[kind]) == pytest.approx(1)
        assert sum(sink["milliseconds"] for sink in found[kind]) == pytest.approx(found["milliseconds"])
    names = {(sink["name"], sink["direction"]) for sink in found["modules"]}
    assert {("ctrl/blocks/0", "forward"), ("ctrl/blocks/1", "backward")} <= names
    assert any(sink["file"].endswith("ops.py") and sink["line"] for sink in found["operations"])
    said = capsys.readouterr().err
    assert "profile of 3 steps" in said
    assert "ctrl/blocks/0" in said


def test_a_run_that_is_shorter_than_its_profile_tells_what_there_is(tmp_path, data):
    train_ctrl(tiny_recipe(steps=4, profile=50), tmp_path / "run", data)
    assert json.loads((tmp_path / "run" / "profile" / "sinks.json").read_text())["steps"] == 2


def test_a_resumed_run_may_be_profiled(tmp_path, data):
    train_ctrl(tiny_recipe(steps=3), tmp_path / "run", data)
    train_ctrl(tiny_recipe(steps=3, profile=2), tmp_path / "run", data)
    assert not (tmp_path / "run" / "profile").exists(), "there was no step to take"


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    profiler = Profiler(tmp_path / "file", 1, [], None)
    for _ in range(2):
        profiler.before()
        profiler.after({})
    with pytest.raises(UserError, match="file/profile: cannot take a profile there"):
        profiler.before()


def plane(name, *lines):
    return SimpleNamespace(name=name, lines=[SimpleNamespace(name="line", events=events) for events in lines])


def event(op, start, duration, module="jit_step", **stats):
    told = {"hlo_op": op, "hlo_module": module, "program_id": 7, **stats} if op else stats
    name = op or stats.pop("name", "")
    return SimpleNamespace(name=name, start_ns=start, duration_ns=duration, stats=list(told.items()))


def times(*planes):
    found = {}
    for program, name, time in operation_times(planes):
        assert program == "7"
        found[name] = found.get(name, 0) + time
    return found


def test_time_inside_an_operation_is_not_its_own():
    nested = [event("while", 0, 100), event("dot", 10, 30), event("add", 50, 20), event("dot", 120, 5)]
    nested.append(event(None, 0, 999))
    other = [event("dot", 0, 7), event("fusion", 0, 50, "jit_held_out")]
    assert times(plane("/host:CPU", nested, other)) == {"while": 50, "dot": 42, "add": 20}


def test_work_that_goes_on_after_its_event_counts_but_for_what_else_the_thread_does():
    line = [event("dot", 0, 2, _p=5), event("add", 10, 20), event("mul", 90, 30)]
    ends = [event(None, 100, 1, name="end: dot", _c=5), event(None, 300, 1, name="end: other", _c=6)]
    assert times(plane("/host:CPU", line, ends)) == {"dot": 101 - 20 - 11, "add": 20, "mul": 30}


def test_a_device_goes_before_the_hosts_threads():
    planes = [plane("/host:CPU", [event("copy", 0, 9)]), plane("/device:GPU:0", [event("fusion", 0, 4)])]
    assert times(*planes) == {"fusion": 4}
    assert times(plane("/device:GPU:0", []), planes[0]) == {"copy": 9}


MUL = 'metadata={op_name="jit(step)/transpose(jvp(ctrl))/blocks/0/jit(_where)/mul" stack_frame_id=1}'
HLO = """HloModule jit_step

FileNames
1 "model.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=2 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%fused (p: f32[8]) -> f32[8] {
  ROOT %tanh.1 = f32[8]{0} tanh(%p), metadata={op_name="jit(step)/jvp(ctrl)/blocks/0/tanh" stack_frame_id=1}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %fusion = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, METADATA
}
""".replace("METADATA", MUL)


def test_instructions_know_their_line_and_module():
    tanh, argument, fusion = instructions(HLO)
    assert (tanh.file, tanh.line, tanh.computation, tanh.bytes) == ("model.py", 12, "fused", 32)
    assert module_of(tanh.operation) == (("ctrl", "blocks", "0"), "forward")
    assert module_of(fusion.operation) == (("ctrl", "blocks", "0"), "backward")
    assert (argument.opcode, argument.file, argument.line) == ("parameter", "", 0)
    known = {each.name: each for each in instructions(HLO)}
    spent = {("1", "fusion"): 3e6, ("1", "tanh.1"): 1e6, ("1", "unknown"): 4e6}
    found = summed(spent, [{}, known], 2)
    assert found["milliseconds"] == 4
    modules = {(sink["name"], sink["direction"]): sink["share"] for sink in found["modules"]}
    assert modules == {
        ("(no module)", "other"): 0.5,
        ("ctrl/blocks/0", "backward"): 0.375,
        ("ctrl/blocks/0", "forward"): 0.125,
    }
    assert np.isclose(sum(sink["share"] for sink in found["operations"]), 1)


def test_two_compiled_steps_are_not_mixed_up():
    here, there = instructions(HLO)[:2], instructions(HLO.replace("blocks/0", "blocks/1"))
    texts = [{each.name: each for each in here}, {each.name: each for each in there}]
    spent = {("1", "tanh.1"): 1e6, ("2", "tanh.1"): 1e6, ("2", "fusion"): 2e6}
    found = summed(spent, texts, 1)
    shares = {sink["name"]: 0.0 for sink in found["modules"]}
    for sink in found["modules"]:
        shares[sink["name"]] += sink["share"]
    assert shares == {"ctrl/blocks/0": 0.25, "ctrl/blocks/1": 0.75}


def test_a_loop_is_no_work_of_its_own():
    loop = HLO.replace("fusion(%x), kind=kLoop, calls=%fused", "while(%x), condition=%c, body=%fused")
    texts = [{each.name: each for each in instructions(loop)}]
    found = summed({("1", "fusion"): 5e6, ("1", "tanh.1"): 1e6}, texts, 1)
    assert [sink["name"] for sink in found["modules"]] == ["ctrl/blocks/0"]
    assert found["milliseconds"] == 1


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("jit(step)/jvp(ctrl)/blocks/0/attention/bhts,bshk->bthk/dot_general", "ctrl/blocks/0/attention"),
        (
            "jit(step)/transpose(jvp(ctrl))/blocks/0/jvp(ctrl)/blocks/0/rematted_computation/dense/mul",
            "ctrl/blocks/0/dense",
        ),
        ("jit(step)/jvp(vits)/Vits.noise/jit(_normal)/jit(_normal_real)/mul", "vits"),
        ("jit(step)/optimizer/generator/mul", "optimizer/generator"),
        ("jit(step)/jvp()/while/body/decoder/add", "decoder"),
        ("", ""),
    ],
)
def test_paths_of_operations(operation, expected):
    assert "/".join(module_of(operation)[0]) == expected


def test_a_session_too_short_for_a_profile_says_so(tmp_path, data, capsys):
    train_ctrl(tiny_recipe(steps=2, profile=5), tmp_path / "run", data)
    assert "no profile: it begins with step 3 of a session, this one had 2" in capsys.readouterr().err
