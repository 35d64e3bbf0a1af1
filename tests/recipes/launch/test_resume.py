"""Which step a run resumes from after a kill at any moment, and that its curve survives."""

import io
import json
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from recipes.core import state
from recipes.errors import CheckpointError
from recipes.launch import resume, start


def archive(content: bytes = b"weights") -> bytes:
    """A file as `torch.save` writes it: a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data", content)
    return buffer.getvalue()


def make_step(directory, step, *, shards=1, data=True):
    actor = directory / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    for rank in range(shards):
        (actor / f"model_world_size_2_rank_{rank}.pt").write_bytes(archive())
    if data:
        (actor.parent / "data.pt").write_bytes(archive(b"cursor"))


def track(directory, text):
    (directory / resume.TRACKER).write_bytes(text if isinstance(text, bytes) else text.encode())


def test_nothing_yet(tmp_path):
    assert resume.resume_step(tmp_path / "none") == (0, None)
    assert resume.resume_step(tmp_path) == (0, None)


def test_the_tracker_is_followed(tmp_path):
    make_step(tmp_path, 2, shards=2)
    make_step(tmp_path, 4, shards=2)
    track(tmp_path, "2")
    assert resume.resume_step(tmp_path) == (2, None)


@pytest.mark.parametrize("text", ["", "four", "6", "8", "²", b"\xff\xfe4"])
def test_a_tracker_without_a_complete_folder_falls_back(tmp_path, text):
    make_step(tmp_path, 2, shards=2)
    make_step(tmp_path, 4, shards=2)
    make_step(tmp_path, 6, shards=1)
    make_step(tmp_path, 8, shards=2, data=False)
    track(tmp_path, text)
    step, told = resume.resume_step(tmp_path)
    assert step == 4 and "global_step_4" in told
    assert (tmp_path / resume.TRACKER).read_text() == "4"


def test_a_folder_without_anything_complete_is_refused(tmp_path):
    make_step(tmp_path, 2, shards=1)
    track(tmp_path, "2")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        resume.resume_step(tmp_path)


@pytest.mark.parametrize("name", ["data.pt", "actor/model_world_size_2_rank_0.pt", "actor/optim.pt", "critic/optim.pt"])
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_cut_file_is_no_checkpoint(tmp_path, name, cut):
    """A full disk, or a machine that lost power: the file is there, its end is not."""
    for step in (2, 4):
        make_step(tmp_path, step, shards=2)
        path = tmp_path / f"global_step_{step}" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(archive(bytes(100)))
    track(tmp_path, "4")
    assert resume.resume_step(tmp_path) == (4, None)
    path.write_bytes(path.read_bytes()[:-cut] if cut else b"")
    step, told = resume.resume_step(tmp_path)
    assert step == 2 and f"{name} is damaged or cut" in told


@pytest.mark.parametrize("content", [None, "", "{}", "not json", '{"format": 1, "sha256": "0", "identity": {}}\n{}\n'])
def test_a_damaged_state_of_the_recipe_falls_back_too(tmp_path, content):
    for step in (2, 4):
        make_step(tmp_path, step, shards=2)
        state.save(tmp_path / f"global_step_{step}" / "serl.json", {"step": step})
    track(tmp_path, "4")
    assert resume.resume_step(tmp_path, "serl.json") == (4, None)
    path = tmp_path / "global_step_4" / "serl.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    step, told = resume.resume_step(tmp_path, "serl.json")
    assert step == 2 and "serl.json is" in told
    assert resume.resume_step(tmp_path) == (2, None), "the tracker is mended"
    (tmp_path / "global_step_2" / "serl.json").unlink()
    track(tmp_path, "4")
    with pytest.raises(CheckpointError, match=r"no complete checkpoint \(.*serl.json is .*move the folder away"):
        resume.resume_step(tmp_path, "serl.json")


def test_a_state_of_another_format_or_run_is_whole(tmp_path):
    """It is refused where it is read, with what to do; falling back would lose the steps since."""
    make_step(tmp_path, 2, shards=2)
    state.save(tmp_path / "global_step_2" / "serl.json", {}, format=7, identity={"other": 1})
    track(tmp_path, "2")
    assert resume.resume_step(tmp_path, "serl.json") == (2, None)


def test_a_kill_before_the_first_tracker_starts_over(tmp_path):
    make_step(tmp_path, 2, shards=1)
    assert resume.resume_step(tmp_path) == (0, None)


def test_records_of_steps_that_come_again_are_dropped(tmp_path):
    records = tmp_path / "problems.jsonl"
    resume.cut_back(records, 3)
    assert not records.exists()
    written = [json.dumps({"step": step, "problem": "é"}, ensure_ascii=False) for step in (1, 1, 2, 3, 3)]
    records.write_text("\n".join([*written, '{"step": 4, "pro']), encoding="utf-8")
    resume.cut_back(records, 2)
    assert records.read_text(encoding="utf-8").splitlines() == written[:3]
    resume.cut_back(records, 0)
    assert records.read_text() == ""


def line(step, attempt):
    return json.dumps({"step": step, "data": {"attempt": attempt}}) + "\n"


def read(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_metrics_of_killed_attempts_survive(tmp_path_factory, attempts):
    """Each attempt resumes at some saved step and logs some steps further; every step is there once, newest value."""
    metrics = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    reached, expected = 0, {}
    for attempt, (back, length) in enumerate(attempts):
        start = max(0, reached - back)
        resume.carry_metrics_over(metrics, start)
        expected = {step: value for step, value in expected.items() if step <= start}
        with metrics.open("w") as file:
            for step in range(start + 1, start + 1 + length):
                file.write(line(step, attempt))
                expected[step] = attempt
            file.write('{"step": 99, "da')
        reached = start + length
    metrics.write_text("".join(text for text in metrics.read_text().splitlines(keepends=True) if text.endswith("\n")))
    resume.join_metrics(metrics)
    assert {entry["step"]: entry["data"]["attempt"] for entry in read(metrics)} == expected
    assert not resume.history_file(metrics).exists()


def test_a_step_that_was_saved_and_not_logged_gets_its_line_from_the_checkpoint(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(1, 0) + line(2, 0))
    assert resume.carry_metrics_over(metrics, 3, {"actor/loss": 0.5})
    metrics.write_text(line(4, 1))
    resume.join_metrics(metrics)
    assert [entry["step"] for entry in read(metrics)] == [1, 2, 3, 4]
    assert read(metrics)[2]["data"] == {"actor/loss": 0.5}
    assert not resume.carry_metrics_over(metrics, 3, {"actor/loss": 0.7}), "what was logged stands"
    assert read(resume.history_file(metrics))[2]["data"] == {"actor/loss": 0.5}
    assert not resume.carry_metrics_over(tmp_path / "new.jsonl", 0, {})


def test_validation_before_going_on_leaves_the_training_metrics_of_the_resumed_step(tmp_path):
    """verl logs them under the step's number, in the file of the new attempt."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(1, 0) + line(2, 0))
    for _ in range(2):
        resume.carry_metrics_over(metrics, 2)
        metrics.write_text(json.dumps({"step": 2, "data": {"val": 0.5}}) + "\n")
    resume.join_metrics(metrics)
    assert read(metrics) == [{"step": 1, "data": {"attempt": 0}}, {"step": 2, "data": {"attempt": 0, "val": 0.5}}]


def test_what_is_logged_of_one_step_at_two_times_stays_together(tmp_path):
    """A run that ends early validates after its last step: verl logs that step twice."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(1, 0))
    resume.carry_metrics_over(metrics, 1)
    metrics.write_text(line(2, 1) + json.dumps({"step": 2, "data": {"val": 0.5}}) + "\n")
    resume.join_metrics(metrics)
    assert read(metrics) == [{"step": 1, "data": {"attempt": 0}}, {"step": 2, "data": {"attempt": 1, "val": 0.5}}]


def test_a_line_that_is_no_text_costs_no_other(tmp_path):
    """A machine that loses its power may leave anything at the end of a file."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(b'{"step": 1, "data": {"a": 1}}\n\xff\xfe\x00\n')
    assert not resume.carry_metrics_over(metrics, 1)
    assert [json.loads(line)["step"] for line in resume.history_file(metrics).read_text().splitlines()] == [1]


@pytest.mark.parametrize(
    ("ranks", "per_node", "complete"),
    [
        ((0, 1), 2, True),
        ((2, 3), 2, True),
        ((0, 1, 2, 3), 2, True),
        ((0, 1), None, False),
        ((1,), 2, False),
        ((0, 1, 3), 2, False),
        ((0, 1), 4, False),
    ],
)
def test_the_shards_of_whole_other_nodes_may_be_on_their_disks(tmp_path, ranks, per_node, complete):
    actor = tmp_path / "global_step_2" / "actor"
    actor.mkdir(parents=True)
    for rank in ranks:
        (actor / f"model_world_size_4_rank_{rank}.pt").write_bytes(archive())
    (actor.parent / "data.pt").write_bytes(archive())
    assert resume.is_complete(actor.parent, per_node=per_node) == complete
    track(tmp_path, "2")
    if complete:
        assert resume.resume_step(tmp_path, per_node=per_node) == (2, None)
    else:
        with pytest.raises(CheckpointError, match="of 4 shards"):
            resume.resume_step(tmp_path, per_node=per_node)


@pytest.mark.parametrize("mode", ["auto", "resume_path"])
@pytest.mark.parametrize(("nodes", "per_node", "resumes"), [(2, 2, True), (1, 4, False), (2, 4, False)])
def test_a_run_on_several_nodes_resumes_from_the_shards_of_one(tmp_path, mode, nodes, per_node, resumes):
    """Ranks 0 and 1 of four on this disk: a node of two, and half of a node of four."""
    actor = tmp_path / "global_step_2" / "actor"
    actor.mkdir(parents=True)
    for rank in (0, 1):
        (actor / f"model_world_size_4_rank_{rank}.pt").write_bytes(archive())
    (actor.parent / "data.pt").write_bytes(archive())
    track(tmp_path, "2")
    trainer = {"resume_mode": mode, "resume_from_path": str(actor.parent), "nnodes": nodes, "n_gpus_per_node": per_node}
    config = OmegaConf.create({"trainer": trainer})
    if resumes:
        assert start._resume_step(config, tmp_path, None) == 2
    else:
        with pytest.raises(CheckpointError, match="no complete checkpoint|not a complete global_step_N folder"):
            start._resume_step(config, tmp_path, None)


def test_a_separator_inside_a_record_is_no_end_of_it(tmp_path):
    """JSON leaves U+2028 and U+0085 as they are, and `str.splitlines` breaks lines at both."""
    records = tmp_path / "records.jsonl"
    written = [json.dumps({"step": step, "text": "a\u2028b\u0085c"}, ensure_ascii=False) for step in (1, 2, 3)]
    records.write_text("\n".join(written) + "\n", encoding="utf-8")
    resume.cut_back(records, 2)
    assert records.read_text(encoding="utf-8").split("\n") == [*written[:2], ""]


@pytest.mark.parametrize(
    ("world", "rank", "says"),
    [
        (2, 8, None),
        (2, None, None),
        (4, 8, "written by 2 devices, and 4 train now"),
        (2, 0, "rank 8"),
        (2, 16, "lora_rank=8"),
    ],
)
def test_a_checkpoint_of_other_devices_or_adapters_is_refused(tmp_path, world, rank, says):
    actor = tmp_path / "global_step_4" / "actor"
    actor.mkdir(parents=True)
    for number in range(2):
        (actor / f"model_world_size_2_rank_{number}.pt").write_bytes(b"")
    (actor / "fsdp_config.json").write_text("{}")
    (actor / "lora_train_meta.json").write_text('{"r": 8, "lora_alpha": 16}')
    if says is None:
        resume.check_shards(actor.parent, world, rank)
        return
    with pytest.raises(CheckpointError, match=says):
        resume.check_shards(actor.parent, world, rank)
