"""File names."""

import re


def file_name(text: str) -> str:
    """Turn a policy's or scenario's name into a safe part of a file name."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "unnamed"
