"""Golden files: the safetensors layout, written byte for byte the same for the same tensors."""

import json
import struct

import numpy as np
import torch

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64", torch.int32: "I32"}


def write(path, tensors, metadata):
    """tensors: name -> tensor; metadata: flat, its values become strings."""
    header = {"__metadata__": {k: text(v) for k, v in sorted(metadata.items())}}
    offset = 0
    arrays = []
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().contiguous().numpy()
        arrays.append(array)
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for array in arrays:
            file.write(array.tobytes())


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    numpy_types = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + o for o in entry["data_offsets"])
        array = np.frombuffer(data[begin:end], numpy_types[entry["dtype"]])
        tensors[name] = torch.from_numpy(array.copy()).reshape(entry["shape"])
    return tensors, metadata


def text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
