"""Download the files of datasets into the cache and verify their checksums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nestling.data.cache import checksum_file, download_dir, recorded_checksum, sha256
from nestling.data.catalog import Download, entry
from nestling.errors import DataError, FetchError, first_line
from nestling.imported import need


@dataclass(frozen=True)
class Fetched:
    """A downloaded file; ``verified`` is true if its checksum is published, and matched."""

    path: Path
    sha256: str
    verified: bool


def get(name: str, progress: bool = False) -> tuple[Fetched, ...]:
    """Download the missing files of the dataset or text called `name`; return () if it needs no files.

    A file without a published checksum is trusted. In either case its SHA-256 is written next to it, and ``load``
    compares the file with that. With `progress`, a bar is shown on stderr.

    >>> get("digits")
    ()
    """
    source = entry(name)
    return tuple(_fetch(download, download_dir() / source.inside[0], progress) for download in source.downloads)


def _fetch(download: Download, folder: Path, progress: bool) -> Fetched:
    pooch = need("pooch", "data", "downloads need", DataError)
    if progress:
        need("tqdm", "data", "progress bars need", DataError)
    pooch.get_logger().setLevel("WARNING")
    target = folder / download.file
    known = recorded_checksum(target) if target.exists() else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # pooch renames a temporary file once its checksum is right: an interrupted download leaves nothing behind.
        pooch.retrieve(
            download.url,
            known_hash=download.checksum or (f"sha256:{known}" if known else None),
            fname=download.file,
            path=folder,
            progressbar=progress,
        )
        actual = sha256(target)
        checksum_file(target).write_text(f"{actual}  {target.name}\n")
    except OSError as problem:
        failure = f"{download.url} cannot be fetched into {str(folder)!r}"
        if problem.errno is not None:  # an error of the disk; network errors have no errno
            raise FetchError(f"{failure}: {problem.strerror}") from problem
        hint = "check the network, or put the file there yourself"
        raise FetchError(f"{failure} ({_reason(problem)}): {hint}") from problem
    except ValueError as problem:  # pooch raises it for a wrong checksum
        raise DataError(f"{download.url} has a wrong checksum ({first_line(problem)}): it was not kept") from problem
    return Fetched(target, actual, bool(download.checksum))


def _reason(problem: BaseException) -> str:
    """Return the root cause of a network error, which libraries wrap several times."""
    while (inner := problem.__cause__ or problem.__context__) is not None:
        problem = inner
    return getattr(problem, "strerror", None) or first_line(problem)
