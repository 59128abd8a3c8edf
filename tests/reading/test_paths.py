"""Identifiers cannot lead out of the folder of pictures."""

from __future__ import annotations

import pytest

from linnaeus_jax.reading.paths import SafeFolder, UnsafePathError


@pytest.mark.parametrize(
    "identifier",
    [
        "",
        "/etc/passwd",
        "../x.jpg",
        "a/../../x.jpg",
        "..",
        "a\0b.jpg",
        "a\nb.jpg",
        "..\\b.jpg",
        "a\\..\\..\\b.jpg",
        "\\b.jpg",
        "C:/x.jpg",
        "\x1b[2J.jpg",
    ],
)
def test_unsafe_identifiers(tmp_path, identifier):
    with pytest.raises(UnsafePathError):
        SafeFolder(tmp_path).path(identifier)


@pytest.mark.parametrize(
    "identifier", ["a.jpg", "a/b/c.jpg", "..a/b..jpg", "a b.jpg", "\U0001f98b/\u202eé.jpg", "x" * 200]
)
def test_safe_identifiers(tmp_path, identifier):
    assert SafeFolder(tmp_path).path(identifier) == str(tmp_path / identifier)


def test_backslashes_stand_between_folders_unless_a_file_has_them_in_its_name(tmp_path):
    identifier = "kind 1\\a.jpg"
    assert SafeFolder(tmp_path).path(identifier) == str(tmp_path / "kind 1" / "a.jpg")
    (tmp_path / identifier).touch()
    assert SafeFolder(tmp_path).path(identifier) == str(tmp_path / identifier)


def test_links_stay_below_the_folder(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.jpg").touch()
    (root / "inner").symlink_to(root / "real")
    (root / "outer").symlink_to(outside)
    (root / "file.jpg").symlink_to(outside / "secret.jpg")
    (tmp_path / "link").symlink_to(root)
    for folder in (root, tmp_path / "link"):
        safe = SafeFolder(folder)
        assert safe.path("inner/a", ".jpg").endswith("inner/a.jpg")
        for identifier in ("outer/secret.jpg", "file.jpg"):
            with pytest.raises(UnsafePathError, match="symbolic link"):
                safe.path(identifier)
