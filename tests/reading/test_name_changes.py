"""Lists of changes as people have them: our own, Darwin Core, ColDP, species lists of GBIF, name and accepted."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.data.taxon_changes import change_taxa
from linnaeus_jax.reading.name_changes import bare, read_changes
from tests.inference.conftest import small_taxonomy

SMALL = small_taxonomy()
#: the same taxonomic opinion in every form: Parus minor is part of Parus major, Passer domesticus is Cyanistes
#: domesticus of Paridae, Incertae sedis is one of two
DWC = """\
dwc:taxonID\tdwc:parentNameUsageID\tdwc:acceptedNameUsageID\tdwc:taxonomicStatus\tdwc:taxonRank\tdwc:scientificName
a\tg\t\taccepted\tspecies\tParus major Linnaeus, 1758
b\t\ta\tsynonym\tspecies\tParus minor Temminck & Schlegel, 1848
c\t\td\theterotypic synonym\tspecies\tPasser domesticus (Linnaeus, 1758)
d\th\t\taccepted\tspecies\tCyanistes domesticus "Kaup"
e\t\ta\tambiguous synonym\tspecies\tIncertae sedis
f\t\td\tmisapplied\tspecies\tIncertae sedis
g\tp\t\taccepted\tgenus\tParus Linnaeus, 1758
h\tp\t\taccepted\tgenus\tCyanistes Kaup, 1829
p\tq\t\taccepted\tfamily\tParidae Vigors, 1825
q\t\t\taccepted\torder\tPasseriformes
z\t\t\taccepted\tspecies\tLarus canus Linnaeus
"""
COLDP = """\
col:ID\tcol:parentID\tcol:status\tcol:rank\tcol:scientificName\tcol:authorship
a\tg\taccepted\tspecies\tParus major\tLinnaeus, 1758
b\ta\tsynonym\tspecies\tParus minor\tTemminck
c\td\tsynonym\tspecies\tPasser domesticus\tL.
d\th\tprovisionally accepted\tspecies\tCyanistes domesticus\tKaup
e\ta\tambiguous synonym\tspecies\tIncertae sedis\t
g\tp\taccepted\tgenus\tParus\tL.
h\tp\taccepted\tgenus\tCyanistes\tKaup
p\t\taccepted\tfamily\tParidae\tVigors
"""
GBIF = """\
taxonKey,scientificName,acceptedTaxonKey,acceptedScientificName,numberOfOccurrences,taxonRank,taxonomicStatus,family,genus
1,"Parus major Linnaeus, 1758",1,"Parus major Linnaeus, 1758",9,SPECIES,ACCEPTED,Paridae,Parus
2,"Parus minor Temminck, 1848",1,"Parus major Linnaeus, 1758",3,SPECIES,SYNONYM,Paridae,Parus
3,"Passer domesticus (L., 1758)",4,"Cyanistes domesticus (L., 1758)",3,SPECIES,HOMOTYPIC_SYNONYM,Paridae,Cyanistes
5,Incertae sedis,1,"Parus major Linnaeus, 1758",3,SPECIES,PROPARTE_SYNONYM,Paridae,Parus
"""
MATCHED = """\
occurrenceId,verbatimScientificName,scientificName,key,matchType,confidence,status,rank,family,genus,species
,Parus major,"Parus major Linnaeus, 1758",1,EXACT,99,ACCEPTED,SPECIES,Paridae,Parus,Parus major
,Parus minor,"Parus minor Temminck, 1848",2,EXACT,98,SYNONYM,SPECIES,Paridae,Parus,Parus major
,Passer domesticus,"Passer domesticus (L., 1758)",3,EXACT,98,SYNONYM,SPECIES,Paridae,Cyanistes,Cyanistes domesticus
,Incertae sedis,Incertae sedis,4,EXACT,98,PROPARTE_SYNONYM,SPECIES,Paridae,Parus,Parus major
"""
PAIRS = "name;accepted\nParus minor;Parus major\nPasser domesticus;Cyanistes domesticus\n"


def changed(tmp_path: Path, text: str | bytes, name: str = "list.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    changes, notes = read_changes(path, SMALL.tree, SMALL.names)
    return change_taxa(SMALL.tree, SMALL.names, changes), changes, notes


@pytest.mark.parametrize("text", [DWC, COLDP, GBIF, MATCHED], ids=["Darwin Core", "ColDP", "GBIF", "name match"])
def test_checklists_say_the_same_in_every_form(tmp_path, text):
    found, _changes, notes = changed(tmp_path, text)
    assert found.names.name["taxa_L10"].tolist() == ["", "Parus major", "Cyanistes domesticus", "Incertae sedis"]
    assert found.names.name["taxa_L20"].tolist() == ["", "Parus", "Passer", "Cyanistes"]
    assert found.tree.parent["taxa_L10"].tolist() == [-1, 1, 3, -1]
    assert found.tree.parent["taxa_L20"].tolist() == [-1, 1, 2, 1]
    assert found.done == {"merge": 1, "rename": 1, "new": 1, "split": 1}
    assert [(task, at) for task, at, _ in found.split] == [("taxa_L10", 4)]
    assert "Parus major" in found.split[0][2]
    assert len(notes) == 1
    assert "does not name" in notes[0]
    assert "which stay" in notes[0]


def test_packed_lists_and_pairs_of_names(tmp_path):
    packed, _, _ = changed(tmp_path, gzip.compress(COLDP.encode()), "NameUsage.tsv.gz")
    assert packed.done == {"merge": 1, "rename": 1, "new": 1, "split": 1}
    pairs, changes, _ = changed(tmp_path, PAIRS)
    assert pairs.names.name["taxa_L10"].tolist()[2] == "Cyanistes domesticus"
    assert [(each.kind, each.parent) for each in changes if each.kind == "new"] == [("new", "Passeridae")]


def test_coarser_taxa_change_before_what_lies_below(tmp_path):
    text = (
        "ID,parentID,status,rank,scientificName\n"
        "1,2,accepted,genus,Passer\n2,3,accepted,family,Ploceidae\n3,,accepted,order,Passeriformes\n"
        "4,5,synonym,family,Paridae\n5,3,accepted,family,Parulae\n6,5,accepted,genus,Parus\n"
    )
    found, _, _ = changed(tmp_path, text)
    assert found.names.name["taxa_L30"].tolist() == ["", "Parulae", "Passeridae", "Ploceidae"]
    assert found.tree.parent["taxa_L20"].tolist() == [-1, 1, 3]
    assert found.done == {"rename": 1, "move": 1, "new": 1}


def test_a_synonym_without_an_accepted_name_or_of_another_rank_is_left_to_people(tmp_path):
    text = (
        "taxonID,acceptedNameUsageID,taxonomicStatus,taxonRank,scientificName\n"
        "1,99,synonym,species,Parus minor\n2,3,synonym,species,Parus major\n3,,accepted,subspecies,Parus ater major\n"
    )
    found, _, _ = changed(tmp_path, text)
    assert [to for _, _, to in found.split] == ["Parus ater major (subspecies)", "Parus minor (not in the list)"]
    assert found.same_classes


def test_a_circle_of_synonyms_is_an_error(tmp_path):
    text = (
        "taxonID,acceptedNameUsageID,taxonomicStatus,scientificName\n1,2,synonym,Parus minor\n2,1,synonym,Parus ater\n"
    )
    with pytest.raises(UserError, match="leads to itself by its accepted names"):
        changed(tmp_path, text)


def test_our_own_lists(tmp_path):
    text = 'Change\tTaxon\tTo\tParent\tID\nnew\tX\t\tParidae\t\nRename\tParus major\tParus "x"\t\t77\n'
    with pytest.raises(UserError, match=r"list\.csv:2: 'X' is new: give its rank"):
        changed(tmp_path, text)
    found, _, _ = changed(tmp_path, text.replace("new\tX\t\tParidae\t\n", ""))
    assert found.names.classes["taxa_L10"].tolist() == [0, 77, 12, 13, 14]
    assert found.names.name["taxa_L10"][1] == 'Parus "x"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "is no list of changes: it needs the columns change and taxon"),
        ("change,taxon,to\nswap,Parus,x\nrename,Parus,\nrename,,x\n", "choose one of rename, merge, move, split, new"),
        ("change,taxon,to,id\nmerge,Parus minor,Parus major,7\n", "only what is renamed or new has one, a number"),
        ("change,taxon,to,id\nrename,Parus minor,Parus y,-7\n", "id is '-7'"),
        ("change,taxon,to,id\nrename,Parus minor,Parus y,99999999999\n", "is taken, or none from 1 to"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path, text, said):
    with pytest.raises(UserError, match=said):
        changed(tmp_path, text)
    with pytest.raises(UserError, match="does not exist"):
        read_changes(tmp_path / "none.csv", SMALL.tree, SMALL.names)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Parus major major (L., 1758)", "Parus major major"),
        ("Paridae Vigors, 1825", "Paridae"),
        ("Salix × fragilis L.", "Salix × fragilis"),
        ("Parus", "Parus"),
    ],
)
def test_names_without_authors(text, name):
    assert bare(text) == name
