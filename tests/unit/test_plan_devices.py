"""Devices by name, and what they cost."""

import re

import pytest

from hayakuchi.errors import UserError
from hayakuchi.plan import devices as module
from hayakuchi.plan.devices import GIB, find_devices, find_price, find_reported

SEED_MACHINES = ["t4", "k80", "v100", "v100x32", "1080ti", "a100", "a100-80", "h100", "h200", "v2-8", "v3-8", "v4-8"]


@pytest.mark.parametrize("name", [*SEED_MACHINES, "v5e-8", "v5p-8", "v6e-8", "cpu", "V3-8", " t4x2 "])
def test_the_machines_of_the_seed_have_names(name):
    found = find_devices(name)
    assert found.count >= 1
    assert found.limit_bytes > GIB
    assert found.peak["float32"] <= max(found.peak.values())
    assert found.bandwidth > 0
    assert found.link > 0


# What libtpu 0.0.42.1 says of each topology: devices, and memory of one.
@pytest.mark.parametrize(
    ("name", "count", "gib", "topology"),
    [
        ("v2-8", 8, 7.48, "v2:2x2"),
        ("v3-8", 8, 15.48, "v3:2x2"),
        ("v4-8", 4, 30.75, "v4:2x2x1"),
        ("v5e-4", 4, 15.75, "v5e:2x2"),
        ("v5p-8", 4, 95.74, "v5p:2x2x1"),
        ("v6e-1", 1, 31.25, "v6e:1x1"),
    ],
)
def test_tpus_have_the_memory_that_their_compiler_leaves(name, count, gib, topology):
    found = find_devices(name)
    assert (found.count, found.topology) == (count, topology)
    assert found.limit_bytes == pytest.approx(gib * GIB, abs=1)


def test_every_slice_of_a_topology_has_its_devices():
    for kind, entry in module._table().items():
        for devices, topology in entry.get("counts", {}).values():
            chips = 1
            for side in re.findall(r"\d+", topology.partition(":")[2]):
                chips *= int(side)
            assert devices == chips * (2 if kind in {"v2", "v3"} else 1), topology


def test_gpus_are_described_to_their_compiler():
    found = find_devices("a100x2")
    assert found.topology == "1x1x2"
    assert "cuda_compute_capability { major: 8 minor: 0 }" in found.target
    assert f"device_memory_size: {40 * GIB}" in found.target
    assert found.target.count("{") == found.target.count("}") == 3
    for kind, entry in module._table().items():
        if entry["kind"] == "gpu":
            assert bool(find_devices(kind).target) == (kind != "k80"), kind  # too old for CUDA 12


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v3-9", "v3-8"),
        ("a101", "a100"),
        ("t4x0", "1 to 256"),
        ("t4x100000", "1 to 256"),
        ("cpux2", "one cpu"),
        ("", "known are cpu"),
        ("ティーフォー", "known are cpu"),
        ("v3", "v3-8"),
        ("t4-8", "t4"),
    ],
)
def test_an_unknown_device_is_one_line_with_near_names(name, told):
    with pytest.raises(UserError, match=re.escape(told)) as caught:
        find_devices(name)
    assert "\n" not in str(caught.value)


def test_jax_takes_a_share_of_a_gpu(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    usual = find_devices("a100").limit_bytes
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert find_devices("a100").limit_bytes == pytest.approx(usual * 0.9 / 0.75, rel=1e-6)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "much")
    with pytest.raises(UserError, match="much"):
        find_devices("a100")


@pytest.mark.parametrize(
    ("name", "wanted", "given"),
    [
        ("t4", "bfloat16", "float16"),
        ("v3-8", "float16", "bfloat16"),
        ("1080ti", "bfloat16", "float32"),
        ("h100", "bfloat16", "bfloat16"),
        ("k80", "float32", "float32"),
    ],
)
def test_a_precision_that_a_device_lacks_is_replaced(name, wanted, given):
    assert find_devices(name).precision(wanted) == given


@pytest.mark.parametrize(
    ("platform", "kind", "count", "name"), [("gpu", "Tesla T4", 2, "t4x2"), ("tpu", "TPU v3", 8, "v3-8")]
)
def test_what_jax_reports_has_a_name(platform, kind, count, name):
    assert find_reported(platform, kind, count).name == name


def test_what_jax_reports_may_have_no_name():
    with pytest.raises(UserError, match="Gaudi"):
        find_reported("gpu", "Gaudi", 1)


def test_prices_have_date_and_source():
    price = find_price(find_devices("v3-8"))
    assert (price.on_demand, price.spot) == (8.0, 2.04)
    assert price.date
    assert price.source


def test_a_tpu_of_another_size_costs_in_proportion():
    half, whole = (find_price(find_devices(name)) for name in ("v5e-4", "v5e-8"))
    assert half.on_demand == whole.on_demand / 2
    assert "v5e-8" in half.source


def test_without_a_price_there_is_none():
    assert find_price(find_devices("t4x2")).on_demand is None


def test_the_users_table_goes_before_ours(tmp_path, monkeypatch):
    table = tmp_path / "prices.toml"
    table.write_text(
        '[t4]\non_demand = 0.35\ndate = "2026-12"\nsource = "my cloud"\n'
        '[v3-8]\nspot = 1\ndate = "2026-12"\nsource = "my cloud"\n',
        encoding="utf-8",
    )
    assert find_price(find_devices("t4x2"), table).on_demand == 0.7
    assert find_price(find_devices("v3-8"), table).on_demand is None
    assert find_price(find_devices("v2-8"), table).on_demand == 4.5  # ours
    own = tmp_path / "hayakuchi"
    own.mkdir()
    table.rename(own / "prices.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_price(find_devices("t4")).on_demand == 0.35


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[t4]\non_demand = 1\nsource = 'x'", "date"),
        ("[t4]\non_demand = 1\ndate = '2026'", "source"),
        ("[t4]\non_demand = 'one'\ndate = '2026'\nsource = 'x'", "on_demand='one'"),
        ("[t4]\nspot = -1\ndate = '2026'\nsource = 'x'", "spot=-1"),
        ("[t4]\nspot = nan\ndate = '2026'\nsource = 'x'", "spot=nan"),
        ("[t4]\nprice = 1\ndate = '2026'\nsource = 'x'", "price"),
        ("t4 = 1", "[t4]"),
        ("[t4", "not valid TOML"),
    ],
)
def test_a_bad_price_table_is_told(tmp_path, text, told):
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(told)) as caught:
        find_price(find_devices("t4"), path)
    assert str(path) in str(caught.value)


def test_a_missing_price_table_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        find_price(find_devices("t4"), tmp_path / "none.toml")
