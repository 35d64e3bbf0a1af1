"""The limit of a weight sync follows the size of the model; what the user has set wins."""

import os

import pytest

from recipes.launch import cluster


def sparse(folder, name: str, size: int) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(size)


@pytest.mark.parametrize(("gigabytes", "seconds"), [(0.001, "60"), (8, "76"), (140, "340")])
def test_a_larger_model_has_longer(tmp_path, monkeypatch, gigabytes, seconds):
    for part in range(2):
        sparse(tmp_path, f"model-{part}.safetensors", int(gigabytes * 1e9 / 2))
    sparse(tmp_path, "pytorch_model.bin", 1000)
    monkeypatch.setenv(cluster.SYNC_VARIABLE, "60")
    cluster.scale(str(tmp_path))
    assert os.environ[cluster.SYNC_VARIABLE] == seconds


def test_what_the_user_has_set_stands(tmp_path, monkeypatch):
    sparse(tmp_path, "model.safetensors", 10**11)
    monkeypatch.setenv(cluster.SYNC_VARIABLE, "45")
    cluster.scale(str(tmp_path))
    assert os.environ[cluster.SYNC_VARIABLE] == "45"


def test_a_model_of_the_hub_keeps_the_least(monkeypatch):
    monkeypatch.delenv(cluster.SYNC_VARIABLE, raising=False)
    cluster.scale("owner/model")
    assert os.environ[cluster.SYNC_VARIABLE] == "60"
