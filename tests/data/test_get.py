"""`tardigrad data get`: whole data sets are downloaded, unpacked and checked."""

import pytest

from data_files import files_in, md5, tar, zipped
from tardigrad.data.folder import Published
from tardigrad.data.get import get
from tardigrad.data.idx import IMAGES, LABELS
from tardigrad.data.sets import cifar10, emnist
from tardigrad.data.sets.emnist import EMNIST
from tardigrad.data.sets.mnist import MNIST
from tardigrad.errors import ConfigError


@pytest.fixture
def small_cifar10(monkeypatch, server):
    """CIFAR-10 with two images in each file, on the local HTTP server."""
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


def test_cifar10_is_downloaded_and_unpacked(folder, server, small_cifar10):
    assert get("cifar10") == folder / "cifar-10-batches-bin"
    assert files_in(folder) == sorted(f"cifar-10-batches-bin/{name}" for name in small_cifar10)
    get("cifar10")
    assert server.asked == ["/cifar.tar.gz"]


def test_config_downloads_only_with_download_true(folder, server, small_cifar10):
    partition = {"kind": "iid", "clients": 2}
    with pytest.raises(ConfigError, match="put cifar-10-batches-bin or cifar-10-batches-py into"):
        cifar10.CIFAR10(partition=partition).federation(0)
    assert server.asked == []
    assert len(cifar10.CIFAR10(partition=partition, download=True).federation(0).clients) == 2


def test_missing_file_of_a_data_set_is_unpacked_again(folder, small_cifar10):
    get("cifar10")
    (folder / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(ConfigError, match=r"data_batch_3\.bin is missing"):
        cifar10.CIFAR10().load()
    get("cifar10")
    cifar10.CIFAR10().load()


def test_existing_archive_is_used_and_kept(folder, server, small_cifar10):
    (folder / "cifar-10-binary.tar.gz").write_bytes(server.files["/cifar.tar.gz"])
    get("cifar10")
    assert server.asked == []
    assert (folder / "cifar-10-binary.tar.gz").exists()


def test_get_checks_existing_files(folder, small_cifar10):
    file = get("cifar10") / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ConfigError, match=r"test_batch\.bin: not the published file"):
        get("cifar10")


def test_mnist_is_downloaded_file_by_file(folder, server, monkeypatch):
    monkeypatch.setattr(MNIST, "URL", f"{server.url}/mnist")
    monkeypatch.setattr(MNIST, "MD5", {"train-images-idx3-ubyte": md5(b"1"), "x": md5(b"2")})
    server.files |= {"/mnist/train-images-idx3-ubyte.gz": b"1", "/mnist/x.gz": b"2"}
    assert MNIST().fetch() == folder / "mnist"
    assert files_in(folder) == ["mnist/train-images-idx3-ubyte.gz", "mnist/x.gz"]


def test_emnist_archive_is_downloaded_once_for_all_splits(folder, server, monkeypatch):
    names = {
        split: [f"emnist-{split}-{p}-{w}.gz" for p in ("train", "test") for w in (IMAGES, LABELS)]
        for split in ("letters", "digits")
    }
    archive = zipped({f"gzip/{name}": name.encode() for split in names.values() for name in split})
    server.files["/gzip.zip"] = archive
    monkeypatch.setattr(
        emnist, "ARCHIVE", Published(f"{server.url}/gzip.zip", "emnist/gzip.zip", md5(archive))
    )
    EMNIST(split="letters").fetch()
    assert files_in(folder) == sorted(["emnist/gzip.zip", *(f"emnist/{n}" for n in names["letters"])])
    EMNIST(split="digits").fetch()
    assert server.asked == ["/gzip.zip"]
    assert (folder / "emnist" / names["digits"][0]).read_text() == names["digits"][0]


def test_data_set_without_a_download_is_refused():
    with pytest.raises(ConfigError, match="'celeba' cannot be fetched; these can: cifar10, mnist"):
        get("celeba")
