"""A reader, or a crash, meets the old file or the whole new one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from recipes.core.files import replacing, write, write_json, write_json_lines, write_parquet


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_bytes_and_missing_folders(tmp_path):
    write(tmp_path / "a" / "b" / "f", "é")
    assert (tmp_path / "a" / "b" / "f").read_bytes() == "é".encode()
    write(tmp_path / "a" / "b" / "f", b"\x00\xff")
    assert (tmp_path / "a" / "b" / "f").read_bytes() == b"\x00\xff"
    assert listing(tmp_path / "a" / "b") == ["f"]


def test_json_and_lines_round_trip_with_lone_surrogates(tmp_path):
    rows = [{"text": "é \ud800"}, {"n": 1}]
    write_json(tmp_path / "f.json", rows)
    assert json.loads((tmp_path / "f.json").read_text("utf-8")) == rows
    assert write_json_lines(tmp_path / "f.jsonl", iter(rows)) == 2
    assert [json.loads(line) for line in (tmp_path / "f.jsonl").read_text("utf-8").splitlines()] == rows
    assert write_json_lines(tmp_path / "none.jsonl", []) == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_parquet(tmp_path):
    import pyarrow.parquet

    write_parquet(tmp_path / "new" / "f.parquet", [{"a": 1, "b": [{"role": "user"}]}])
    rows = pyarrow.parquet.read_table(tmp_path / "new" / "f.parquet").to_pylist()
    assert rows == [{"a": 1, "b": [{"role": "user"}]}]


@pytest.mark.parametrize("bad", [float("nan"), object()])
def test_what_json_cannot_hold_leaves_the_old_file(tmp_path, bad):
    write_json(tmp_path / "f", {"a": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "f", {"a": bad})
    with pytest.raises((ValueError, TypeError)):
        write_json_lines(tmp_path / "f", [{"a": 2}, {"a": bad}])
    assert json.loads((tmp_path / "f").read_text()) == {"a": 1}
    assert listing(tmp_path) == ["f"]


def test_an_exception_in_the_block_leaves_the_old_file_and_no_scratch(tmp_path):
    write(tmp_path / "f", "old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "f") as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "f").read_text() == "old"
    assert listing(tmp_path) == ["f"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "f"):
        pass
    assert listing(tmp_path) == []


def test_two_threads_write_one_file_whole(tmp_path):
    contents = [character * 200_000 for character in "ab"]

    def repeat(text):
        for _ in range(20):
            write(tmp_path / "f", text)

    threads = [threading.Thread(target=repeat, args=(text,)) for text in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "f").exists():
            assert (tmp_path / "f").read_text() in contents
    for thread in threads:
        thread.join()
    assert listing(tmp_path) == ["f"]


WRITER = """
import sys
from recipes.core.files import write
for number in range(10**9):
    write(sys.argv[1], f"{number % 10}" * 300_000)
"""


def test_sigkill_while_writing_leaves_a_whole_file(tmp_path):
    path = tmp_path / "f"
    for wait in (0.0, 0.004, 0.011):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], env=os.environ)
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        text = path.read_text()
        assert len(text) == 300_000 and len(set(text)) == 1
