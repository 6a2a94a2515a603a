"""The data folder: files that are downloaded or unpacked are complete and checked, or absent."""

import pytest

from data_files import files_in, md5, tar, zipped
from tardigrad.data.folder import (
    Published,
    check_md5,
    check_size,
    data_folder,
    download,
    require,
    unpack,
    whole,
)
from tardigrad.errors import ConfigError

BODY = bytes(range(256)) * 12_000  # three blocks


def test_data_folder_comes_from_the_environment(folder, monkeypatch, tmp_path):
    assert data_folder() == folder
    monkeypatch.delenv("TARDIGRAD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "tardigrad"


def test_require_returns_the_first_path_that_exists(folder):
    (folder / "b").mkdir(parents=True)
    assert require("a", "b", publisher="https://example.org") == folder / "b"
    (folder / "a").write_text("")
    assert require("a", "b", publisher="https://example.org") == folder / "a"


def test_error_for_missing_data_says_what_to_put_where(folder):
    with pytest.raises(ConfigError) as caught:
        require("a.bin", "b.bin", publisher="https://example.org/a")
    said = str(caught.value)
    assert f"put a.bin or b.bin into {folder}" in said
    assert "https://example.org/a" in said
    assert "data get" not in said
    with pytest.raises(ConfigError, match=r"`tardigrad data get a` or data\.download = true fetches it"):
        require("a.bin", publisher="https://example.org/a", get="a")


def test_file_with_another_checksum_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(BODY)
    right = md5(BODY)
    check_md5(file, right)
    with pytest.raises(ConfigError, match=f"not the published file .its MD5 is {right[:16]}"):
        check_md5(file, "0" * len(right))
    file.write_bytes(BODY[:-1])  # the checksum is cached, but computed again if the file has changed
    with pytest.raises(ConfigError, match="not the published file"):
        check_md5(file, right)


def test_file_of_another_size_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    check_size(tmp_path / "file", 3)
    with pytest.raises(ConfigError, match=r"file: truncated .* it has 3 bytes where 4 are right"):
        check_size(tmp_path / "file", 4)


def test_interrupted_write_leaves_no_file(tmp_path):
    def written(fails):
        with whole(tmp_path / "deep" / "file") as partial:
            partial.write_text("half")
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(fails=True)
    assert files_in(tmp_path) == []
    written(fails=False)
    assert files_in(tmp_path) == ["deep/file"]


def test_file_is_downloaded_once(folder, server):
    server.files["/there/a.bin"] = BODY
    published = Published(f"{server.url}/there/a.bin", "set/a.bin", md5(BODY))
    for _ in range(2):
        assert download(published) == folder / "set" / "a.bin"
    assert (folder / "set" / "a.bin").read_bytes() == BODY
    assert files_in(folder) == ["set/a.bin"]
    assert server.asked == ["/there/a.bin"]


def test_incomplete_download_is_refused(folder, server):
    server.files["/a-short"] = BODY
    with pytest.raises(
        ConfigError, match=f"the connection ended after {len(BODY) // 2} of {len(BODY)} bytes"
    ):
        download(Published(f"{server.url}/a-short", "a.bin", md5(BODY)))
    assert files_in(folder) == []


def test_download_with_another_checksum_is_refused(folder, server):
    server.files["/a"] = BODY
    with pytest.raises(ConfigError, match=rf"not the published file \(its MD5 is {md5(BODY)}"):
        download(Published(f"{server.url}/a", "a.bin", md5(b"other")))
    assert files_in(folder) == []


def test_error_for_http_404_says_where_to_put_the_file(folder, server):
    with pytest.raises(ConfigError, match=r"/gone: could not be fetched into .* put it there as a\.bin"):
        download(Published(f"{server.url}/gone", "a.bin", md5(BODY)))
    assert files_in(folder) == []


def test_error_without_a_network_says_where_to_put_the_file(folder, server):
    server.server_close()
    server.shutdown()
    with pytest.raises(ConfigError, match=r"could not be fetched .* put it there as a\.bin"):
        download(Published(f"{server.url}/a", "a.bin", md5(BODY)))
    assert files_in(folder) == []


def test_download_into_an_impossible_folder_is_refused(folder, server):
    folder.rmdir()
    folder.write_text("a file where the folder should be")
    server.files["/a"] = BODY
    with pytest.raises(ConfigError, match="could not be fetched into"):
        download(Published(f"{server.url}/a", "a.bin", md5(BODY)))


MEMBERS = {"set/a": BODY, "../outside": b"evil", "/absolute": b"evil", "set/c": b"not asked for"}
ARCHIVES = [("x.tar.gz", tar), ("x.zip", zipped)]


@pytest.mark.parametrize(("name", "pack"), ARCHIVES)
def test_only_requested_members_are_unpacked(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(MEMBERS))
    unpack(tmp_path / name, ["set/a"], tmp_path / "out")
    assert files_in(tmp_path) == sorted([name, "out/a"])
    assert (tmp_path / "out" / "a").read_bytes() == BODY
    unpack(tmp_path / name, ["../outside"], tmp_path / "out")
    assert files_in(tmp_path) == sorted([name, "out/a", "out/outside"])


@pytest.mark.parametrize(("name", "pack"), ARCHIVES)
def test_archive_without_the_requested_member_is_refused(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack({"other": b"1"}))
    with pytest.raises(ConfigError, match=rf"{name}: not the published archive: .*set/a"):
        unpack(tmp_path / name, ["set/a"], tmp_path / "out")


@pytest.mark.parametrize(("name", "pack"), ARCHIVES)
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.9])
def test_truncated_archive_is_refused(tmp_path, name, pack, keep):
    content = pack(MEMBERS)
    (tmp_path / name).write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ConfigError, match=rf"{name}: "):
        unpack(tmp_path / name, ["set/a"], tmp_path / "out")
    assert files_in(tmp_path) == [name]
