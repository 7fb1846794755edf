"""`bench`: the grid, the turns, what is reported, and that one bad variant does not cost the others."""

import collections
import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest

from hayakuchi import cli, config
from hayakuchi.bench import measure, run
from hayakuchi.bench.axes import label, parse_axes, variants
from hayakuchi.bench.memory import largest_multiple, memory_limit, parse_bytes
from hayakuchi.bench.report import table
from hayakuchi.bench.run import BenchOptions, run_bench
from hayakuchi.bench.work import fitted, heaviest, make_work
from hayakuchi.config import DistillationConfig, TrainConfig
from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.speech_files import Clip, write_shard
from hayakuchi.data.speech_shards import SPLIT_LETTERS, ShardEntry, SpeechCounts, SpeechInfo
from hayakuchi.errors import UserError
from hayakuchi.evaluate import charts
from hayakuchi.recipes import CTRL_NANO, VITS_JVS, VITS_NANO
from hayakuchi.speech.symbols import INVENTORY
from helpers import random_dataset
from helpers import tiny_recipe as two_layers
from vits_models import SMALL_AUDIO, small_config

QUICK = BenchOptions(rounds=2, seconds=0.01)


def tiny_recipe(**train):
    """One layer, since most of the time here is the compiler's."""
    recipe = two_layers(**train)
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, layers=1))


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch):
    """One small product in place of the largest that the machine does in a second."""
    monkeypatch.setattr("hayakuchi.bench.probe._SIZES", (256,))


@pytest.fixture(autouse=True, scope="module")
def _quick_compiler():
    """The compiler need not try hard for programs that run a few times."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def grid(recipe, *words):
    axes = parse_axes(recipe, words)
    return axes, variants(recipe, axes)


# The grid


def test_every_combination_is_a_variant():
    axes, cells = grid(tiny_recipe(), "precision=float32,bfloat16", "batch=4,8,16", "layers=3")
    assert [label(cell, axes) for cell in cells[:2]] == ["precision=float32 batch=4", "precision=float32 batch=8"]
    found = [(cell.recipe.train.precision, cell.recipe.train.batch, cell.recipe.model.layers) for cell in cells]
    assert found == [(precision, batch, 3) for precision in ("float32", "bfloat16") for batch in (4, 8, 16)]
    assert cells[4].settings == {"precision": "bfloat16", "batch": "8", "layers": "3"}


@pytest.mark.parametrize(
    ("recipe", "word", "field", "values"),
    [
        (CTRL_NANO, "scan_layers=true,False", "scan_layers", [True, False]),
        (CTRL_NANO, "scan-layers=true", "scan_layers", [True]),
        (CTRL_NANO, "dropout=0,1e-1", "dropout", [0.0, 0.1]),
        (CTRL_NANO, "optimizer=adamw,muon", "optimizer", ["adamw", "muon"]),
        (CTRL_NANO, "mesh=data=2,data=1+fsdp=2", "mesh", ["data=2", "data=1,fsdp=2"]),
        (VITS_NANO, "upsample_rates=4+4,8+2", "upsample_rates", [(4, 4), (8, 2)]),
        (VITS_JVS, "mel_bins=80,40", "mel_bins", [80, 40]),
    ],
)
def test_values_have_the_type_of_their_field(recipe, word, field, values):
    axes, cells = grid(recipe, word)
    sections = [config.to_dict(cell.recipe) for cell in cells]
    for name in axes[0].path:
        sections = [section[name] for section in sections]
    assert axes[0].path[-1] == field
    assert sections == values
    assert [type(one) for one in sections] == [type(one) for one in values]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["precison=float32"], "did you mean precision"),
        (["precision=float23"], "did you mean float32"),
        (["precision"], "no value; write precision=V1,V2"),
        (["precision="], "no value"),
        (["precision=float32,"], "'' is not one of its values"),
        (["batch=eight"], "'eight' is not a whole number"),
        (["dropout=some"], "'some' is not a number"),
        (["scan_layers=yes"], "neither true nor false"),
        (["batch=4", "batch=8"], "named twice"),
        (["teacher=runs/large"], "has no field 'teacher'"),
        (["ｂａｔｃｈ=4,\ud800"], "has no field"),
        (["batch=" + ",".join(map(str, range(1, 66)))], "65 variants"),
    ],
)
def test_a_bad_axis_is_named(words, told):
    with pytest.raises(UserError) as error:
        grid(tiny_recipe(), *words)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_lists_of_lists_cannot_be_written():
    with pytest.raises(UserError, match="lists of lists"):
        grid(VITS_NANO, "resblock_dilations=1+2")


def test_settings_that_do_not_go_together_are_a_variant_that_fails():
    _, cells = grid(two_layers(), "sharing=none,all", "sharing_groups=1,2")
    assert [cell.recipe is None for cell in cells] == [False, True, False, False]
    assert "sharing_groups" in cells[1].failure


# Turns


def test_rounds_take_the_variants_in_changing_orders():
    """Each once a round; over many rounds each is first as often as any other, and after any other."""
    orders = [measure.order([2, 0, 1, 3], number) for number in range(200)]
    assert orders[0] == [2, 0, 1, 3]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    firsts = collections.Counter(order[0] for order in orders)
    followers = collections.Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert min(firsts.values()) > 30
    assert len(followers) == 12
    assert min(followers.values()) > 30


def test_variants_have_their_turns_interleaved(monkeypatch):
    """Not all turns of one and then all of the next; and of each state nothing is left when the next is made."""
    seen = []
    true_slice = measure.time_slice

    def watched(program, number, seconds):
        held = sum(array.nbytes for array in jax.live_arrays())
        seen.append((number, program.recipe.model.width, held))
        return true_slice(program, number, seconds)

    monkeypatch.setattr(measure, "time_slice", watched)
    result = run_bench(tiny_recipe(), ["width=16,32"], BenchOptions(rounds=3, seconds=0.01))
    assert [number for number, _, _ in seen] == [0, 0, 1, 1, 2, 2]
    widths = [[16, 32][index] for order in result["orders"] for index in order]
    assert [width for _, width, _ in seen] == widths
    assert max(held for _, _, held in seen) - seen[0][2] < 4 * result["variants"][0]["parameters"]


def test_a_turn_takes_steps_for_its_time():
    recipe = tiny_recipe()
    program = measure.compile_variant(recipe, make_work(recipe, None))
    assert len(measure.time_slice(program, 0, 0.0)) == 1
    steps = measure.time_slice(program, 1, 0.3)
    assert len(steps) > 3
    # All tokens but the last of each window have a next one.
    assert {step.units for step in steps} == {4 * 15}
    assert all(0 <= step.waiting <= step.seconds for step in steps)


# Results


@pytest.fixture(scope="module")
def result():
    return run_bench(two_layers(), ["precision=float32,bfloat16", "sharing=none,all"], QUICK)


def test_each_variant_is_measured(result):
    rows = result["variants"]
    assert [row["failure"] for row in rows] == [None] * 4
    assert result["unit"] == "tokens"
    assert result["reference"] == rows[0]["label"] == "precision=float32 sharing=none"
    assert set(result["matmul_flops_per_second"]) == {"float32", "bfloat16"}
    assert len(result["orders"]) == 2
    for row in rows:
        assert row["devices"] == 2
        assert row["steps"] >= 2
        assert row["compile_seconds"] > 0
        assert 0 < row["share_of_peak"] < 1
        assert row["data_wait_share"] is row["largest_batch"] is row["audio_seconds_per_second"] is None
        for name in ("step_seconds", "steps_per_second", "units_per_second", "throughput_ratio", "step_time_ratio"):
            spread = row[name]
            assert 0 < spread["least"] <= spread["median"] <= spread["most"] < math.inf
        memory = row["memory_bytes"]
        assert memory["peak"] == memory["arguments"] + memory["temporaries"] + memory["outputs"] - memory["aliased"]
        # The state is donated: parameters and two moments of AdamW are there once.
        assert memory["aliased"] >= 12 * row["parameters"]
    assert rows[0]["throughput_ratio"] == rows[0]["step_time_ratio"] == {"median": 1, "least": 1, "most": 1}


def test_sharing_saves_parameters_and_no_arithmetic(result):
    plain, shared = result["variants"][:2]
    assert shared["parameters"] < plain["parameters"]
    assert shared["flops_per_step"] == plain["flops_per_step"]
    assert shared["memory_bytes"]["arguments"] < plain["memory_bytes"]["arguments"]


def test_figures_agree_with_each_other(result):
    for row in result["variants"]:
        tokens = row["units_per_second"]["median"] / row["steps_per_second"]["median"]
        assert tokens == pytest.approx(4 * 15, rel=1e-6)
        assert row["flops_per_second"] == pytest.approx(
            row["flops_per_step"] * row["steps_per_second"]["median"], rel=1e-3
        )


def test_a_teacher_that_is_left_out_is_told(result):
    assert result["notes"] == []
    recipe = dataclasses.replace(tiny_recipe(), distillation=DistillationConfig(teacher="runs/large"))
    found = run_bench(recipe, [], BenchOptions(rounds=1, seconds=0.01))
    assert "without the teacher runs/large" in table(found)


def test_one_that_cannot_run_does_not_stop_the_others():
    words = ["mesh=data=2,data=64,data=x", "batch=3,4"]
    rows = run_bench(tiny_recipe(), words, QUICK)["variants"]
    reasons = [row["failure"] for row in rows]
    assert "batch=3 must be a multiple of devices" in reasons[0]
    assert reasons[1] is None
    assert "there are 2" in reasons[2]
    assert "'data=x' is not data=N" in reasons[4]
    assert rows[1]["throughput_ratio"]["median"] == 1  # what runs first is what others are held against
    assert set(rows[0]) == {"label", "settings", "failure"}


def test_a_failure_in_a_later_round_is_told(monkeypatch):
    true_slice = measure.time_slice

    def failing(program, number, seconds):
        if number == 1 and program.recipe.train.batch == 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nwhile allocating " + "x" * 9_000)
        return true_slice(program, number, seconds)

    monkeypatch.setattr(measure, "time_slice", failing)
    rows = run_bench(tiny_recipe(), ["batch=4,8"], BenchOptions(rounds=3, seconds=0.01))["variants"]
    assert rows[0]["failure"] is None
    assert rows[1]["failure"].startswith("RESOURCE_EXHAUSTED: out of memory while")
    assert len(rows[1]["failure"]) <= 300


def test_a_loss_that_is_not_finite_is_told():
    with pytest.raises(UserError, match=r"no variant can run; the recipe: .* is nan: not finite"):
        run_bench(tiny_recipe(), ["learning_rate=1e38"], BenchOptions(rounds=1, seconds=0.5))


def test_none_that_can_run_is_the_users_mistake():
    with pytest.raises(UserError, match="no variant can run; batch=1: batch=1 must be a multiple"):
        run_bench(tiny_recipe(), ["batch=1,3"], QUICK)


def test_compiling_takes_nothing_from_the_cache(monkeypatch):
    """The cache on disk is not asked, and afterwards it works as before."""
    recipe = tiny_recipe()
    calls = []
    monkeypatch.setattr(
        "jax._src.compilation_cache.get_executable_and_time", lambda *_: calls.append(1) or (None, None)
    )
    measure.compile_step(recipe, make_work(recipe, None))
    assert not calls
    jax.jit(lambda x: x * 3 + 1)(1.0)
    assert calls


# Data


def test_batches_of_a_data_set_are_waited_for(tmp_path):
    data = random_dataset(tmp_path / "data")
    options = BenchOptions(rounds=2, seconds=0.05, data=data)
    found = run_bench(tiny_recipe(), [], options)
    [row] = found["variants"]
    assert row["label"] == "the recipe"
    assert found["data"] == str(data)
    assert 0 < row["data_wait_share"] < 1
    # Documents are short: some positions have no next token.
    assert row["units_per_second"]["median"] / row["steps_per_second"]["median"] < 4 * 15
    with pytest.raises(UserError, match="the data set of --data decides it"):
        run_bench(tiny_recipe(), ["vocabulary_size=100,200"], options)
    with pytest.raises(UserError, match="not a data set directory"):
        run_bench(tiny_recipe(), [], BenchOptions(data=tmp_path))


def voice_dataset(folder):
    """Ten clips of 40 and of 90 frames of one speaker."""
    (folder / "shards").mkdir(parents=True)
    draw = np.random.default_rng(0)
    records = []
    for number in range(10):
        sound = draw.integers(-9_000, 9_000, (40 + 50 * (number % 2)) * SMALL_AUDIO.hop_samples, np.int16)
        ids = draw.integers(1, INVENTORY.size, 8).tolist()
        records.append((Clip(f"{number}", "haru", "文", ids, len(sound), "", 1.0, -20.0, 0.0), sound))
    shard = write_shard(folder / "shards", "a" * 32, records, [])
    entry = ShardEntry("a" * 32, shard.sha256, shard.audio_bytes, shard.audio_sha256, SPLIT_LETTERS["train"] * 10)
    front_end = {"engine": "haqumei", "version": "1", "devoiced": "keep"}
    counts = {"train": {"haru": SpeechCounts(10, 1.0)}, "heldout": {}}
    SpeechInfo(SMALL_AUDIO.sample_rate_hz, ("haru",), INVENTORY, front_end, counts).save(
        folder / "dataset.json", [entry]
    )
    return folder


def test_a_voice_is_timed_in_the_shapes_of_its_data_set(tmp_path):
    data = voice_dataset(tmp_path / "data")
    recipe = VitsRecipe(name="tiny", model=small_config(), train=TrainConfig(batch=2))
    recipe = fitted(recipe, data)
    assert (recipe.model.speakers, recipe.model.vocabulary_size) == (0, INVENTORY.size)
    work = make_work(recipe, data)
    specs = [[leaf.shape for leaf in spec] for spec in work.task.batch_specs()]
    assert len(specs) == 2
    drawn = [[leaf.shape for leaf in batch] for batch in itertools.islice(work.draw(3), 6)]
    assert {tuple(shapes) for shapes in drawn} == {tuple(shapes) for shapes in specs}
    more = dataclasses.replace(recipe, train=TrainConfig(batch=4))
    [largest] = heaviest(more, work).task.batch_specs()
    assert largest.audio.shape == (4, max(shapes[2][1] for shapes in specs))
    with pytest.raises(UserError, match="prepared at 8000 Hz, vits-nano has 24000 Hz"):
        fitted(VITS_NANO, data)


# The largest batch


@pytest.mark.parametrize("limit", [999, 1_000, 1_010, 1_100, 5_000, 123_456])
@pytest.mark.parametrize("slope", [1, 7, 10.5])
@pytest.mark.parametrize("bend", [0, 40])
def test_the_largest_multiple_is_found_in_few_tries(limit, slope, bend):
    tried = []

    def weigh(n):
        tried.append(n)
        return 1_000 + slope * n + 100 * min(n, bend)

    best, weight = largest_multiple(weigh, limit)
    assert best == 0 or weight == weigh(best) <= limit
    assert weigh(best + max(1, best // 16)) > limit
    assert len(tried) < 20
    assert len(set(tried[:-2])) == len(tried[:-2])  # none twice: each is a compilation


def test_what_cannot_be_compiled_does_not_fit():
    best, _ = largest_multiple(lambda n: n if n <= 37 else math.inf, 1e9)
    assert 35 <= best <= 37
    assert largest_multiple(lambda _: math.inf, 1e9) == (0, 0)


def test_the_largest_batch_fits_and_one_more_does_not():
    recipe = tiny_recipe(accumulate=2)
    options = BenchOptions(rounds=1, seconds=0.01, largest_batch=True, memory_limit="250KB")
    [row] = run_bench(recipe, [], options)["variants"]
    found = row["largest_batch"]
    assert found["batch"] > 4
    assert found["batch"] % (2 * 2) == 0  # devices x accumulate
    assert found["memory_bytes"] <= found["limit_bytes"] == 250_000

    def weight(batch):
        [cell] = grid(recipe, f"batch={batch}")[1]
        return measure.compile_variant(cell.recipe, make_work(cell.recipe, None)).memory.peak

    assert weight(found["batch"] + 4 * max(1, found["batch"] // 4 // 16)) > 250_000


@pytest.mark.parametrize(
    ("text", "size"), [("15GiB", 15 << 30), ("1.5 MB", 1_500_000), ("4096", 4096), ("2kib", 2048), ("3KB", 3000)]
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GiB", "lots", "1TiB"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(UserError, match="--memory-limit"):
        parse_bytes(text)


def test_a_cpu_tells_what_is_free(tmp_path):
    table = tmp_path / "meminfo"
    table.write_text("MemTotal:       9999 kB\nMemAvailable:   4096 kB\n")
    assert memory_limit(2, table) == 2 << 20
    with pytest.raises(UserError, match="give --memory-limit"):
        memory_limit(1, tmp_path / "none")


# The table


def test_the_table_has_every_figure_that_there_is(result):
    """No figure is cut off, however many columns there are; and what cannot run is told below."""
    plain, *others = result["variants"]
    found = {"batch": 12_345, "memory_bytes": 3 << 30, "limit_bytes": 4 << 30}
    spread = {"median": 12.5, "least": 1, "most": 30}
    full = plain | {"label": "a" * 150, "largest_batch": found, "audio_seconds_per_second": spread}
    full |= {"data_wait_share": 0.125, "throughput_ratio": {**spread, "median": 2.345}}
    nothing = others[0] | {"largest_batch": {**found, "batch": 0}, "data_wait_share": 0.0}
    nothing |= {"audio_seconds_per_second": spread}
    failed = {"label": "batch=3", "settings": {}, "failure": "no room [here]"}
    lines = table({**result, "variants": [full, nothing, failed]}).splitlines()
    for text in ("a" * 150, "12,345 (3.00 GiB)", "12.5", "2.35 x", "12.5%"):
        assert text in lines[3]
    assert lines[4].endswith("none has room")
    assert lines[-1] == "batch=3: cannot run: no room [here]"
    # With nothing of that kind there is no column of it.
    assert not {"audio", "largest", "wait"} & set(table(result).splitlines()[1].split())


# The command line


def bench(tmp_path, *words):
    recipe = tmp_path / "tiny.json"
    recipe.write_text(config.to_json(tiny_recipe()))
    return cli.main(["bench", str(recipe), "--rounds", "1", "--seconds", "0.01", *words])


def test_the_command_line_shows_a_table_and_writes_files(tmp_path, capsys):
    out, told = tmp_path / "out", tmp_path / "told.json"
    words = ["--compare", "precision=bfloat16", "layers=1", "--compare", "batch=4,3", "--out", str(out)]
    assert bench(tmp_path, *words, "--json", str(told)) == 0
    shown = capsys.readouterr().out
    assert "GFLOP/s bfloat16" in shown
    assert "batch=4" in shown
    assert "batch=3: cannot run: batch=3 must be" in shown
    result = json.loads(told.read_text())
    assert json.loads((out / "bench.json").read_text()) == result
    assert result["axes"] == {"precision": ["bfloat16"], "layers": ["1"], "batch": ["4", "3"]}
    assert result["variants"][0]["settings"] == {"precision": "bfloat16", "layers": "1", "batch": "4"}
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compare", "precison=float32"], "did you mean precision"),
        (["--rounds", "0"], "--rounds 0: must be 1 to"),
        (["--seconds", "nan"], "--seconds nan"),
        (["--memory-limit", "1GiB"], "is for --largest-batch"),
        (["--largest-batch", "--memory-limit", "much"], "--memory-limit much"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, words, told):
    assert bench(tmp_path, *words) == 2
    line = capsys.readouterr().err
    assert told in line
    assert line.count("\n") == 1


def test_a_missing_library_is_told_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(charts.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(run, "run_bench", lambda *_: pytest.fail("it began to work"))
    assert bench(tmp_path, "--out", str(tmp_path / "out")) == 2
    assert "hayakuchi[report]" in capsys.readouterr().err
