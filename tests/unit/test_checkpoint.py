"""Checkpoints: what comes back is what was saved, damage is told, an error is never silent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hayakuchi.errors import UserError
from hayakuchi.models.sharding import make_mesh
from hayakuchi.train.checkpoint import CheckpointError, Checkpoints, flatten
from hayakuchi.train.task import TrainState


def state(value=1.0):
    parameters = {"blocks": {0: {"kernel": jnp.full((4, 6), value)}}, "bias": jnp.arange(3.0)}
    return TrainState(jnp.int32(7), parameters, (jnp.zeros(2), {"mu": parameters}))


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def save(folder, *steps, keep=3, value=1.0):
    with Checkpoints(folder, keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(value + step), jax.random.key(5), position=10 * step, recipe={"name": "x"})


def restore(folder, target=None):
    with Checkpoints(folder, 3, read_only=True) as checkpoints:
        return checkpoints.restore(abstract(state()) if target is None else target)


def test_round_trip_of_state_position_key_and_recipe(tmp_path):
    save(tmp_path, 3)
    found, record = restore(tmp_path)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state(4.0)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert jax.tree.structure(found) == jax.tree.structure(state())
    assert record["position"] == 30
    assert record["step"] == 3
    assert record["recipe"] == {"name": "x"}
    key = jax.random.wrap_key_data(jnp.asarray(record["key"], jnp.uint32))
    assert jax.random.bits(key) == jax.random.bits(jax.random.key(5))


def test_no_checkpoint_is_none(tmp_path):
    with Checkpoints(tmp_path / "new", 3) as checkpoints:
        assert checkpoints.restore(abstract(state())) is None


def test_only_the_newest_are_kept(tmp_path):
    save(tmp_path, 1, 2, 3, 4, keep=2)
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [3, 4]


@pytest.mark.parametrize("damage", ["truncate", "marker"])
def test_a_damaged_newest_one_is_told_and_the_one_before_used(tmp_path, caplog, damage):
    """R5."""
    save(tmp_path, 1, 2)
    if damage == "marker":
        for path in (tmp_path / "2").rglob("*METADATA*"):
            path.unlink()
    else:
        for path in (tmp_path / "2" / "state").rglob("*"):
            if path.is_file() and path.stat().st_size > 60:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, record = restore(tmp_path)
    assert record["position"] == 10
    if damage == "truncate":
        assert "2 is damaged" in caplog.text


def test_training_goes_on_over_a_damaged_one(tmp_path):
    save(tmp_path, 1, 2)
    for path in (tmp_path / "2" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with Checkpoints(tmp_path, 1) as checkpoints:
        _, record = checkpoints.restore(abstract(state()))
        assert record["step"] == 1
        # The step is reached again; and it must not be the damaged one that is kept as the newest.
        checkpoints.save(2, state(9.0), jax.random.key(5), position=20, recipe={})
    found, record = restore(tmp_path)
    assert record["step"] == 2
    np.testing.assert_array_equal(found.parameters["blocks"][0]["kernel"], 9.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "2.damaged"]


def test_all_damaged_is_an_error_not_a_new_start(tmp_path):
    save(tmp_path, 1)
    for path in (tmp_path / "1" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(UserError, match="none of the checkpoints"):
        restore(tmp_path)


def array_file(folder):
    """The largest file of the arrays of a step."""
    return max((path for path in (folder / "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("name", ["array", "_METADATA", "manifest.ocdbt"])
def test_a_missing_file_is_damage(tmp_path, name):
    save(tmp_path, 1, 2)
    (array_file(tmp_path / "2") if name == "array" else tmp_path / "2" / "state" / name).unlink()
    assert restore(tmp_path)[1]["step"] == 1


@pytest.mark.parametrize("name", ["array", "manifest.ocdbt"])
def test_what_the_system_refuses_is_no_damage(tmp_path, name):
    """A link to itself stands for permissions and devices that fail, which root cannot be made to meet."""
    save(tmp_path, 1, 2)
    path = array_file(tmp_path / "2") if name == "array" else tmp_path / "2" / "state" / name
    path.rename(tmp_path / "kept")
    path.symlink_to(path.name)
    with (
        Checkpoints(tmp_path, 3) as checkpoints,
        pytest.raises(CheckpointError, match=r"2: cannot be read \(Too many lev"),
    ):
        checkpoints.restore(abstract(state()))
    path.unlink()
    (tmp_path / "kept").rename(path)
    assert restore(tmp_path)[1]["step"] == 2, "nothing was set aside"


@pytest.mark.parametrize(
    "error", [MemoryError(), PermissionError(13, "Permission denied"), RuntimeError("RESOURCE_EXHAUSTED")]
)
def test_other_errors_are_raised_and_nothing_is_set_aside(tmp_path, monkeypatch, error):
    save(tmp_path, 1, 2)

    def fail(*_):
        raise error

    monkeypatch.setattr(Checkpoints, "_restore", fail)
    with Checkpoints(tmp_path, 3) as checkpoints, pytest.raises((type(error), CheckpointError)):
        checkpoints.restore(abstract(state()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


@pytest.mark.parametrize(
    "change", [lambda leaf: leaf.update(kernel=jnp.ones((4, 7))), lambda leaf: leaf.update(other=jnp.ones(2))]
)
def test_another_shape_or_name_is_refused(tmp_path, change):
    save(tmp_path, 1)
    other = state()
    change(other.parameters["blocks"][0])
    with pytest.raises(UserError, match="another recipe"):
        restore(tmp_path, abstract(other))


def test_another_dtype_is_refused_not_cast(tmp_path):
    save(tmp_path, 1)
    other = state()
    other.parameters["bias"] = jnp.arange(3)
    with pytest.raises(UserError, match="bias"):
        restore(tmp_path, abstract(other))


def test_restores_onto_another_layout(tmp_path):
    """R4, on two devices."""
    save(tmp_path, 1)
    mesh = make_mesh("data=1,fsdp=2")
    layout = NamedSharding(mesh, P("fsdp"))
    target = abstract(state())
    kernel = jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=layout)
    target.parameters["blocks"][0]["kernel"] = kernel
    found, _ = restore(tmp_path, target)
    assert found.parameters["blocks"][0]["kernel"].sharding == layout
    np.testing.assert_array_equal(found.parameters["blocks"][0]["kernel"], 2.0)


def test_a_part_can_be_restored(tmp_path):
    save(tmp_path, 1)
    found, _ = restore(tmp_path, {"parameters": abstract(state().parameters)})
    np.testing.assert_array_equal(found["parameters"]["bias"], [0, 1, 2])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="file"):
        Checkpoints(tmp_path / "file" / "inside", 3)


def test_flat_names_follow_the_path():
    assert set(flatten(state())) >= {"step", "parameters.blocks.0.kernel", "parameters.bias", "optimizer.0"}
