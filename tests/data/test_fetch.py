"""Downloads from a server on this machine: checksums, progress, and what breaks off."""

import hashlib
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nestling.data import DATASETS, get, load
from nestling.data.catalog import Download, Source
from nestling.data.readers.idx import files as idx_files
from nestling.data.readers.idx import read
from nestling.errors import DataError
from tests.data.data_files import idx_arrays, idx_bytes


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requested.append(self.path)
        data = self.server.files.get(self.path.rpartition("/")[2])
        if data is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) + self.server.withheld))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.files, httpd.requested, httpd.withheld = {}, [], 0
        thread = threading.Thread(target=partial(httpd.serve_forever, poll_interval=0.01), daemon=True)
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


@pytest.fixture
def toy(server, monkeypatch):
    """A dataset that the server has; returns a function to set its checksums: a function of bytes, or nothing."""
    server.files = {name: idx_bytes(array) for name, array in zip(idx_files(), idx_arrays(), strict=True)}

    def offer(checksum=None):
        downloads = tuple(
            Download(f"http://127.0.0.1:{server.server_port}/{name}", checksum(data) if checksum else "")
            for name, data in server.files.items()
        )
        monkeypatch.setitem(DATASETS, "toy", Source("A toy.", 10, read, (idx_files(),), ("toy",), downloads))

    return offer


def md5(data):
    return f"md5:{hashlib.md5(data).hexdigest()}"


def test_fetched_once_verified_and_loaded(server, toy, cache):
    toy(md5)
    files = get("toy")
    assert [file.path.name for file in files] == list(idx_files())
    assert all(file.verified for file in files)
    assert all(file.sha256 == hashlib.sha256(server.files[file.path.name]).hexdigest() for file in files)
    assert all(file.path.parent == cache / "data" / "toy" for file in files)
    assert len(load("toy").inputs) == 12
    assert get("toy") == files
    assert len(server.requested) == 4


def test_progress_goes_to_stderr(toy, capsys):
    toy(md5)
    get("toy", progress=True)
    shown = capsys.readouterr()
    assert "100%" in shown.err
    assert not shown.out


def test_a_wrong_checksum_is_not_kept(toy, cache):
    toy(lambda _data: "md5:" + "0" * 32)
    with pytest.raises(DataError, match="has a wrong checksum") as caught:
        get("toy")
    assert "\n" not in str(caught.value)
    assert not list((cache / "data" / "toy").iterdir())


@pytest.mark.parametrize("checksum", [md5, None])
def test_what_breaks_off_does_not_stay(server, toy, cache, checksum):
    toy(checksum)
    server.withheld = 10
    with pytest.raises(DataError, match="cannot be fetched into"):
        get("toy")
    assert not list((cache / "data" / "toy").iterdir())
    server.withheld = 0
    assert len(get("toy")) == 4


def test_without_a_published_checksum_the_first_file_counts(server, toy):
    toy()
    files = get("toy")
    assert not any(file.verified for file in files)
    record = files[0].path.with_name(files[0].path.name + ".sha256")
    assert record.read_text() == f"{files[0].sha256}  {files[0].path.name}\n"
    right = files[0].path.read_bytes()
    files[0].path.write_bytes(right[:-1] + b"?")
    with pytest.raises(DataError, match="is not the file that was fetched"):
        load("toy")
    assert get("toy") == files  # fetched again, and compared with the record
    assert files[0].path.read_bytes() == right
    files[0].path.write_bytes(b"damaged")
    server.files[files[0].path.name] = b"something else by now"
    with pytest.raises(DataError, match="has a wrong checksum"):
        get("toy")


def test_what_is_not_there(server, toy, monkeypatch):
    toy(md5)
    del server.files[idx_files()[2]]
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte cannot be fetched into .*404"):
        get("toy")
    monkeypatch.setitem(DATASETS, "gone", Source("", 1, read, (("x",),), ("x",), (Download("http://127.0.0.1:9/x"),)))
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/x cannot be fetched"):
        get("gone")


def test_every_source_that_needs_files_can_be_fetched_into_a_place_where_load_looks():
    for source in DATASETS.values():
        forms = [set(layout) for layout in source.layouts]
        fetched = {download.file for download in source.downloads}
        assert not forms or fetched in forms
