"""What `inspect` tells of programs that are written in less usual ways, and of states that it compares."""

import json

import pytest

from hayakuchi import cli
from hayakuchi.inspect.diff import diff
from hayakuchi.inspect.html import page
from hayakuchi.inspect.run import inspect_target
from hayakuchi.inspect.target import of_file

HEAD = "import jax, jax.numpy as jnp\nfrom functools import partial\n"
LOOP = "def f(x):\n    for i in range(40):\n        x = jnp.sin(x) + 1\n    return x\nexample_args = (jnp.ones(3),)\n"
NARROW = "b = jnp.ones((8, 8), jnp.bfloat16)\nexample_args = (b, {second})\n"


def looked_at(folder, source, name="example.py", encoding="utf-8"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(source.encode(encoding))
    return inspect_target(of_file(f"{path}:f"), compiled=False)


def of_kind(result, kind):
    return [each for each in result["findings"] if each["kind"] == kind]


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return jnp.stack([jnp.sin(x[i]) * 2 + 1 for i in range(32)])\nexample_args = (jnp.ones(32),)\n",
        LOOP.replace("range(40)", "range(32)").replace(
            "jnp.sin(x) + 1", "jax.lax.scan(lambda c, _: (jnp.sin(c) + 1, None), x, None, 4)[0]"
        ),
    ],
    ids=["comprehension", "lambda"],
)
def test_an_equation_in_a_function_inside_of_a_loop_counts_once(tmp_path, source):
    result = looked_at(tmp_path, HEAD + source)
    [found] = of_kind(result, "loop")
    assert "a Python loop unrolled 32 times: " in found["what"]
    assert 0.8 * result["equations"] < found["size"] <= result["equations"]


def test_a_function_that_a_loop_calls_keeps_its_own_loop(tmp_path):
    helper = "def g(x):\n    for j in range(5):\n        x = jnp.sin(x) + 1\n    return x\n"
    calling = "def f(x):\n    for i in range(8):\n        x = g(x)\n    return x\nexample_args = (jnp.ones(3),)\n"
    found = of_kind(looked_at(tmp_path, HEAD + helper + calling), "loop")
    assert {each["line"]: each["size"] for each in found} == {4: 80, 8: 80}


@pytest.mark.parametrize(
    ("before", "encoding", "line"),
    [("", "utf-8-sig", 4), ("\f\nS = 'a\fb'\n", "utf-8", 6), ("# coding: euc-jp\n", "euc-jp", 5)],
    ids=["byte order mark", "form feed", "euc-jp"],
)
def test_lines_are_those_that_python_counts_and_decodes(tmp_path, before, encoding, line):
    result = looked_at(tmp_path, before + HEAD + LOOP.replace("40):", "40):  # 一歩"), encoding=encoding)
    [found] = of_kind(result, "loop")
    assert (found["line"], found["text"]) == (line, "for i in range(40):  # 一歩")
    assert result["lines"][0]["text"] == "x = jnp.sin(x) + 1"
    assert "一歩" in page(result)


@pytest.mark.parametrize(
    ("second", "body", "what"),
    [
        ("b", "jax.jit(lambda a, c: a @ c)(x.astype(jnp.float32), w.astype(jnp.float32))", "what was bfloat16"),
        ("jnp.ones((8, 8))", "jnp.tanh(x.astype(jnp.float32) * 2) @ w", "what was bfloat16"),
        ("jnp.ones((8, 8))", "x @ w", "bfloat16 with float32"),
        ("jnp.ones((8, 8))", "(x.astype(jnp.float32) + w) @ w", None),
        ("b", "jnp.matmul(x, w, preferred_element_type=jnp.float32)", None),
        ("jnp.ones((8, 8))", "w @ w + x.astype(jnp.float32)", None),
        ("b", "jax.grad(lambda a: jnp.sum(jnp.matmul(a, w, preferred_element_type=jnp.float32)))(x)", None),
    ],
    ids=["inside jit", "after elementwise", "mixed", "mixed before", "asked for", "beside", "gradient"],
)
def test_products_of_what_was_narrow(tmp_path, second, body, what):
    source = f"{HEAD}def f(x, w):\n    return {body}\n{NARROW.format(second=second)}"
    found = of_kind(looked_at(tmp_path, source), "upcast")
    assert [each["line"] for each in found] == ([4] if what else [])
    assert all(what in each["what"] for each in found)


def test_a_shared_body_is_told_by_each_of_its_calls(tmp_path):
    source = (
        "@jax.jit\ndef g(a, c):\n    return a @ c\n"
        "def f(x, w):\n    wide = g(x.astype(jnp.float32), w)\n    return wide + g(w, w)\n"
    )
    [found] = of_kind(looked_at(tmp_path, HEAD + source + NARROW.format(second="jnp.ones((8, 8))")), "upcast")
    assert found["size"] == 4 * 64, "the second call has no narrow operand"


def test_what_is_widened_is_summed_by_line(tmp_path):
    source = "def f(x, w):\n    y = x.astype(jnp.float32)\n    return jnp.sum(y)\n"
    lines = looked_at(tmp_path, HEAD + source + NARROW.format(second="1.0"))["lines"]
    assert {line["line"]: line["widened_bytes"] for line in lines} == {4: 4 * 64, 5: 0}


@pytest.mark.parametrize(
    ("static", "call"), [("0", "(3, s, s)"), ("(0, 1)", "(3, 'a', s, s)"), ("1", "(2.0, 3, s, s)")]
)
def test_a_donation_counts_static_arguments(tmp_path, static, call):
    names = ", ".join(["a", "c", "state", "gradient"][4 - call.count(",") - 1 :])
    source = (
        f"@partial(jax.jit, static_argnums={static})\ndef f({names}):\n    return state - 0.1 * gradient\n"
        f"s = jnp.ones((600, 600))\nexample_args = {call}\n"
    )
    [found] = of_kind(looked_at(tmp_path, HEAD + source), "donation")
    assert found["cure"].startswith(f"jax.jit(..., donate_argnums={call.split(', ').index('s')}),")
    assert (found["line"], found["text"]) == (4, f"def f({names}):"), "the def, not its decorator"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("@jax.jit\n@partial(jax.named_call, name='n')\ndef f(x):\n    return x\n", 5),
        ("f = partial(lambda n, x: n * x, 2)\n", 3),
        ("class Model:\n    def __call__(self, x):\n        return x\nf = Model()\n", 4),
    ],
    ids=["decorated", "partial", "object"],
)
def test_a_retrace_is_told_at_the_definition(tmp_path, source, line):
    source = f"{HEAD}{source}example_args = [(jnp.ones(3),), (jnp.ones(4),)]\n"
    [found] = of_kind(looked_at(tmp_path, source), "retrace")
    assert (found["file"], found["line"]) == (str(tmp_path / "example.py"), line)


def test_a_loop_that_came_beside_another_is_new(tmp_path):
    second = "    for j in range(60):\n        x = jnp.cos(x) * 2\n    return x\n"
    before = looked_at(tmp_path / "old", HEAD + LOOP)
    after = looked_at(tmp_path / "new", HEAD + LOOP.replace("    return x\n", second))
    found = diff(before, after, "old")
    assert [each["line"] for each in found["new_findings"]] == [6]
    assert found["gone_findings"] == []
    assert [each["line"] for each in diff(after, before, "new")["gone_findings"]] == [6]


def test_a_loop_that_grew_is_changed(tmp_path):
    def source(rounds):
        return f"{HEAD}N = {rounds}\n{LOOP.replace('range(40)', 'range(N)')}"

    before, after = looked_at(tmp_path / "a", source(40)), looked_at(tmp_path / "b", source(80))
    for line in (*after["lines"], *after["findings"]):
        line["file"] = str(tmp_path / "checkout" / "example.py")
    found = diff(before, after, "old")
    [changed] = found["changed_findings"]
    assert "80 times" in changed["what"]
    assert "40 times" in changed["before"]
    assert found["new_findings"] == found["gone_findings"] == []
    [line] = found["lines"]
    assert (line["before"], line["after"]) == (80, 160), "the same file of another checkout"


LINE = {"file": "a", "line": 1, "function": "f", "text": "x", "equations": 1}
FINDING = {"kind": "loop", "file": "a", "line": 1, "what": "x", "cure": "y", "size": 1}


@pytest.mark.parametrize(
    "result",
    [
        {"lines": [LINE | {"equations": "many"}]},
        {"lines": [LINE | {"file": ["a"]}]},
        {"findings": [3]},
        {"findings": 5},
        {"findings": [{"kind": "loop"}]},
        {"findings": [FINDING | {"size": "large"}]},
        {"findings": [FINDING | {"text": 3}]},
        {"compile_seconds": "long"},
    ],
    ids=str,
)
def test_a_file_that_is_no_result_is_one_line(tmp_path, result, capsys):
    looked_at(tmp_path, HEAD + LOOP)
    other = tmp_path / "other.json"
    words = ["inspect", f"{tmp_path / 'example.py'}:f", "--no-compile", "--diff", str(other)]
    sound = {"equations": 1, "lines": [LINE], "findings": [FINDING], "compile_seconds": None}
    other.write_text(json.dumps(sound))
    assert cli.main(words) == 0
    capsys.readouterr()
    other.write_text(json.dumps(sound | result))
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "not a result of `hayakuchi inspect --json`" in said


def test_json_without_end_is_one_line(tmp_path, capsys):
    looked_at(tmp_path, HEAD + LOOP)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    words = ["inspect", f"{tmp_path / 'example.py'}:f", "--no-compile", "--diff", str(tmp_path / "deep.json")]
    assert cli.main(words) == 2
    assert "not JSON" in capsys.readouterr().err


def test_what_was_traced_is_told_where_the_compiler_fails(tmp_path, monkeypatch, capsys):
    def compile_apart(request, patience):
        raise RuntimeError("the compiler failed with 1: out of memory")

    monkeypatch.setattr("hayakuchi.inspect.run.compile_apart", compile_apart)
    looked_at(tmp_path, HEAD + LOOP)
    assert cli.main(["inspect", f"{tmp_path / 'example.py'}:f", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "a Python loop unrolled 40 times" in said.out
    assert "not compiled" in said.out
    assert "out of memory" in said.err
    assert "out of memory" in (tmp_path / "out" / "inspect.html").read_text(encoding="utf-8")


def test_what_is_no_recipe_is_told_both_ways(capsys):
    assert cli.main(["inspect", "example", "--no-compile"]) == 2
    said = capsys.readouterr().err
    assert "recipe 'example' is not known" in said
    assert "FILE.py:FUNCTION" in said
