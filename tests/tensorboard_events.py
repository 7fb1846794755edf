"""What stands in TensorBoard event files, read without TensorBoard."""

import struct

from tensorboardX.proto.event_pb2 import Event


def events(folder) -> list[Event]:
    """All events of a folder's files, in the order in which TensorBoard reads them."""
    found = []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])  # then a checksum of 4 bytes, the record, and its checksum
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def tags(folder) -> set[str]:
    """Names of all values in a folder's event files."""
    return {value.tag for event in events(folder) for value in event.summary.value}
