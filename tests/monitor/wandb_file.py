"""Read the file of an offline run of W&B: LevelDB's log of W&B's own protobuf records."""

import struct

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path):
    from wandb.proto import wandb_internal_pb2

    for data in _chunks(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record


def _chunks(content):
    assert content[:4] in (b":W&B", b"")
    at, parts = HEADER, []
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block that no header fits into
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        if at + HEADER + length > len(content):  # still being written
            return
        parts.append(content[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []
        else:
            assert kind in (FIRST, MIDDLE)
