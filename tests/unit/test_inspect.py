"""`inspect`: what a program is made of, by source line, and what is likely not meant in it."""

import json
import re

import jax
import pytest

from hayakuchi import cli
from hayakuchi.errors import UserError
from hayakuchi.inspect.diff import diff
from hayakuchi.inspect.html import Box, squarify
from hayakuchi.inspect.loops import repeats_of
from hayakuchi.inspect.run import inspect_target, read_result
from hayakuchi.inspect.target import is_file, of_file, of_recipe
from hayakuchi.plan.compile import Compilation, CompilerError
from hayakuchi.recipes import find_recipe

EXAMPLES = '''"""書いてみた例。"""
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P

TABLE = np.ones((2_500, 5_000), np.float32)
MESH = Mesh(np.array(jax.devices()[:1]), "data")


def gru(x, w):
    h = jnp.zeros(8)
    out = []
    for t in range(128):  # 一歩ずつ
        gate = jax.nn.sigmoid(x[t] @ w + h)
        h = gate * jnp.tanh(h) + (1 - gate) * h
        out.append(h)
    return jnp.sum(jnp.stack(out))


def gru_gradient(x, w):
    return jax.grad(gru, argnums=1)(x, w)


def segments(x, starts):
    rows = []
    for i in range(x.shape[0]):
        row = jax.lax.dynamic_slice(x[i], (starts[i],), (4,))
        rows.append(jnp.pad(row, (0, 12)))
    return jnp.stack(rows)


def layers(x, ws):
    for w in ws:
        x = jnp.tanh(x @ w) * 2 + 1
    return x


def lookup(i):
    return jnp.asarray(TABLE)[i] * 2


def scaled(x, scale):
    return x * scale


def widened(x, w):
    return x.astype(jnp.float32) @ w.astype(jnp.float32)


def told(x):
    jax.debug.print("{}", x[0])
    return x


def summed(x):
    total = jax.shard_map(lambda v: jax.lax.psum(v, "data"), mesh=MESH, in_specs=P("data"), out_specs=P())
    return total(x)


def updated(state, gradient):
    return state - 0.1 * gradient


def divided(x):
    return jnp.exp(x) / (x - x)


def fails(x):
    return x @ jnp.ones(3)


example_args = {
    "gru": (jnp.ones((128, 8)), jnp.ones((8, 8))),
    "gru_gradient": (jnp.ones((128, 8)), jnp.ones((8, 8))),
    "segments": (jnp.ones((32, 16)), jnp.zeros(32, jnp.int32)),
    "layers": (jnp.ones(4), [jnp.ones((4 + i, 5 + i)) for i in range(12)]),
    "lookup": (3,),
    "scaled": lambda: [(jnp.ones(3), 1.0), (jnp.ones(3), 2.0), (jnp.ones(3), jnp.float32(2)), (jnp.ones(5), 1.0)],
    "widened": (jnp.ones((8, 8), jnp.bfloat16), jnp.ones((8, 8), jnp.bfloat16)),
    "told": (jnp.ones(3),),
    "summed": (jnp.ones(8),),
    "updated": (jnp.ones((600, 600)), jnp.ones((600, 600))),
    "divided": (jnp.arange(3.0),),
    "fails": (jnp.ones(4),),
    "nothing": (),
}
'''


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect") / "例.py"
    path.write_text(EXAMPLES, encoding="utf-8")
    return path


def looked_at(path, function, **options):
    return inspect_target(of_file(f"{path}:{function}"), compiled=False, **options)


def of_kind(result, kind):
    return [each for each in result["findings"] if each["kind"] == kind]


def line_of(text):
    [number] = [number for number, line in enumerate(EXAMPLES.splitlines(), 1) if text in line]
    return number


def test_an_unrolled_loop_is_named_with_its_rounds_and_its_cure(examples):
    result = looked_at(examples, "gru")
    [found] = of_kind(result, "loop")
    assert (found["file"], found["line"]) == (str(examples), line_of("for t in range(128)"))
    assert re.match(r"128 x 1\d(\.\d)? equations: a Python loop unrolled 128 times", found["what"])
    assert "jax.lax.scan" in found["cure"]
    assert "pad" not in found["cure"]
    first = result["lines"][0]
    assert first["line"] in (line_of("gate = "), line_of("h = gate"))
    assert first["repeats"] == 128
    assert result["coverage"] == 1


def test_a_gradient_is_told_forward_and_backward(examples):
    result = looked_at(examples, "gru_gradient")
    [found] = of_kind(result, "loop")
    told = re.match(r"128 x ([\d.]+) equations forward \+ 128 x ([\d.]+) equations backward", found["what"])
    assert float(told[1]) > 5
    assert float(told[2]) > 5
    assert result["forward"] + result["backward"] > 0.99 * result["equations"]


def test_a_loop_that_pads_row_by_row(examples):
    [found] = of_kind(looked_at(examples, "segments"), "loop")
    assert found["line"] == line_of("for i in range(x.shape[0])")
    assert "unrolled 32 times" in found["what"]
    assert "pad once and mask" in found["cure"]


def test_a_loop_over_shapes_that_differ_is_not_told_to_scan(examples):
    [found] = of_kind(looked_at(examples, "layers"), "loop")
    assert found["line"] == line_of("for w in ws")
    assert "the shapes differ" in found["cure"]


def test_a_captured_constant_is_named_where_it_is_used(examples):
    [found] = of_kind(looked_at(examples, "lookup"), "constant")
    assert (found["file"], found["line"]) == (str(examples), line_of("jnp.asarray(TABLE)"))
    assert "50.0 MB (float32[2500, 5000])" in found["what"]
    assert "as an argument" in found["cure"]


def test_calls_that_are_traced_anew_are_told_apart(examples):
    result = looked_at(examples, "scaled")
    assert result["traces"] == 3, "1.0 and 2.0 are one trace"
    weak, longer = of_kind(result, "retrace")
    assert (weak["file"], weak["line"]) == (str(examples), line_of("def scaled"))
    assert "scale: float32[] (weak type) -> float32[]" in weak["what"]
    assert "jnp.float32(x)" in weak["cure"]
    assert "x: float32[3] -> float32[5]" in longer["what"]
    assert "pad" in longer["cure"]


def test_a_static_value_that_changes_is_told(examples):
    path = examples.with_name("static.py")
    path.write_text(
        "import jax, jax.numpy as jnp\nfrom functools import partial\n"
        "@partial(jax.jit, static_argnames=('kind', 'n'))\ndef f(x, n, kind):\n    return x * n\n"
        "example_args = [(jnp.ones(2), 3, 'a'), (jnp.ones(2), 3, 'a'), (jnp.ones(2), 4, 'a'), (jnp.ones(2), 3, 'b')]\n"
    )
    result = looked_at(path, "f")
    assert result["traces"] == 3
    number, kind = of_kind(result, "retrace")
    assert "n: static 3 -> static 4" in number["what"]
    assert "kind: static 'a' -> static 'b'" in kind["what"]
    assert "pass it as an array" in number["cure"]


@pytest.mark.parametrize(
    ("function", "kind", "text", "what"),
    [
        ("widened", "upcast", "x.astype(jnp.float32) @", "of what was bfloat16"),
        ("told", "callback", "jax.debug.print", "debug_callback|debug_print"),
        ("summed", "collective", "jax.lax.psum", "psum"),
        ("updated", "donation", "def updated", r"argument 0 \(1.4 MB\)"),
    ],
)
def test_what_is_likely_not_meant(examples, function, kind, text, what):
    [found] = of_kind(looked_at(examples, function), kind)
    assert (found["file"], found["line"]) == (str(examples), line_of(text))
    assert re.search(what, found["what"])


def test_float64_is_named(examples):
    with jax.enable_x64(True):
        path = examples.with_name("double.py")
        path.write_text("import numpy as np\ndef f(x):\n    return x * np.arange(3.0)\nexample_args = (np.ones(3),)\n")
        [found] = of_kind(looked_at(path, "f"), "float64")
    assert found["line"] == 3


def test_a_donated_argument_is_no_finding(examples):
    path = examples.with_name("donated.py")
    path.write_text(
        "import jax, jax.numpy as jnp\nfrom functools import partial\n"
        "@partial(jax.jit, donate_argnums=0)\ndef f(x):\n    return x + 1\nexample_args = (jnp.ones((600, 600)),)\n"
    )
    assert not of_kind(looked_at(path, "f"), "donation")


def test_the_first_line_that_is_not_finite(examples):
    found = looked_at(examples, "divided", numerics=True)["numerics"]
    assert found["culprits"][0]["place"]["line"] == line_of("jnp.exp(x) /")
    assert found["culprits"][0]["place"]["file"] == str(examples)


def test_a_recipe_is_told_by_our_lines():
    result = inspect_target(of_recipe(find_recipe("ctrl-nano")))
    assert result["coverage"] >= 0.99
    assert sum(line["equations"] for line in result["lines"]) == result["equations"]
    assert result["forward"] > 100
    assert result["backward"] > 100
    assert all("/hayakuchi/" in line["file"] for line in result["lines"][:20])
    assert result["hlo_instructions"] > 1_000
    assert result["memory"]["peak"] > 1e6
    assert [buffer for buffer in result["buffers"] if buffer["file"].endswith(".py") and buffer["line"]]
    assert result["buffers"] == sorted(result["buffers"], key=lambda buffer: -buffer["bytes"])


def test_a_voice_is_told_by_our_lines():
    result = inspect_target(of_recipe(find_recipe("vits-nano")), compiled=False)
    assert result["coverage"] >= 0.99
    assert any(each["file"].endswith("discriminators.py") for each in of_kind(result, "loop"))


@pytest.mark.parametrize(
    ("needs", "told"), [(3 << 30, "v3-8: fits, needs 3.00 of 15.48 GiB"), (1 << 40, "does not fit")]
)
def test_a_recipe_is_compiled_for_a_device_that_is_not_there(needs, told, monkeypatch, capsys):
    asked = []

    def compile_for(recipe, devices):
        asked.append((recipe.train.precision, devices.name))
        return Compilation(1 << 30, needs - (1 << 30), needs, seconds=12.0, largest=["2.0G f32[8]"])

    monkeypatch.setattr("hayakuchi.inspect.run.compile_for", compile_for)
    assert cli.main(["inspect", "ctrl-nano", "--device", "v3-8", "--precision", "bfloat16", "--no-compile"]) == 0
    said = capsys.readouterr().out
    assert told in said
    assert "2.0G f32[8]" in said
    assert asked == [("bfloat16", "v3-8")]


def test_a_compiler_that_is_not_there_is_told(monkeypatch, capsys):
    def compile_for(recipe, devices):
        raise CompilerError("libtpu is not installed")

    monkeypatch.setattr("hayakuchi.inspect.run.compile_for", compile_for)
    assert cli.main(["inspect", "ctrl-nano", "--device", "v3-8", "--no-compile"]) == 2
    assert "--device v3-8: libtpu is not installed" in capsys.readouterr().err


def test_a_compile_that_does_not_end_is_given_up(examples, capsys):
    assert cli.main(["inspect", f"{examples}:gru", "--patience", "0.01", "--top", "1"]) == 0
    said = capsys.readouterr().out
    assert "not compiled within 0 s" in said
    assert "unrolled 128 times" in said


def test_what_changed_between_two_states(examples, tmp_path):
    before = looked_at(examples, "gru")
    moved = tmp_path / examples.name
    moved.write_text("\n\n" + EXAMPLES.replace("range(128)", "range(64)"), encoding="utf-8")
    after = looked_at(moved, "gru")
    for result in (before, after):  # the same file, edited
        for each in (*result["lines"], *result["findings"]):
            each["file"] = "例.py"
    found = diff(before, after, "old.json")
    assert found["figures"]["equations"] == [before["equations"], after["equations"]]
    changed = {line["text"]: (line["before"], line["after"]) for line in found["lines"]}
    gate = next(text for text in changed if text.startswith("gate = "))
    assert changed[gate][0] == 2 * changed[gate][1]
    assert "h = jnp.zeros(8)" not in changed
    assert diff(before, before, "same")["lines"] == []


def test_the_command_line_writes_everything(examples, tmp_path, capsys):
    words = ["inspect", f"{examples}:gru", "--no-compile", "--out", str(tmp_path / "a")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "a Python loop unrolled 128 times: for t in range(128):  # 一歩ずつ" in said
    assert re.search(r"line +equations +share +forward +backward +repeats +primitives +source", said)
    page = (tmp_path / "a" / "inspect.html").read_text(encoding="utf-8")
    assert "一歩ずつ" in page
    assert "書いてみた例" in page
    assert not re.search(r"(https?:)?//\w|src=|@import|<script", page), "the page needs a network"
    assert cli.main([*words[:2], "--no-compile", "--diff", str(tmp_path / "a" / "inspect.json"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["diff"]["lines"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "name a recipe or FILE.py:FUNCTION"),
        ("nothing.py:f", "there is no such file"),
        ("{examples}", "which function of it"),
        ("{examples}:grew", "has no function 'grew'; it has"),
        ("{examples}:TABLE", "has no function 'TABLE'"),
        ("{examples}:squeezed", "has no function"),
        ("{examples}:fails", "例.py:70: TypeError"),
        ("{broken}:f", "broken.py:2: ZeroDivisionError"),
        ("{bare}:f", "gives no arguments: write `example_args"),
        ("{wrong}:f", "must be a tuple of the arguments"),
        ("{few}:f", "TypeError"),
        ("gru", "recipe 'gru' is not known"),
        ("{examples}:gru --device v3-8", "compiles a recipe's step"),
        ("{examples}:gru --batch 3", "are of recipes"),
        ("{examples}:gru --top 0", "--top 0"),
        ("{examples}:gru --diff {examples}", "not JSON"),
        ("{examples}:gru --diff {other}", "not a result of"),
        ("ctrl-nano --numerics", "runs a function of a file"),
        ("--replay {examples}", "not a step that `train` kept"),
    ],
)
def test_a_mistake_is_one_line(examples, words, message, capsys):
    files = {
        "broken": "x = 1\ny = x / 0\n",
        "bare": "def f(x): return x\n",
        "wrong": "def f(x): return x\nexample_args = 3\n",
        "few": "def f(x, y): return x\nexample_args = (1,)\n",
    }
    for name, content in files.items():
        (examples.parent / f"{name}.py").write_text(content)
    (examples.parent / "other.json").write_text('{"lines": 3}')
    paths = {name: examples.parent / f"{name}.py" for name in files}
    words = words.format(examples=examples, other=examples.parent / "other.json", **paths)
    assert cli.main(["inspect", *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_repeats_are_what_most_equations_share():
    assert repeats_of("abc" * 200) == 200
    assert repeats_of("x" + "abc" * 200 + "yz") == 200
    assert repeats_of("aab" * 50) == 50, "twice a round"
    assert repeats_of("abc" * 199 + "ab") == 199 or repeats_of("abc" * 199 + "ab") == 200
    assert repeats_of("abcdef") == 1
    assert repeats_of("") == 1


@pytest.mark.parametrize("sizes", [[1.0], [6.0, 6, 4, 3, 2, 2, 1], [1e6, *[1.0] * 50]])
def test_the_treemap_fills_its_box(sizes):
    boxes = squarify(sizes, Box(0, 0, 600, 400))
    areas = [box.width * box.height for box in boxes]
    assert sum(areas) == pytest.approx(600 * 400)
    for area, size in zip(areas, sizes, strict=True):
        assert area == pytest.approx(size / sum(sizes) * 240_000)
    assert all(box.x + box.width <= 600 + 1e-6 and box.y + box.height <= 400 + 1e-6 for box in boxes)


def test_files_and_recipes_are_told_apart():
    assert is_file("a/b.py:f")
    assert is_file("b.py")
    assert not is_file("ctrl-nano")
    assert not is_file("a/recipe.json")


def test_a_result_is_read_back(tmp_path):
    with pytest.raises(UserError, match="cannot read it"):
        read_result(tmp_path / "none.json")
