"""The devices that can be planned for, by name: memory, speed, topology; and what an hour of them costs."""

import difflib
import os
import re
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from hayakuchi.config import Precision
from hayakuchi.errors import UserError

GIB = 1 << 30
# The share of a GPU's memory that JAX takes at its start, unless the environment says otherwise.
_GPU_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_USUAL_GPU_SHARE = 0.75
_MOST_GPUS = 256
_FPUS = {"6.1": 128, "9.0": 128}  # float32 units of a multiprocessor, by compute capability; others have 64
_NETWORK_BYTES_PER_SECOND = 3e9  # between hosts: 25 Gbit/s
_NAME = re.compile(r"(?P<kind>[a-z0-9]+?(?:-(?:16|32|40|80))?)(?:x(?P<count>\d+))?")
_TPU_NAME = re.compile(r"(?P<kind>v[2-6](?:e|p|litepod)?)-(?P<count>\d+)")
_ALIASES = {"v5litepod": "v5e", "a100-40": "a100", "v100-16": "v100", "h100-80": "h100", "gtx1080ti": "1080ti"}


@dataclass(frozen=True)
class Devices:
    """A number of like devices.

    Attributes:
      name: as given, in small letters.
      kind: the entry of `devices.toml`.
      platform: "cpu", "gpu" or "tpu".
      title: the device in words.
      count: devices as JAX counts them: a TPU v3-8 has 8 (cores), a v4-8 has 4 (chips).
      limit_bytes: memory of one that a program may use.
      peak: operations a second of one, by precision; a precision that is missing is one it does not compute in.
      bandwidth: bytes a second of its memory.
      link: bytes a second to the others.
      topology: the compiler's name of how they lie; "" where the compiler cannot be asked.
      target: a GPU in words of its compiler (XLA's GpuTargetConfigProto as text); "" else.
      note: what to know before one is rented; "" else.
    """

    name: str
    kind: str
    platform: Literal["cpu", "gpu", "tpu"]
    title: str
    count: int
    limit_bytes: int
    peak: dict[str, float] = field(hash=False)
    bandwidth: float
    link: float
    topology: str = ""
    target: str = ""
    note: str = ""

    def precision(self, wanted: Precision) -> Precision:
        """The recipe's precision, or what stands in for it where the device lacks it."""
        if wanted in self.peak:
            return wanted
        spare: dict[Precision, Precision] = {"bfloat16": "float16", "float16": "bfloat16"}
        return spare[wanted] if spare.get(wanted) in self.peak else "float32"

    @property
    def precisions(self) -> list[Precision]:
        """Those it computes in, the fastest first."""
        order: list[Precision] = ["bfloat16", "float16", "float32"]
        return sorted((each for each in order if each in self.peak), key=lambda each: -self.peak[each])


@dataclass(frozen=True)
class Price:
    """US dollars an hour for all devices of a plan; None where the table has none.

    Attributes:
      on_demand: for as long as one likes.
      spot: for as long as nobody else wants them.
      date: of the entry.
      source: of the entry, and the file it is in.
    """

    on_demand: float | None = None
    spot: float | None = None
    date: str = ""
    source: str = ""


def find_devices(name: str) -> Devices:
    """The devices of a name: "v3-8", "v5e-4", "t4x2", "a100", "cpu".

    Raises:
      UserError: no such name, or no such number of them.
    """
    table = _table()
    asked = name.strip().lower()
    tpu, other = _TPU_NAME.fullmatch(asked), _NAME.fullmatch(asked)
    if tpu:
        kind = _ALIASES.get(tpu["kind"], tpu["kind"])
        if kind in table:
            return _tpu(asked, kind, table[kind], int(tpu["count"]))
    elif other:
        kind = _ALIASES.get(other["kind"], other["kind"])
        if kind in table and table[kind]["kind"] != "tpu":
            return _others(asked, kind, table[kind], int(other["count"] or 1))
    names = [one for kind, entry in table.items() for one in _names(kind, entry)]
    near = difflib.get_close_matches(asked, names, 3, 0.5)
    raise UserError(f"--device {name!r} is not known; {'did you mean ' + ', '.join(near) if near else _known(table)}")


def find_reported(platform: str, kind: str, count: int) -> Devices:
    """The devices that JAX reports.

    Args:
      platform: "cpu", "gpu" or "tpu".
      kind: `device_kind` of one.
      count: how many there are.

    Raises:
      UserError: they have no name here.
    """
    if platform == "cpu" and count == 1:
        return find_devices("cpu")
    for name, entry in _table().items():
        if entry.get("reported") != kind:
            continue
        if platform == "gpu":
            return find_devices(f"{name}x{count}")
        for size, (devices, _) in entry["counts"].items():
            if devices == count:
                return find_devices(f"{name}-{size}")
    raise UserError(f"{count} x {kind!r}: devices.toml has no such entry")


def find_price(devices: Devices, path: Path | None = None) -> Price:
    """What an hour of these devices costs, from `path`, else the user's own table, else ours.

    Raises:
      UserError: a table cannot be read, or an entry lacks its date or source or has a price that is no number.
    """
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "hayakuchi" / "prices.toml"
    candidates = [path] if path is not None else [own] if own.exists() else []
    tables = [(str(each), _read_prices(each)) for each in candidates]
    ours = tomllib.loads(files("hayakuchi.plan").joinpath("prices.toml").read_text(encoding="utf-8"))
    # The kind may be written in another way, "v5litepod-8" for "v5e-8".
    full = (
        f"{devices.kind}-{devices.name.rpartition('-')[2]}"
        if devices.platform == "tpu"
        else f"{devices.kind}x{devices.count}"
    )
    for where, prices in (*tables, ("the table of the package", ours)):
        for key, times in ((full, 1.0), (devices.name, 1.0), (devices.kind, float(devices.count))):
            if key in prices:
                return _price(prices[key], times, f"{where}: [{key}]", where)
        # A TPU of another size costs in proportion to its chips.
        for key in prices if devices.platform == "tpu" else ():
            if key.rpartition("-")[0] == devices.kind and find_devices(key).count:
                return _price(
                    prices[key], devices.count / find_devices(key).count, f"{where}: [{key}]", f"{where}, by {key}"
                )
    return Price()


def _price(entry: Any, times: float, where: str, table: str) -> Price:
    known = {"on_demand", "spot", "date", "source"}
    if not isinstance(entry, dict) or set(entry) - known:
        extra = f"; it has {', '.join(sorted(set(entry) - known))} too" if isinstance(entry, dict) else ""
        raise UserError(f"{where} must be a table of on_demand, spot, date and source{extra}")
    for key in ("date", "source"):
        if not entry.get(key):
            raise UserError(f"{where} lacks its {key}: prices change, so say when and where it was found")
    found: dict[str, float | None] = {}
    for key in ("on_demand", "spot"):
        value = entry.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
            raise UserError(f"{where} {key}={value!r} must be a number of US dollars an hour")
        found[key] = None if value is None else times * float(value)
    return Price(found["on_demand"], found["spot"], str(entry["date"]), f"{entry['source']}; {table}")


def _read_prices(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 1 << 20:
            raise UserError(f"--prices {path}: larger than 1 MiB; this is not a price table")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--prices {path}: cannot read it ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"--prices {path}: not valid TOML ({error})") from error


def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("hayakuchi.plan").joinpath("devices.toml").read_text(encoding="utf-8"))


def _names(kind: str, entry: dict[str, Any]) -> list[str]:
    return [f"{kind}-{count}" for count in entry["counts"]] if entry["kind"] == "tpu" else [kind, f"{kind}x2"]


def _known(table: dict[str, dict[str, Any]]) -> str:
    """All names, for a message."""
    gpus = ", ".join(kind for kind, entry in table.items() if entry["kind"] == "gpu")
    tpus = ", ".join(_names(kind, entry)[0] for kind, entry in table.items() if entry["kind"] == "tpu")
    return f"known are cpu, {gpus} (each with xN behind it) and {tpus}"


def _tpu(name: str, kind: str, entry: dict[str, Any], count: int) -> Devices:
    slices = entry["counts"]
    if str(count) not in slices:
        raise UserError(f"--device {name!r}: of {kind} there are {', '.join(f'{kind}-{size}' for size in slices)}")
    devices, topology = slices[str(count)]
    limit = int(entry["memory_gib"] * GIB)
    speed = entry["peak"], entry["bandwidth"], entry["link"]
    return Devices(name, kind, "tpu", entry["title"], devices, limit, *speed, topology, note=entry.get("note", ""))


def _others(name: str, kind: str, entry: dict[str, Any], count: int) -> Devices:
    if kind == "cpu":
        if count != 1:
            raise UserError(f"--device {name!r}: there is one cpu, the machine's; leave out x{count}")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        peak = {each: cores * value for each, value in entry["peak"].items()}
        title = f"{entry['title']} ({cores} cores)"
        return Devices(name, kind, "cpu", title, 1, memory, peak, cores * entry["bandwidth"], entry["link"])
    if not 1 <= count <= _MOST_GPUS:
        raise UserError(f"--device {name!r}: from 1 to {_MOST_GPUS} of {kind} can be planned for")
    share = os.environ.get(_GPU_SHARE, "")
    try:
        used = float(share) if share else _USUAL_GPU_SHARE
    except ValueError as error:
        raise UserError(
            f"{_GPU_SHARE}={share!r} must be a number: the share of a GPU's memory that JAX takes"
        ) from error
    link = entry["link"] if count <= entry["host"] else _NETWORK_BYTES_PER_SECOND
    limit = int(used * entry["memory_gib"] * GIB)
    speed = entry["peak"], entry["bandwidth"], link
    topology, target = (f"1x1x{count}", _target(entry)) if "chip" in entry else ("", "")
    note = entry.get("note", "")
    return Devices(name, kind, "gpu", entry["title"], count, limit, *speed, topology, target, note)


def _target(entry: dict[str, Any]) -> str:
    """A GPU as its compiler wants it described, as if the newest libraries it knows were there."""
    chip = entry["chip"]
    major, minor = chip["capability"].split(".")
    return f"""
    platform_name: "CUDA"
    device_description_str: "{entry["reported"]}"
    dnn_version_info {{ major: 9 minor: 10 }}
    gpu_device_info {{
      cuda_compute_capability {{ major: {major} minor: {minor} }}
      device_memory_size: {int(entry["memory_gib"] * GIB)}
      memory_bandwidth: {int(entry["bandwidth"])}
      clock_rate_ghz: {chip["ghz"]}
      core_count: {chip["cores"]}
      l2_cache_size: {chip["l2"]}
      threads_per_core_limit: {chip["threads"]}
      shared_memory_per_core: {chip["shared"]}
      shared_memory_per_block_optin: {chip["shared_block"]}
      shared_memory_per_block: 49152
      fpus_per_core: {_FPUS.get(chip["capability"], 64)}
      threads_per_warp: 32
      threads_per_block_limit: 1024
      registers_per_core_limit: 65536
      registers_per_block_limit: 65536
      block_dim_limit_x: {2**31 - 1}
      block_dim_limit_y: 65535
      block_dim_limit_z: 65535
    }}
    """
