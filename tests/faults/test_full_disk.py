"""A disk that fills up, a folder that nobody may write: the old file stands, no scratch stays, the error names it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.core import files, state
from recipes.core.journal import Journal, read_records
from recipes.errors import LaunchError
from recipes.launch import preflight, resume

BIG = "x" * 200_000
# What each writer of the house does to a file that exists, under a limit of 64 KiB per file: as on a full disk, the
# kernel takes the first part of a write and refuses the rest.
WRITERS = {
    "text": "files.write(path, BIG)",
    "json": "files.write_json(path, {'text': BIG})",
    "json lines": "files.write_json_lines(path, [{'text': 'x' * 1000}] * 200)",
    "parquet": "files.write_parquet(path, [{'text': os.urandom(1000).hex()} for _ in range(500)])",
    "state": "state.save(path, {'text': BIG})",
    "metrics": "resume.carry_metrics_over(path, 10)",
}
PROGRAM = """
import os, resource, sys
from pathlib import Path
from recipes.core import files, state
from recipes.launch import resume
BIG, path = "x" * 200_000, Path(sys.argv[1])
import pyarrow.parquet
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    {writer}
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("writer", WRITERS)
def test_the_old_file_stands_when_the_new_one_does_not_fit(tmp_path, writer):
    path = tmp_path / "file.json"
    old = "".join(json.dumps({"step": step, "data": {"x": "y" * 20_000}}) + "\n" for step in range(1, 9))
    path.write_text(old)
    program = PROGRAM.format(writer=WRITERS[writer])
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(errno.EFBIG), done.stdout + done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]
    assert path.read_text() == old


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_costs_a_checkpoint_and_not_the_one_before(small_disk):
    save = small_disk / "global_step_2" / "serl.json"
    state.save(save, {"pool": ["a"]})
    with pytest.raises(OSError) as caught:
        state.save(small_disk / "global_step_4" / "serl.json", {"pool": [BIG, BIG]})
    assert caught.value.errno == errno.ENOSPC
    assert state.load(save) == {"pool": ["a"]} and list((small_disk / "global_step_4").iterdir()) == []


def test_a_journal_on_a_full_disk_takes_back_what_did_not_fit(small_disk):
    with Journal(small_disk / "j.jsonl", {"seed": 1}, key="id") as journal:
        written = []
        with pytest.raises(OSError) as caught:
            for number in range(100):
                journal.append({"id": str(number), "text": "x" * 9000})
                written.append(str(number))
        assert caught.value.errno == errno.ENOSPC and written
        journal.append({"id": "short"})
    assert [record["id"] for record in read_records([journal.path], key="id")] == [*written, "short"]


def test_the_tracker_that_a_full_disk_left_empty_is_mended(small_disk):
    """verl truncates its tracker before it writes; the checkpoint that it named is found all the same."""
    import zipfile

    for step in (2, 4):
        actor = small_disk / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        for path in (actor / "model_world_size_1_rank_0.pt", actor.parent / "data.pt"):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("data", "x")
    (small_disk / resume.TRACKER).write_text("")
    filler = small_disk / "filler"
    with pytest.raises(OSError), filler.open("wb") as file:
        file.write(bytes(1 << 20))
    with pytest.raises(OSError):
        resume.resume_step(small_disk)
    assert (small_disk / resume.TRACKER).read_text() == "" and not list(small_disk.glob(".*partial"))
    filler.unlink()
    assert resume.resume_step(small_disk)[0] == 4


def test_a_full_disk_is_refused_before_ray_starts(small_disk):
    preflight.check_writable(str(small_disk / "checkpoints"), "trainer.default_local_dir")
    with pytest.raises(OSError), (small_disk / "filler").open("wb") as file:
        file.write(bytes(1 << 20))
    with pytest.raises(LaunchError, match="No space left on device"):
        preflight.check_writable(str(small_disk / "checkpoints"), "trainer.default_local_dir")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_folder_that_nobody_may_write_is_refused_before_ray_starts():
    """/proc refuses even root."""
    folder = Path("/proc/verl-duets")
    with pytest.raises(LaunchError, match="trainer.default_local_dir=/proc/verl-duets cannot be written: .* in /proc"):
        preflight.check_writable(str(folder), "trainer.default_local_dir")
    with pytest.raises(OSError):
        files.write(folder / "file", "text")
    assert not os.path.exists(folder)
