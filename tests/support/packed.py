"""Reading the arrays that a page embeds."""

import base64

import numpy as np


def unpacked(packed):
    """Unpack an array as the page's script does; written independently from the description of the format."""
    kinds = {"f4": "<f4", "f8": "<f8", "u1": "u1", "u2": "<u2", "bits": "u1", "level": "<u2"}
    codes = np.frombuffer(base64.b64decode(packed["data"]), kinds[packed["kind"]])
    if packed["kind"] == "bits":
        return np.unpackbits(codes)[: np.prod(packed["shape"], dtype=int)].reshape(packed["shape"])
    codes = codes.reshape(packed["shape"])
    if packed["kind"] == "level":
        return np.where(codes == 65535, np.nan, codes * packed["step"])
    return codes
