"""Downloads with checksums, into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nestling.data.decoded import record_of, recorded, sha256
from nestling.data.extras import need
from nestling.data.places import download_dir
from nestling.data.sources import Download
from nestling.data.texts import entry
from nestling.errors import DataError, FetchError, first_line


@dataclass(frozen=True)
class Fetched:
    """A file that is there now; ``verified`` tells whether a published checksum vouches for it."""

    path: Path
    sha256: str
    verified: bool


def get(name: str, progress: bool = False) -> tuple[Fetched, ...]:
    """Fetch the files of the dataset called `name`, unless they are there; none for one that needs no files.

    A file whose checksum nobody publishes is taken as it comes. In either case its SHA-256 is written next to it, and
    ``load`` compares.

    Parameters
    ----------
    name
        A name from ``nestling.data.names()``.
    progress
        Whether to show a bar on stderr.

    Examples
    --------
    >>> get("digits")
    ()
    """
    found = entry(name)
    return tuple(_fetch(download, download_dir() / found.inside[0], progress) for download in found.downloads)


def _fetch(download: Download, folder: Path, progress: bool) -> Fetched:
    pooch = need("pooch", "data", "downloads")
    if progress:
        need("tqdm", "data", "progress bars")
    pooch.get_logger().setLevel("WARNING")
    target = folder / download.file
    known = recorded(target) if target.exists() else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A temporary file, renamed once its checksum is right: what breaks off leaves nothing behind.
        pooch.retrieve(
            download.url,
            known_hash=download.checksum or (f"sha256:{known}" if known else None),
            fname=download.file,
            path=folder,
            progressbar=progress,
        )
        actual = sha256(target)
        record_of(target).write_text(f"{actual}  {target.name}\n")
    except OSError as problem:
        where = f"{download.url} cannot be fetched into {str(folder)!r}"
        if problem.errno is not None:  # of the disk; what networks raise has none
            raise FetchError(f"{where}: {problem.strerror}") from problem
        hint = "check the network, or put the file there yourself"
        raise FetchError(f"{where} ({_reason(problem)}): {hint}") from problem
    except ValueError as problem:  # pooch's word for a wrong checksum
        raise DataError(
            f"what {download.url} sends has not the checksum it should ({first_line(problem)}): it was not kept"
        ) from problem
    return Fetched(target, actual, bool(download.checksum))


def _reason(problem: BaseException) -> str:
    """What an error of the network comes down to: libraries wrap it several times."""
    while (inner := problem.__cause__ or problem.__context__) is not None:
        problem = inner
    return getattr(problem, "strerror", None) or first_line(problem)
