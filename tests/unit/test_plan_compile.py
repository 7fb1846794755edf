"""Asking a compiler in another process; no compiler is asked here."""

import dataclasses
import sys
from pathlib import Path

import pytest

from hayakuchi import runtime
from hayakuchi.plan import compile as module
from hayakuchi.plan.compile import CompilerError, compile_for, digest, remember, remembered
from hayakuchi.plan.cost import with_train
from hayakuchi.plan.devices import find_devices
from hayakuchi.plan.plan import make_plan
from hayakuchi.plan.worker import read_exhausted
from hayakuchi.recipes import CTRL_NANO

V3 = find_devices("v3-8")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAYAKUCHI_CACHE", str(tmp_path / "cache"))
    assert runtime.cache_folder() == tmp_path / "cache"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A stand-in for the process: what it is told to run in place of the worker; and how often it ran."""
    ran = tmp_path / "ran"

    def set_up(body: str) -> Path:
        package = tmp_path / "stand_in" / "hayakuchi_stand_in.py"
        package.parent.mkdir(exist_ok=True)
        package.write_text(
            "import json, sys, pathlib\n"
            "request = json.load(sys.stdin)\n"
            f"with open({str(ran)!r}, 'a') as file: file.write('x')\n" + body,
            encoding="utf-8",
        )
        monkeypatch.setattr(module, "_WORKER", [sys.executable, str(package)])
        return ran

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: object())
    return set_up


def answers(values: str) -> str:
    return f"pathlib.Path(request['answer']).write_text(json.dumps({values}))\n"


FITS = "dict(arguments=100, temporaries=50, outputs=100, aliased=90, program=1, seconds=2.5, kind='TPU v3')"


def test_an_answer_is_asked_for_once(compiler):
    ran = compiler(answers(FITS))
    first = compile_for(CTRL_NANO, V3)
    second = compile_for(CTRL_NANO, V3)
    assert ran.read_text() == "x"
    assert (first.needs, first.cached) == (160, False)
    assert second == dataclasses.replace(first, cached=True)
    compile_for(with_train(CTRL_NANO, batch=32), V3)
    assert ran.read_text() == "xx"


def test_the_worker_is_told_recipe_and_topology(compiler):
    compiler(
        "assert request['topology'] == 'v3:2x2' and request['devices'] == 8, request\n"
        "assert request['recipe']['model']['layers'] == 3\n" + answers(FITS)
    )
    assert compile_for(CTRL_NANO, V3).temporaries == 50


def test_what_does_not_fit_is_an_answer_too(compiler):
    compiler(
        answers("dict(needs=900, has=100, arguments=None, temporaries=900, largest=['1G f32[2]'], seconds=1, kind='')")
    )
    found = compile_for(CTRL_NANO, V3)
    assert (found.needs, found.has, found.largest) == (900, 100, ["1G f32[2]"])


def test_a_gpus_compiler_is_told_what_it_is_and_its_answer_is_approximate(compiler):
    compiler(
        "assert request['platform'] == 'gpu' and request['topology'] == '1x1x2', request\n"
        "assert 'core_count: 40' in request['target']\n" + answers(FITS)
    )
    plan = make_plan(CTRL_NANO, find_devices("t4x2"))
    assert plan["memory_source"] == "compiler, approximate"
    assert plan["memory_bytes"] == 160


def test_a_device_without_a_compiler_is_named(compiler):
    compiler(answers(FITS))
    with pytest.raises(CompilerError, match="no compiler for k80"):
        compile_for(CTRL_NANO, find_devices("k80"))


@pytest.mark.parametrize("body", ["sys.exit('the chip is on fire')\n", "print('the chip is on fire')\n"])
def test_a_compiler_that_fails_is_told_and_not_remembered(compiler, body):
    ran = compiler(body)
    for _ in range(2):
        with pytest.raises(CompilerError, match="the chip is on fire"):
            compile_for(CTRL_NANO, V3)
    assert ran.read_text() == "xx"


def test_without_a_compiler_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CompilerError, match="plan-tpu"):
        compile_for(CTRL_NANO, V3)


def test_a_compiler_that_takes_too_long_is_ended(compiler, monkeypatch):
    compiler("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 1)
    with pytest.raises(CompilerError, match="failed"):
        compile_for(CTRL_NANO, V3)


def test_a_name_stands_for_what_decides_a_program():
    name = digest(CTRL_NANO, "v3")
    assert digest(with_train(CTRL_NANO, steps=7, checkpoint_every=3, seed=1, log_every=2), "v3") == name
    assert digest(CTRL_NANO, "v2") != name
    for change in ({"batch": 32}, {"precision": "bfloat16"}, {"remat": "full"}, {"accumulate": 2}, {"mesh": "fsdp=8"}):
        assert digest(with_train(CTRL_NANO, **change), "v3") != name
    model = dataclasses.replace(CTRL_NANO.model, layers=4)
    assert digest(dataclasses.replace(CTRL_NANO, model=model), "v3") != name


def test_damaged_memory_is_forgotten(tmp_path):
    remember("a", {"x": 1})
    assert remembered("a") == {"x": 1}
    (tmp_path / "cache" / "plan" / "a.json").write_text("{", encoding="utf-8")
    assert remembered("a") is None
    (tmp_path / "cache" / "plan" / "a.json").write_text("[1]", encoding="utf-8")
    assert remembered("a") is None
    assert remembered("b") is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    (tmp_path / "cache").write_text("a file in the way", encoding="utf-8")
    remember("a", {"x": 1})
    assert remembered("a") is None


def test_temporaries_that_are_too_many_are_read():
    # What libtpu 0.0.42.1 says of ctrl-base at batch 65,536 on v3-8.
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (864.29G) "
        "exceeds available HBM (15.48G)."
    )
    found = read_exhausted(message)
    assert found["needs"] == found["temporaries"] == int(864.29 * 2**30)
    assert found["has"] == int(15.48 * 2**30)
    assert found["arguments"] is None


def test_a_full_account_is_read():
    message = """RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.50G of 15.48G hbm.
    Total hbm usage >= 18.00G:
        reserved        528.00M
        program          16.20G
        arguments         1.23G
    Program hbm requirement 16.20G:
        HLO temp         16.10G (99.1% utilization)
      Largest program allocations in hbm:
      1. Size: 1.50G
         Operator: op_name="jit(step)"
         Shape: bf16[64,256,49152]{2,1,0}
      2. Size: 512.0M
         Shape: f32[1024,131072]{1,0}
    """
    found = read_exhausted(message)
    assert found["needs"] == int(17.5 * 2**30)
    assert found["arguments"] == int(1.23 * 2**30)
    assert found["temporaries"] == int(16.1 * 2**30)
    assert found["largest"] == ["1.50G bf16[64,256,49152]", "512.0M f32[1024,131072]"]


def test_another_message_is_not_taken_for_an_answer():
    with pytest.raises(ValueError, match="not understood"):
        read_exhausted("RESOURCE_EXHAUSTED: too many open files")
