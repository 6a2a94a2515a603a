"""The data folder: what is asked for, fetched and unpacked is whole and checked, or not there."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

import pytest

from tardigrad.data.folder import (
    Published,
    check_md5,
    check_sha256,
    check_size,
    data_folder,
    download,
    require,
    unpack,
    whole,
)
from tardigrad.data.get import get
from tardigrad.data.sets import cifar10
from tardigrad.data.sets import mnist as idx
from tardigrad.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TARDIGRAD_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def server():
    """A publisher on this machine: `server.files` by path; a path that ends in -short is torn off."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            body = self.server.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if self.path.endswith("-short") else body)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):  # a client that hangs up early is part of a test
            pass

    with Server(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked = {}, []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def md5(content):
    return hashlib.md5(content).hexdigest()


BODY = bytes(range(256)) * 12_000  # three blocks


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# -- finding -----------------------------------------------------------------------------------------


def test_the_folder_is_named_by_the_environment(folder, monkeypatch, tmp_path):
    assert data_folder() == folder
    monkeypatch.delenv("TARDIGRAD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "tardigrad"


def test_the_first_choice_that_exists_is_taken(folder):
    (folder / "b").mkdir(parents=True)
    assert require("a", "b", publisher="https://example.org") == folder / "b"
    (folder / "a").write_text("")
    assert require("a", "b", publisher="https://example.org") == folder / "a"


def test_missing_data_says_what_to_put_where(folder):
    with pytest.raises(ConfigError) as caught:
        require("a.bin", "b.bin", publisher="https://example.org/a")
    said = str(caught.value)
    assert f"put a.bin or b.bin into {folder}" in said
    assert "https://example.org/a" in said
    assert "data get" not in said
    with pytest.raises(ConfigError, match=r"`tardigrad data get a` or data\.download = true fetches it"):
        require("a.bin", publisher="https://example.org/a", get="a")


# -- checking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("check", "name"), [(check_md5, "md5"), (check_sha256, "sha256")])
def test_checksums(tmp_path, check, name):
    file = tmp_path / "file"
    file.write_bytes(BODY)
    right = hashlib.new(name, BODY).hexdigest()
    check(file, right)
    with pytest.raises(ConfigError, match=f"not the published file .its {name.upper()} is {right[:16]}"):
        check(file, "0" * len(right))
    file.write_bytes(BODY[:-1])  # what was right once is looked at again when it has changed
    with pytest.raises(ConfigError, match="not the published file"):
        check(file, right)


def test_sizes(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    check_size(tmp_path / "file", 3)
    with pytest.raises(ConfigError, match=r"file: truncated .* it has 3 bytes where 4 are right"):
        check_size(tmp_path / "file", 4)


def test_a_file_is_whole_or_not_there(tmp_path):
    def written(fails):
        with whole(tmp_path / "deep" / "file") as partial:
            partial.write_text("half")
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(fails=True)
    assert everything_in(tmp_path) == []
    written(fails=False)
    assert everything_in(tmp_path) == ["deep/file"]


# -- fetching ----------------------------------------------------------------------------------------


def test_a_file_is_fetched_once(folder, server):
    server.files["/there/a.bin"] = BODY
    published = Published(f"{server.url}/there/a.bin", "set/a.bin", md5(BODY))
    for _ in range(2):
        assert download(published) == folder / "set" / "a.bin"
    assert (folder / "set" / "a.bin").read_bytes() == BODY
    assert everything_in(folder) == ["set/a.bin"]
    assert server.asked == ["/there/a.bin"]


def test_a_torn_off_body_is_refused(folder, server):
    server.files["/a-short"] = BODY
    with pytest.raises(
        ConfigError, match=f"the connection ended after {len(BODY) // 2} of {len(BODY)} bytes"
    ):
        download(Published(f"{server.url}/a-short", "a.bin", md5(BODY)))
    assert everything_in(folder) == []


def test_another_file_is_refused(folder, server):
    server.files["/a"] = BODY
    with pytest.raises(ConfigError, match=rf"not the published file \(its MD5 is {md5(BODY)}"):
        download(Published(f"{server.url}/a", "a.bin", md5(b"other")))
    assert everything_in(folder) == []


def test_what_is_not_published_is_named(folder, server):
    with pytest.raises(ConfigError, match=r"/gone: could not be fetched into .* put it there as a\.bin"):
        download(Published(f"{server.url}/gone", "a.bin", md5(BODY)))
    assert everything_in(folder) == []


def test_without_a_network(folder, server):
    server.server_close()
    server.shutdown()
    with pytest.raises(ConfigError, match=r"could not be fetched .* put it there as a\.bin"):
        download(Published(f"{server.url}/a", "a.bin", md5(BODY)))
    assert everything_in(folder) == []


def test_a_folder_that_cannot_be(folder, server):
    folder.write_text("a file where the folder should be")
    server.files["/a"] = BODY
    with pytest.raises(ConfigError, match="could not be fetched into"):
        download(Published(f"{server.url}/a", "a.bin", md5(BODY)))


# -- unpacking ---------------------------------------------------------------------------------------


def tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


MEMBERS = {"set/a": BODY, "../outside": b"evil", "/absolute": b"evil", "set/c": b"not asked for"}
ARCHIVES = [("x.tar.gz", tar), ("x.zip", zipped)]


@pytest.mark.parametrize(("name", "pack"), ARCHIVES)
def test_only_what_is_asked_for_is_unpacked(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(MEMBERS))
    unpack(tmp_path / name, ["set/a"], tmp_path / "out")
    assert everything_in(tmp_path) == sorted([name, "out/a"])
    assert (tmp_path / "out" / "a").read_bytes() == BODY
    unpack(tmp_path / name, ["../outside"], tmp_path / "out")
    assert everything_in(tmp_path) == sorted([name, "out/a", "out/outside"])


@pytest.mark.parametrize(("name", "pack"), ARCHIVES)
def test_a_foreign_archive(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack({"other": b"1"}))
    with pytest.raises(ConfigError, match=rf"{name}: not the published archive: .*set/a"):
        unpack(tmp_path / name, ["set/a"], tmp_path / "out")


@pytest.mark.parametrize(("name", "pack"), ARCHIVES)
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.9])
def test_a_truncated_archive(tmp_path, name, pack, keep):
    content = pack(MEMBERS)
    (tmp_path / name).write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ConfigError, match=rf"{name}: "):
        unpack(tmp_path / name, ["set/a"], tmp_path / "out")
    assert everything_in(tmp_path) == [name]


# -- whole data sets ---------------------------------------------------------------------------------


@pytest.fixture
def small_cifar10(monkeypatch, server):
    """CIFAR-10 with two images a file, at a publisher on this machine."""
    row = 1 + cifar10.PIXELS
    files = {
        f"{n}.bin": bytes([i] * row + [i + 1] * row) for i, n in enumerate([*cifar10.TRAIN, "test_batch"])
    }
    archive = tar({f"cifar-10-batches-bin/{name}": content for name, content in files.items()})
    server.files["/cifar.tar.gz"] = archive
    monkeypatch.setattr(cifar10, "ROWS", 2)
    monkeypatch.setattr(cifar10, "MD5", {name: md5(content) for name, content in files.items()})
    monkeypatch.setattr(
        cifar10, "ARCHIVE", Published(f"{server.url}/cifar.tar.gz", "cifar-10-binary.tar.gz", md5(archive))
    )
    return files


def test_cifar10_is_fetched_and_unpacked(folder, server, small_cifar10):
    assert get("cifar10") == folder / "cifar-10-batches-bin"
    assert everything_in(folder) == sorted(f"cifar-10-batches-bin/{name}" for name in small_cifar10)
    get("cifar10")
    assert server.asked == ["/cifar.tar.gz"]


def test_a_config_fetches_only_if_it_says_so(folder, server, small_cifar10):
    partition = {"kind": "iid", "clients": 2}
    with pytest.raises(ConfigError, match="put cifar-10-batches-bin or cifar-10-batches-py into"):
        cifar10.CIFAR10(partition=partition).federation(0)
    assert server.asked == []
    assert len(cifar10.CIFAR10(partition=partition, download=True).federation(0).clients) == 2


def test_a_half_unpacked_set_is_completed(folder, small_cifar10):
    get("cifar10")
    (folder / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(ConfigError, match=r"data_batch_3\.bin is missing"):
        cifar10.CIFAR10().load()
    get("cifar10")
    cifar10.CIFAR10().load()


def test_the_users_own_archive_is_used_and_kept(folder, server, small_cifar10):
    folder.mkdir()
    (folder / "cifar-10-binary.tar.gz").write_bytes(server.files["/cifar.tar.gz"])
    get("cifar10")
    assert server.asked == []
    assert (folder / "cifar-10-binary.tar.gz").exists()


def test_get_checks_what_is_there(folder, small_cifar10):
    file = get("cifar10") / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ConfigError, match=r"test_batch\.bin: not the published file"):
        get("cifar10")


def test_mnist_is_fetched_file_by_file(folder, server, monkeypatch):
    monkeypatch.setattr(idx.MNIST, "URL", f"{server.url}/mnist")
    monkeypatch.setattr(idx.MNIST, "MD5", {"train-images-idx3-ubyte": md5(b"1"), "x": md5(b"2")})
    server.files |= {"/mnist/train-images-idx3-ubyte.gz": b"1", "/mnist/x.gz": b"2"}
    assert idx.MNIST().fetch() == folder / "mnist"
    assert everything_in(folder) == ["mnist/train-images-idx3-ubyte.gz", "mnist/x.gz"]


def test_emnists_archive_is_fetched_once_for_all_splits(folder, server, monkeypatch):
    names = {
        split: [f"emnist-{split}-{p}-{w}.gz" for p in ("train", "test") for w in (idx.IMAGES, idx.LABELS)]
        for split in ("letters", "digits")
    }
    archive = zipped({f"gzip/{name}": name.encode() for split in names.values() for name in split})
    server.files["/gzip.zip"] = archive
    monkeypatch.setattr(
        idx, "EMNIST_ARCHIVE", Published(f"{server.url}/gzip.zip", "emnist/gzip.zip", md5(archive))
    )
    idx.EMNIST(split="letters").fetch()
    assert everything_in(folder) == sorted(["emnist/gzip.zip", *(f"emnist/{n}" for n in names["letters"])])
    idx.EMNIST(split="digits").fetch()
    assert server.asked == ["/gzip.zip"]
    assert (folder / "emnist" / names["digits"][0]).read_text() == names["digits"][0]


def test_what_cannot_be_fetched():
    with pytest.raises(ConfigError, match="'celeba' cannot be fetched; these can: cifar10, mnist"):
        get("celeba")
