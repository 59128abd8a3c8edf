"""One spelling of names, and which names are scientific at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnaeus_jax.taxonomy.scientific_names import MODES, Name, NameClassifier, alike, binomial, is_unknown, read_name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Parus major Linnaeus, 1758", "Parus major"),
        ("Bombus (Pyrobombus) impatiens Cresson, 1863", "Bombus impatiens"),
        ("Homo sapiens sapiens", "Homo sapiens"),
        ("Quercus x hispanica Lam.", "Quercus × hispanica"),
        ("Salix ×fragilis L.", "Salix × fragilis"),
        ("× Cupressocyparis leylandii", "× Cupressocyparis leylandii"),
        ("Coccinella 7-punctata", "Coccinella 7-punctata"),
        ("parus major", "Parus major"),
        ("Carduus  crispus-nutans L.", "Carduus crispus-nutans"),
        ("Salix alba × fragilis", None),
        ("Salix alba x Salix fragilis", None),
        ("Parus", None),
        ("Parus Linnaeus, 1758", None),
        ("Abies de Something", None),
        ("Parus sp.", None),
        ("Parus cf. major", None),
        ("Parus sp2", None),
        ("Genus7 species12 Smith, 1900", "Genus7 species12"),
        ("BOLD:AAA1234", None),
        ("Tobacco mosaic virus", None),
        ("", None),
        ("PARUS MAJOR", "Parus major"),
        ("PARUS MAJOR LINNAEUS, 1758", "Parus major"),
        ("Parus_major", "Parus major"),
        ("Parus\N{NO-BREAK SPACE}major", "Parus major"),
        ("Parus major\N{ZERO WIDTH SPACE}", "Parus major"),
        ('"Parus major"', "Parus major"),
        ("Parus major (L.)", "Parus major"),
        ("Parus major ssp. newtoni", "Parus major"),
        ("Larus fuscus agg.", "Larus fuscus"),
        ("Brassica oleracea var. gemmifera 'Brilliant'", "Brassica oleracea"),
        ("Larus argentatus/cachinnans", None),
        ("Larus argentatus or cachinnans", None),
        ("Parus ? major", None),
        ("Parus major?", None),
        ("cf. Parus major", None),
        ("Parus aff. major", None),
    ],
)
def test_binomial(text, wanted):
    assert binomial(text) == wanted


@pytest.mark.parametrize(("text", "certain"), [("Parus major Smith 1919", True), ("Parus major seen 2019", False)])
def test_a_year_alone_makes_no_authors(text, certain):
    name = read_name(text)
    assert name is not None
    assert name.certain is certain


@pytest.mark.parametrize(
    "text",
    [
        *("-", "--", "?", "???", "#N/A", "NA", "n/a", "NaN", "#REF!", "...", " ", "_", "sp.", "spp.", "gen. sp."),
        *("unidentified", "Unidentified", "(unidentified)", "indet.", "Indet", "unknown", "Unknown species"),
        *("incertae sedis", "not identified"),
    ],
)
def test_what_says_that_nothing_is_known(text):
    assert is_unknown(text)
    assert NameClassifier([text, "Parus major"]).read(text) is None


@pytest.mark.parametrize("text", ["1", "none", "other", "Background", "Empty", "NAs", "spider", "Specie", "Gen Z", "x"])
def test_what_may_be_a_class(text):
    assert not is_unknown(text)


def name_of(text: str) -> Name:
    name = read_name(text)
    assert name
    return name


def test_a_genus_in_doubt_is_scientific_and_none():
    assert read_name("cf. Parus major") == Name(None, certain=True)
    assert read_name("cf. the bird") is None


def judged(classifier: NameClassifier, text: str) -> Name:
    name = classifier.read(text)
    assert name, text
    return name


def test_below_the_species():
    read = {
        text: name_of(text).below for text in ("Parus major newtoni Pražák", "Rosa canina L. var. alba-nigra (B.) D.")
    }
    assert list(read.values()) == ["Parus major newtoni", "Rosa canina var. alba-nigra"]
    assert name_of("Parus major ssp.").below is None


@pytest.mark.parametrize(
    ("marks", "written"),
    [
        (("subsp", "ssp", "subspecies"), ""),
        (("var", "variety", "varietas"), "var. "),
        (("f", "fo", "forma", "form", "fma"), "f. "),
        (("subvar", "subvariety"), "subvar. "),
        (("subf", "subforma"), "subf. "),
    ],
)
def test_marks_of_ranks_below_the_species_have_one_spelling(marks, written):
    for mark in marks:
        assert name_of(f"Rosa canina L. {mark}. alba").below == f"Rosa canina {written}alba", mark


SPELLINGS = [
    *("Parus major", "parus major", "PARUS MAJOR", "Parus Major", "Parus  major", "Parus_major", "Parus major L."),
    *("Parus major Linnaeus, 1758", "Parus major (Linnaeus, 1758)", "Parus major Linnaeus", "Parus major newtoni"),
    *("Parus major subsp. newtoni", "Parus major major", "Parus\N{NO-BREAK SPACE}major"),
]
HYBRIDS = ["Quercus x hispanica", "Quercus × hispanica", "Quercus ×hispanica", "Quercus X hispanica Lam."]
GENUS_ALONE = ["Parus", "Parus sp.", "Parus spp", "Parus cf. major", "Parus indet."]


def test_spellings_of_a_few_names_are_a_few_names():
    classifier = NameClassifier([*SPELLINGS, *HYBRIDS, *GENUS_ALONE, "-", "unidentified"])
    assert classifier.scientific
    assert {judged(classifier, text).species for text in SPELLINGS} == {"Parus major"}
    assert {judged(classifier, text).species for text in HYBRIDS} == {"Quercus × hispanica"}
    assert {(judged(classifier, text).species, judged(classifier, text).genus) for text in GENUS_ALONE} == {
        (None, "Parus")
    }


COMMON = {
    "groceries": "Granny-Smith;Golden-Delicious;Oat-Milk;Banana;Fruit;Yellow-Onion",
    "with spaces": "Granny Smith;Golden Delicious;Oat Milk;Banana;Royal Gala;Pink Lady",
    "titled": "Black footed Albatross;Laysan Albatross;Red winged Blackbird;Blue Jay;Mallard",
    "sentences": "Great spotted woodpecker;Great spotted cuckoo;Common myna;House sparrow;Mute swan",
    "small letters": "pink primrose;hard-leaved pocket orchid;sweet pea;tiger lily;snapdragon;yellow iris;water lily",
    "dishes": "apple pie;beef tartare;caesar salad;spaghetti carbonara;panna cotta;tuna tartare",
    "italian": "Mela rossa;Mela verde;Mela rossa grande;Mela rossa piccola;Pera verde;Uva bianca",
    "spanish": "Carbonero común;Lechuza blanca;Perro negro;Gato negro grande;Gato negro chico",
    "cars": "Audi S4 Sedan 2012;Acura RL Sedan 2012;Lamborghini Aventador Coupe 2012",
    "crosses": "Labrador x Poodle;Great Dane;Chihuahua;Golden Retriever",
    "codes": "1;2;class_01;class 02;A b c;BOLD:AAA1234",
}


@pytest.mark.parametrize("kind", COMMON)
def test_other_names_are_left_as_they_are(kind):
    names = COMMON[kind].split(";")
    classifier = NameClassifier(names)
    assert not classifier.scientific
    assert [classifier.read(name) for name in names] == [None] * len(names)
    assert [classifier.coarser(name) for name in names] == names


def test_other_names_among_scientific_ones_are_left_as_they_are():
    others = ["Empty", "Wild boar", "Domestic dog large", "Domestic dog small", "Vehicle"]
    classifier = NameClassifier(
        ["Vulpes vulpes", "Canis lupus", "Sus scrofa", "Falco peregrinus anatum", "Cervus elaphus", *others]
    )
    assert classifier.scientific
    assert [classifier.read(name) for name in others] == [None] * len(others)
    assert judged(classifier, "Falco peregrinus anatum").species == "Falco peregrinus"


def test_a_genus_among_scientific_names_is_told_from_a_common_name_by_its_case():
    """Of genera that no other name has."""
    classifier = NameClassifier(["Parus major", "Parus ater", "Turdus merula", "Sitta europaea"])
    assert judged(classifier, "Falco (Hierofalco)").genus == "Falco"
    assert judged(classifier, "Rana esculenta/lessonae").genus == "Rana"
    assert [classifier.read(name) for name in ("Blue Tit", "Great Bird")] == [None, None]


def test_names_in_capital_letters_throughout():
    classifier = NameClassifier(["Parus Major", "Parus Ater", "Falco Peregrinus", "Turdus Merula", "Parus Linnaeus"])
    assert judged(classifier, "Parus Ater").species == "Parus ater"
    assert judged(classifier, "Parus Linnaeus").species is None


def test_what_only_scientific_names_have_is_seen_among_others():
    classifier = NameClassifier(["Great tit", "Blue tit", "Parus major Linnaeus, 1758", "Parus sp."])
    assert not classifier.scientific
    assert judged(classifier, "Parus major Linnaeus, 1758").species == "Parus major"
    assert judged(classifier, "Parus sp.").genus == "Parus"


def test_modes():
    names = ["Abak borot Cus", "Abak borot"]
    species = {
        mode: [(name := NameClassifier(names, mode).read(text)) and name.species for text in names] for mode in MODES
    }
    assert species == {"auto": [None, None], "scientific": ["Abak borot"] * 2, "plain": [None, None]}
    assert NameClassifier(names, "plain").coarser("PARIDAE Vigors,  1825") == "PARIDAE Vigors, 1825"


@pytest.mark.parametrize(
    ("text", "mode", "wanted"),
    [
        ("Paridae Vigors, 1825", "auto", "Paridae"),
        ("PARIDAE", "auto", "Paridae"),
        ("paridae", "auto", "Paridae"),
        ("Paridae indet.", "auto", "Paridae"),
        ("?", "auto", None),
        ("Flowering Plants", "auto", "Flowering Plants"),
        ("Birds of prey", "auto", "Birds of prey"),
        ("FRUIT", "auto", "FRUIT"),
        ("Parus Linnaeus", "scientific", "Parus"),
        ("Passeriformes incertae sedis", "scientific", None),
    ],
)
def test_coarser_ranks(text, mode, wanted):
    assert NameClassifier([], mode).coarser(text) == wanted


def test_names_that_differ_in_case_author_or_hybrid_mark():
    names = [
        "Parus major",
        "parus major",
        "Parus major Linnaeus",
        "Quercus x hispanica",
        "Quercus hispanica",
        "Parus ater",
    ]
    assert [set(group) for group in alike(names)] == [set(names[:3]), set(names[3:5])]
    assert (
        alike(["Great spotted woodpecker", "Great spotted cuckoo", "Red winged Blackbird", "Red winged Parrot"]) == []
    )


WORD = st.text("abcdefghijklmnoprstuv", min_size=4, max_size=10)
AFTER = ["", " L.", " Linnaeus, 1758", " (Linnaeus, 1758)", " Mill.", " subsp. alpina", " var. alba (Sm.) L.", " minor"]


@given(
    WORD, WORD, st.sampled_from(["", "(Subgenus) ", "x ", "×"]), st.sampled_from(AFTER), st.booleans(), st.booleans()
)
def test_genus_and_epithet_are_what_is_left(genus, epithet, between, after, capitals, spaces):
    """Whatever is written around them: names of another genus or epithet are never one."""
    if name_of(f"Aus {epithet}").species is None:  # "spec", "indet", "near" ...
        return
    text = f"{genus.capitalize()} {between}{epithet}{after}"
    text = text.upper() if capitals else text
    text = text.replace(" ", "\N{NO-BREAK SPACE} ") if spaces else text
    found = binomial(text) or ""
    assert found.replace("× ", "") == f"{genus.capitalize()} {epithet}"
    assert ("×" in found) == (between in ("x ", "×"))
    assert binomial(found) == found


@given(st.lists(st.text(max_size=40), max_size=5), st.sampled_from(MODES))
def test_any_text_is_read_and_its_name_stays(texts, mode):
    classifier = NameClassifier(texts, mode)
    for text in texts:
        for name in filter(None, (classifier.read(text), read_name(text))):
            if name.species:
                assert binomial(name.species) == name.species
        coarser = classifier.coarser(text)
        assert coarser is None or classifier.coarser(coarser) == coarser


def test_what_makes_a_genus_without_a_species_certain():
    known = (("Parus (Linnaeus, 1758)", True), ("Parus (Linnaeus)", False), ("Parus", False))
    for text, certain in (*known, ("Parus sp2", True), ("Parus species", False), ("Parus spec.", False)):
        found = read_name(text)
        assert found is not None
        assert (found.genus, found.species, found.certain) == ("Parus", None, certain), text
