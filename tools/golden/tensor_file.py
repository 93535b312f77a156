"""Reads and writes safetensors files as {name: (dtype, shape, bytes)}. Needs only the standard library."""

import json
import struct


def read_header(raw):
    """Returns (the header, the data) of a file's bytes."""
    (header_bytes,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + header_bytes]), raw[8 + header_bytes:]


def read_metadata(path):
    """Returns {name: text}."""
    return read_header(path.read_bytes())[0].get("__metadata__", {})


def read_tensors(path):
    """Returns {name: (dtype, shape, bytes)} in the order of the file's data."""
    header, data = read_header(path.read_bytes())
    header.pop("__metadata__", None)
    ordered = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in ordered}


def write_tensors(path, tensors, **metadata):
    header, offset = {"__metadata__": {"format": "pt", **metadata}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
