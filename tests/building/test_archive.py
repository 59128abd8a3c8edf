"""Archives from elsewhere: what could reach out of them or fill the memory is one clear error."""

from __future__ import annotations

import io
import shutil
import zipfile

import pytest

from linnaeus_jax.building.sources import table
from linnaeus_jax.building.sources.archive import META, read_meta
from linnaeus_jax.config.errors import UserError
from linnaeus_jax.reading import archive
from linnaeus_jax.reading.archive import Archive
from tests.building.archives import DWC, GBIF_META, element, meta, write_folder, write_zip


def read_all(path, name: str) -> None:
    """Opens an archive, its meta.xml and a file of it, and reads that."""
    with Archive(path, META) as opened:
        read_meta(opened)
        with opened.open(name) as source:
            while source.stream.read(1 << 20):
                pass


def refused(path, message: str, name: str = "") -> None:
    """Reading is an error of one line."""
    with pytest.raises(UserError, match=message) as error:
        read_all(path, name)
    assert "\n" not in str(error.value)


def test_describes_files(tmp_path):
    with Archive(write_zip(tmp_path / "a.zip", {"meta.xml": GBIF_META}), META) as opened:
        (core, media, verbatim), metadata = read_meta(opened)
    assert (core.names, core.kind, core.id, metadata) == (("occurrence.txt",), "Occurrence", 0, "metadata.xml")
    assert (core.dialect.separator, core.dialect.quote, core.dialect.header_lines) == ("\t", None, 1)
    assert core.terms[8] == DWC + "decimalLatitude"
    assert (media.kind, verbatim.kind) == ("Multimedia", "Occurrence")


@pytest.mark.parametrize("tab", ["\\t", "\t", "&#9;"])
def test_tabs_in_every_spelling(tmp_path, tab):
    text = meta(element("core", "o.txt", DWC + "Occurrence", [], separator=tab))
    with Archive(write_zip(tmp_path / "a.zip", {"meta.xml": text}), META) as opened:
        assert read_meta(opened)[0][0].dialect.separator == "\t"


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil", "a/../../evil", "C:\\evil", "..\\evil"])
def test_names_out_of_the_archive(tmp_path, name):
    refused(
        write_zip(tmp_path / "a.zip", {"meta.xml": GBIF_META, name: "x"}), r"a\.zip: .*evil.* outside of the archive"
    )


def test_a_zip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "BOMB_SIZE", 1 << 20)
    path = write_zip(tmp_path / "a.zip", {"meta.xml": GBIF_META, "occurrence.txt": b"0" * (3 << 20)})
    refused(path, r"a\.zip: occurrence\.txt would grow from \d+ to 3145728 bytes, more than 200 times")


def test_a_declared_size_is_never_exceeded(tmp_path):
    """A member that says it is small: no more is read, and the checksum tells."""
    path = write_zip(tmp_path / "a.zip", {"meta.xml": GBIF_META, "occurrence.txt": b"0" * 100_000})
    data = path.read_bytes().replace((100_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(data)
    refused(path, "is no zip file or is damaged: Bad CRC-32", "occurrence.txt")


def test_damaged_zips(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"meta.xml": GBIF_META, "occurrence.txt": bytes(range(256)) * 1000})
    data = path.read_bytes()
    for cut in (data[:-50], data[: len(data) // 2], b"", b"no zip"):
        path.write_bytes(cut)
        refused(path, r"a\.zip is no zip file or is damaged")
    path.write_bytes(data.replace(b"PK\x03\x04", b"PK\x03\x05", 1))
    refused(path, r"a\.zip is no zip file or is damaged")


@pytest.mark.parametrize("kind", ["tar", "gztar", "bztar", "xztar"])
def test_tar_files_are_unpacked_by_hand(tmp_path, kind):
    path = tmp_path / "a.tgz"
    write_zip(tmp_path / "b.zip", {"meta.xml": GBIF_META})
    shutil.make_archive(str(tmp_path / "made"), kind, tmp_path, "b.zip")
    next(tmp_path.glob("made.*")).rename(path)
    refused(path, r"a\.tgz is a tar file: unpack it \(tar -xf a\.tgz\) and give what is in it")
    with pytest.raises(UserError, match=r"a\.tgz is a tar file"):
        table.read(path)


def test_an_encrypted_zip(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("meta.xml", GBIF_META)
    data = bytearray(stream.getvalue())
    data[6] |= 1  # flag of the local header
    data[data.index(b"PK\x01\x02") + 8] |= 1  # flag of the directory
    (tmp_path / "a.zip").write_bytes(bytes(data))
    refused(tmp_path / "a.zip", r"meta\.xml is encrypted")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><archive>&b;</archive>', r"a\.zip: meta\.xml has a DOCTYPE"),
        ('<!DOCTYPE archive SYSTEM "file:///etc/passwd"><archive/>', "has a DOCTYPE"),
        ("<archive", r"meta\.xml is no XML"),
        ("", r"meta\.xml is no XML"),
        ("<archive/>", "describes 0 core files, not one"),
        (meta("<core><files/></core>"), "names no file for its core"),
        (meta(element("core", "o", "", [], separator="ab")), "fieldsTerminatedBy 'ab' is not one ASCII character"),
        (meta(element("core", "o", "", [], encoding="klingon")), "encoding 'klingon' is unknown"),
        (meta(element("core", "o", "", [], extra='<field index="x" term="t"/>')), "index 'x' is not a number"),
        (meta(element("core", "o", "", []).replace("\\n", "@@")), "linesTerminatedBy '@@' is not a line end"),
    ],
)
def test_meta_xml_that_cannot_be_used(tmp_path, text, message):
    refused(write_zip(tmp_path / "a.zip", {"meta.xml": text}), message)


@pytest.mark.parametrize("name", ["../o.txt", "/etc/passwd", "https://host/o.txt", "a/../../o", "C:\\o.txt", "o\0.txt"])
@pytest.mark.parametrize("folder", [False, True])
def test_locations_out_of_the_archive(tmp_path, name, folder):
    members = {"meta.xml": GBIF_META}
    (tmp_path / "o.txt").write_text("secret")
    path = write_folder(tmp_path / "a", members) if folder else write_zip(tmp_path / "a.zip", members)
    refused(path, "which is not a file of the archive", name)


def test_links_out_of_a_folder(tmp_path):
    path = write_folder(tmp_path / "a", {"meta.xml": GBIF_META})
    (path / "occurrence.txt").symlink_to("/etc/passwd")
    refused(path, "a link that leads out of the archive", "occurrence.txt")


def test_a_missing_member(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"meta.xml": GBIF_META})
    refused(path, "which is missing; there are meta.xml", "occurrence.txt")
    refused(tmp_path / "none.zip", "does not exist")
