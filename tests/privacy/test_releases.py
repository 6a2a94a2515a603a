"""The record of released versions: a private run is never repeated with other values."""

import json
import os
import shutil
import stat

import pytest
import torch

import tardigrad as td
from tardigrad.core.events import ModelMoved
from tardigrad.errors import ConfigError, RunError
from tardigrad.privacy.releases import ReleaseLog


def model(value):
    return {"model": torch.full((3,), float(value))}


def begun(file, versions=3, guard=None):
    log = ReleaseLog(file, guard)
    for version in range(1, versions + 1):
        log.release(version, model(version))
    log.close()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "releases.log"


def test_repeated_version_must_be_the_same(file):
    begun(file)
    log = ReleaseLog(file)
    log.release(2, model(2))
    log.release(3, model(3))
    log.release(4, model(4))
    again = ReleaseLog(file)
    with pytest.raises(RunError, match="version 4 was released before, with other values"):
        again.release(4, model(5))
    with pytest.raises(RunError, match="version 6 does not follow 4"):
        again.release(6, model(6))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_digest_depends_on_names_and_types(file):
    log = ReleaseLog(file)
    log.release(1, model(1))
    for other in ({"other": torch.ones(3)}, {"model": torch.ones(3, dtype=torch.float64)}, {}):
        with pytest.raises(RunError, match="with other values"):
            log.release(1, other)


def test_version_is_on_disk_before_release_returns(file):
    log = ReleaseLog(file)
    log.release(1, model(1))
    assert file.read_text().splitlines()[-1].startswith("1 ")


def test_unfinished_last_line_counts_as_never_written(file):
    begun(file)
    os.truncate(file, file.stat().st_size - 5)
    log = ReleaseLog(file)
    assert log.last == 2
    log.release(3, model(7))
    log.close()
    assert ReleaseLog(file).last == 3


@pytest.mark.parametrize("line", [b"open x y z\n", b"\xff\xfe 1\n", b"\n", b"3\n"])
def test_damaged_record_is_refused(file, line):
    begun(file)
    with file.open("ab") as record:
        record.write(line)
    with pytest.raises(ConfigError, match="is damaged; start a new run"):
        ReleaseLog(file)


def test_record_of_a_begun_run_must_exist(file):
    with pytest.raises(ConfigError, match="record of the released versions is gone"):
        ReleaseLog(file, begun=True)
    assert not file.exists()


def test_copied_folder_is_refused_unless_it_was_moved(file, tmp_path):
    begun(file)
    shutil.copytree(file.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / file.name
    content = copy.read_bytes()
    with pytest.raises(ConfigError, match="copied or put back from a backup"):
        ReleaseLog(copy)
    assert copy.read_bytes() == content, "a refusal changes nothing"
    ReleaseLog(copy, moved=True).close()
    ReleaseLog(copy).close()
    file.parent.rename(tmp_path / "elsewhere")
    ReleaseLog(tmp_path / "elsewhere" / file.name).close()


def contents(folder):
    """What a refusal must leave as it is: all files but the record, to which a failed start may be added."""
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name not in ("releases.log", ".lock")
    }


def test_folder_put_back_over_itself_is_refused(file, tmp_path):
    """Copying over a file keeps its inode, and a deleted file's inode is often given to the next."""
    begun(file)
    shutil.copytree(file.parent, tmp_path / "backup")
    log = ReleaseLog(file)
    log.release(4, model(4))
    log.close()
    shutil.copytree(tmp_path / "backup", file.parent, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match="copied or put back from a backup"):
        ReleaseLog(file)
    shutil.rmtree(file.parent)
    shutil.copytree(tmp_path / "backup", file.parent)
    with pytest.raises(ConfigError, match="copied or put back from a backup"):
        ReleaseLog(file)


def test_killed_before_its_first_line_was_complete(file):
    file.write_text("run 0123\n")
    log = ReleaseLog(file)
    log.release(1, model(1))
    log.close()
    assert ReleaseLog(file).last == 1


def test_record_that_is_a_folder_is_damaged(file):
    file.mkdir()
    with pytest.raises(ConfigError, match="is damaged"):
        ReleaseLog(file)


class TestGuard:
    @pytest.fixture
    def guard(self, tmp_path):
        return tmp_path / "guard.json"

    def test_run_with_a_guard_goes_on(self, file, guard):
        begun(file, guard=guard)
        log = ReleaseLog(file, guard)
        log.release(4, model(4))
        assert json.loads(guard.read_text())["version"] == 4

    def test_older_state_of_the_folder_is_refused(self, file, guard):
        begun(file, guard=guard)
        old = file.read_bytes()
        log = ReleaseLog(file, guard)
        log.release(4, model(4))
        log.close()
        file.write_bytes(old)  # in place: the inode stays
        with pytest.raises(ConfigError, match="another copy of the folder went on"):
            ReleaseLog(file, guard)

    def test_older_state_within_one_process_is_refused(self, file, guard):
        log = ReleaseLog(file, guard)
        log.release(1, model(1))
        old = file.read_bytes()
        log.release(2, model(2))
        log.close()
        file.write_bytes(old)
        with pytest.raises(ConfigError, match="version 2 was released, but the folder knows of 1"):
            ReleaseLog(file, guard)

    def test_copy_that_went_on_is_noticed_by_the_original(self, file, guard, tmp_path):
        begun(file, guard=guard)
        shutil.copytree(file.parent, tmp_path / "copy")
        ReleaseLog(tmp_path / "copy" / file.name, guard, moved=True).close()
        with pytest.raises(ConfigError, match="another copy of the folder went on"):
            ReleaseLog(file, guard)

    def test_two_processes_at_once_are_refused(self, file, guard, tmp_path):
        """File locks are between processes, so the second is one."""
        begun(file, guard=guard)
        shutil.copytree(file.parent, tmp_path / "copy")
        log = ReleaseLog(file, guard)
        child = os.fork()
        if child == 0:
            try:
                ReleaseLog(tmp_path / "copy" / file.name, guard, moved=True)
            except ConfigError as error:
                os._exit(7 if "another process goes on" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        log.close()

    def test_killed_between_record_and_guard(self, file, guard):
        begun(file, guard=guard)
        before = guard.read_bytes()
        log = ReleaseLog(file, guard)
        guard.write_bytes(before)  # as if killed before the guard was written
        log.close()
        log = ReleaseLog(file, guard)
        before = guard.read_bytes()
        log.release(4, model(4))
        guard.write_bytes(before)
        log.close()
        ReleaseLog(file, guard).release(5, model(5))

    def test_guard_that_could_not_be_written_for_a_while(self, file, guard):
        begun(file, guard=guard)
        partial = guard.with_name(guard.name + ".partial")
        partial.mkdir()
        for _ in range(3):
            with pytest.raises(ConfigError, match="cannot be written"):
                ReleaseLog(file, guard)
        partial.rmdir()
        ReleaseLog(file, guard).release(4, model(4))

    @pytest.mark.parametrize("bad", ["/", "", ".", "nowhere/guard.json"])
    def test_guard_that_is_no_file(self, tmp_path, bad):
        with pytest.raises(ConfigError, match="must be a file in a folder that exists"):
            td.run(**CONFIG, out=tmp_path / "run", guard=bad)
        assert not (tmp_path / "run").exists(), "the right command works afterwards"

    def test_guard_of_another_run_or_damaged_or_left_out(self, file, guard, tmp_path):
        begun(file, guard=guard)
        other = tmp_path / "other.log"
        with pytest.raises(ConfigError, match="belongs to another run"):
            ReleaseLog(other, guard)
        begun(other, guard=tmp_path / "others-guard.json")
        with pytest.raises(ConfigError, match="belongs to another run"):
            ReleaseLog(file, tmp_path / "others-guard.json")
        with pytest.raises(ConfigError, match="begun with a guard"):
            ReleaseLog(file)
        for content in ("", "[]", '{"run": 1}', "{"):
            guard.write_text(content)
            with pytest.raises(ConfigError, match="is gone or damaged"):
                ReleaseLog(file, guard)
        unguarded = tmp_path / "unguarded.log"
        begun(unguarded)
        with pytest.raises(ConfigError, match="begun without a guard"):
            ReleaseLog(unguarded, tmp_path / "new.json")


CONFIG = {
    "data": td.Digits(partition=td.IID(clients=40)),
    "model": td.MLP(hidden=()),
    "local": td.Local(lr=0.05),
    "pace": td.Asynchronous(concurrency=10),
    "buffer": td.Buffer(size=4),
    "stop": td.Stop(steps=12),
    "privacy": {"kind": "participation", "participations": 4, "separation": 3, "noise_multiplier": 0.5},
}


class Interrupted:
    """An observer that stops the run after some steps, as Ctrl-C does."""

    def __init__(self, steps):
        self.steps = steps

    def begin(self, config, events):
        pass

    def see(self, events):
        self.steps -= sum(isinstance(event, ModelMoved) for event in events)
        if self.steps <= 0:
            raise KeyboardInterrupt

    def end(self):
        pass


def interrupted(out, steps, **options):
    with pytest.raises(KeyboardInterrupt):
        td.run(**CONFIG, out=out, observers=(Interrupted(steps),), **options)


def test_simulation_whose_snapshot_was_deleted_is_refused(tmp_path):
    out = tmp_path / "run"
    interrupted(out, 5)
    (out / "snapshot.safetensors").unlink()
    before = contents(out)
    with pytest.raises(RunError, match="version 1 was released before, and the key of its noise is gone"):
        td.run(**CONFIG, out=out, resume=True)
    assert contents(out) == before, "a refusal changes nothing"
    (out / "releases.log").unlink()
    with pytest.raises(ConfigError, match="record of the released versions is gone"):
        td.run(**CONFIG, out=out, resume=True)


def test_simulation_with_an_older_snapshot_is_refused(tmp_path):
    out = tmp_path / "run"
    interrupted(out, 3)
    shutil.copy(out / "snapshot.safetensors", tmp_path)
    events = (out / "events.jsonl").read_bytes()
    interrupted(out, 3, resume=True)
    shutil.copy(tmp_path / "snapshot.safetensors", out)
    (out / "events.jsonl").write_bytes(events)
    with pytest.raises(RunError, match="version 4 was released before, and the key of its noise is gone"):
        td.run(**CONFIG, out=out, resume=True)


def test_simulation_whose_noise_keys_were_deleted_is_refused(tmp_path):
    """Killed, so that steps after the snapshot are made again."""
    out = tmp_path / "run"
    child = os.fork()
    if child == 0:
        td.run(**CONFIG, out=out, snapshot_seconds=1e6, observers=(Killed(5),))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    shutil.copytree(out, tmp_path / "copy")
    assert td.run(**CONFIG, out=out, resume=True).steps == 12
    (tmp_path / "copy" / "noise.keys").unlink()
    with pytest.raises(RunError, match="version 1 was released before, and the key of its noise is gone"):
        td.run(**CONFIG, out=tmp_path / "copy", resume=True, moved=True)


class Killed(Interrupted):
    def see(self, events):
        try:
            super().see(events)
        except KeyboardInterrupt:
            os.kill(os.getpid(), 9)


def test_copied_simulation_and_guard(tmp_path):
    out, guard = tmp_path / "run", tmp_path / "guard.json"
    interrupted(out, 3, guard=guard)
    shutil.copytree(out, tmp_path / "copy")
    with pytest.raises(ConfigError, match="copied or put back from a backup"):
        td.run(**CONFIG, out=tmp_path / "copy", resume=True, guard=guard)
    interrupted(out, 3, resume=True, guard=guard)
    with pytest.raises(ConfigError, match="another copy of the folder went on"):
        td.run(**CONFIG, out=tmp_path / "copy", resume=True, guard=guard, moved=True)
    with pytest.raises(ConfigError, match="outside the run's folder"):
        td.run(**CONFIG, out=tmp_path / "new", guard=tmp_path / "new" / "guard.json")


def test_advice_of_a_private_run_never_breaks_the_promise(tmp_path):
    """No message of a damaged private run advises to delete something and begin again, or to use a backup."""
    out = tmp_path / "run"
    interrupted(out, 3)
    snapshot = (out / "snapshot.safetensors").read_bytes()
    (out / "snapshot.safetensors").write_bytes(snapshot[:-10])
    with pytest.raises(RunError, match="must neither be repeated nor go on from a backup"):
        td.run(**CONFIG, out=out, resume=True)
    (out / "summary.json").write_text("{")
    with pytest.raises(RunError, match="start a new run"):
        td.run(**CONFIG, out=out, resume=True)


def test_changed_choice_of_noise_is_noticed(tmp_path):
    out = tmp_path / "run"
    interrupted(out, 3)
    text = (out / "privacy.json").read_text()
    for damaged in (text.replace('"noise_multiplier": 0.5', '"noise_multiplier": 0.01'), "[]", "{}", ""):
        (out / "privacy.json").write_text(damaged)
        with pytest.raises(RunError, match=r"privacy.json is damaged"):
            td.run(**CONFIG, out=out, resume=True)
    (out / "privacy.json").write_text(text)
    assert td.run(**CONFIG, out=out, resume=True).steps == 12


def test_copied_and_refused_the_events_are_all_there(tmp_path):
    out = tmp_path / "run"
    interrupted(out, 3)
    with (out / "events.jsonl").open("a") as events:
        events.write('{"event": "told after the snapshot"}\n')
    shutil.copytree(out, tmp_path / "copy")
    before = contents(tmp_path / "copy")
    with pytest.raises(ConfigError, match="copied or put back"):
        td.run(**CONFIG, out=tmp_path / "copy", resume=True)
    assert contents(tmp_path / "copy") == before


@pytest.mark.parametrize("private", [True, False])
def test_lost_config_is_not_replaced_by_another(tmp_path, private):
    out, config = tmp_path / "run", dict(CONFIG) if private else CONFIG | {"privacy": None}
    with pytest.raises(KeyboardInterrupt):
        td.run(**config, out=out, observers=(Interrupted(3),))
    (out / "config.toml").unlink()
    with pytest.raises(RunError, match=r"config.toml is gone"):
        td.run(**config | {"local": td.Local(lr=0.5)}, out=out, resume=True)
    (out / "config.toml").write_text("")
    with pytest.raises(RunError, match=r"config.toml is empty"):
        td.run(**config, out=out, resume=True)


def test_noise_from_the_seed_promises_nothing_and_keeps_no_record(tmp_path):
    privacy = CONFIG["privacy"] | {"noise_from": "seed"}
    td.run(**CONFIG | {"privacy": privacy}, out=tmp_path / "run")
    assert not (tmp_path / "run" / "releases.log").exists()
    with pytest.raises(ConfigError, match="--guard: is for private runs"):
        td.run(**CONFIG | {"privacy": privacy}, out=tmp_path / "two", guard=tmp_path / "guard")
