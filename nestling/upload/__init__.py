"""How a change of weights travels: a dictionary of tensors as few bytes, and back. Pure; knows no federation."""

from nestling.settings import Upload
from nestling.upload.feedback import compress
from nestling.upload.message import decode, encode

__all__ = ["Upload", "compress", "decode", "encode"]
