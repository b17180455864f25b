"""Compression of uploads: encode a change of weights in few bytes, and decode it. Pure functions."""

from nestling.settings import Upload
from nestling.upload.feedback import compress
from nestling.upload.message import decode, encode

__all__ = ["Upload", "compress", "decode", "encode"]
