"""Keys that two clients agree on, and messages for one client alone: X25519, HKDF and ChaCha20-Poly1305.

The cryptography is that of the package ``cryptography``; this file only says how it is used. Keys serve one run of the
protocol. They are derived from 32 random bytes of the client: on a device, these must come from its operating system.
"""

from __future__ import annotations

import hashlib
from typing import Any

from nestling.errors import SecAggError
from nestling.imported import need

KEY_BYTES = 32
_ONCE = bytes(12)  # the nonce: a key encrypts one message


def derived(entropy: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    """Return secret bytes for a purpose, from the random bytes of a client: SHAKE-256.

    >>> derived(bytes(32), "mask") != derived(bytes(32), "channel")
    True
    """
    return hashlib.shake_256(len(entropy).to_bytes(2, "big") + entropy + purpose.encode()).digest(length)


def public_key(private: bytes) -> bytes:
    """Return the public X25519 key of a private one.

    >>> len(public_key(bytes(32)))
    32
    """
    return bytes(_x25519().X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed_key(private: bytes, public: bytes, purpose: str) -> bytes:
    """Return the key that two clients agree on, each with its private key and the other's public one.

    >>> one, other = bytes(31) + b"1", bytes(31) + b"2"
    >>> agreed_key(one, public_key(other), "mask") == agreed_key(other, public_key(one), "mask")
    True
    """
    hkdf, hashes = _primitives("kdf.hkdf"), _primitives("hashes")
    own = _x25519().X25519PrivateKey.from_private_bytes(private)
    try:
        shared = own.exchange(_x25519().X25519PublicKey.from_public_bytes(public))
    except ValueError as problem:  # not a point, or one of small order
        raise SecAggError("a public key is not one of X25519") from problem
    both = b"".join(sorted((own.public_key().public_bytes_raw(), public)))
    info = f"nestling secagg {purpose}\x1f".encode() + both
    return bytes(hkdf.HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(shared))


def seal(key: bytes, message: bytes) -> bytes:
    """Return a message that only who has the key can read, and change unnoticed; a key seals one message.

    >>> opened(bytes(32), seal(bytes(32), b"share"))
    b'share'
    """
    return bytes(_primitives("ciphers.aead").ChaCha20Poly1305(key).encrypt(_ONCE, message, None))


def opened(key: bytes, sealed: bytes) -> bytes:
    """Return a sealed message; raise if it was not sealed with this key."""
    try:
        return bytes(_primitives("ciphers.aead").ChaCha20Poly1305(key).decrypt(_ONCE, sealed, None))
    except _exceptions().InvalidTag as problem:
        raise SecAggError("a sealed share is not from the client that it names, or was changed") from problem


def _x25519() -> Any:
    return _primitives("asymmetric.x25519")


def _exceptions() -> Any:
    return need("cryptography.exceptions", "secagg", "secure aggregation needs", SecAggError)


def _primitives(name: str) -> Any:
    return need(f"cryptography.hazmat.primitives.{name}", "secagg", "secure aggregation needs", SecAggError)
