"""What stands in TensorBoard event files, read without TensorBoard."""

import struct

from tensorboardX.proto.event_pb2 import Event


def tags(folder) -> set[str]:
    """Names of all values in a folder's event files."""
    found = set()
    for file in folder.iterdir():
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])  # then a checksum of 4 bytes, the record, and its checksum
            found |= {value.tag for value in Event.FromString(data[12 : 12 + length]).summary.value}
            data = data[16 + length :]
    return found
