"""The text of a compiled program: its instructions, and the source line and module of each."""

import re
from dataclasses import dataclass

from hayakuchi.tracing.source import Direction

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(?[a-z]\w*\[.*?)\s([\w\-]+)\((.*)$", re.MULTILINE)
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_OPERATION = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r"%?([\w.\-]+)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
# Names that transformations put around scopes, and those of library functions and loops between them.
_TRANSFORMS = re.compile(r"(?:transpose|jvp|vmap|remat|checkpoint|rematted_computation)\(|\)+$")
_BETWEEN = re.compile(
    r"^(?:jit|pjit|closed_call|core_call|checkpoint|remat\d?|rematted_computation|while|body|cond|branch_\d+_fun)(?:\(.*)?$"
)
_ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}


@dataclass(frozen=True)
class Instruction:
    """One instruction of an optimised HLO module.

    Attributes:
      name: by which a profile calls it.
      shape: of its result, as XLA writes it.
      opcode: such as "fusion".
      computation: the name of the computation that it stands in.
      operation: path of scopes, and the primitive it comes from; of what XLA put in itself, such as a copy, that of the
        value it is made of.
      file, line: of the source; "" and 0 where XLA lost it.
    """

    name: str
    shape: str
    opcode: str
    computation: str
    operation: str
    file: str
    line: int

    @property
    def bytes(self) -> int:
        """Size of its result."""
        total = 0
        for dtype, sizes in _ARRAY.findall(self.shape):
            count = 1
            for size in filter(None, sizes.split(",")):
                count *= int(size)
            total += count * _ITEM_BYTES.get(dtype, 4)
        return total

    @property
    def short_shape(self) -> str:
        """The first arrays of its result without their layouts: "f32[8,256]"."""
        return ", ".join(f"{dtype}[{sizes}]" for dtype, sizes in _ARRAY.findall(self.shape)[:3])


def instructions(text: str) -> list[Instruction]:
    """All instructions of an optimised HLO module (`compiled.as_text()`)."""
    files = dict(re.findall(r'^(\d+) "(.*)"$', _section(text, "FileNames"), re.MULTILINE))
    rows = re.findall(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)", text, re.MULTILINE)
    locations = {number: (files.get(file, ""), int(line)) for number, file, line in rows}
    frames = dict(re.findall(r"^(\d+) \{file_location_id=(\d+)", _section(text, "StackFrames"), re.MULTILINE))
    found = []
    for part in re.split(r"\n(?=%|ENTRY )", text):
        computation = part.partition(" ")[0].lstrip("%")
        told: dict[str, tuple[str, str, int]] = {}
        for match in _INSTRUCTION.finditer(part):
            name, shape, opcode, rest = match.groups()
            frame, operation, operand = _FRAME.search(rest), _OPERATION.search(rest), _OPERAND.match(rest)
            if operation:
                place = locations.get(frames.get(frame[1], "") if frame else "", ("", 0))
                told[name] = operation[1], *place
            else:
                told[name] = told.get(operand[1], ("", "", 0)) if operand else ("", "", 0)
            found.append(Instruction(name, shape, opcode, computation, *told[name]))
    return found


def module_of(operation: str) -> tuple[tuple[str, ...], Direction]:
    """Scopes and direction of an operation's path, such as "jit(step)/transpose(jvp(ctrl))/blocks/0/dot_general"."""
    direction: Direction = "other"
    if "transpose(" in operation:
        direction = "backward"
    elif "jvp(" in operation:
        direction = "forward"
    first, *path = operation.split("/")
    if not first.startswith("jit("):
        path.insert(0, first)
    scopes: list[str] = []
    for part in path[:-1]:
        if part.startswith("jit("):
            break  # from here on the names are a library's
        name = _TRANSFORMS.sub("", part)
        # Neither what einsum calls itself nor a method that JAX names is a module.
        if name and "->" not in name and "." not in name and not _BETWEEN.fullmatch(name):
            scopes.append(name)
    # The path of what is computed anew begins twice.
    half = next((n for n in range(len(scopes) // 2, 0, -1) if scopes[:n] == scopes[n : 2 * n]), 0)
    return tuple(scopes[half:]), direction


def _section(text: str, title: str) -> str:
    start = text.find(f"\n{title}\n")
    return text[start + len(title) + 2 : text.find("\n\n", start + 1)] if start >= 0 else ""
