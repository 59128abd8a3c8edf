"""Folder and name of a picture in columns of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from linnaeus_jax.building.sources import table
from linnaeus_jax.building.steps.options import BuildOptions
from linnaeus_jax.building.steps.plan import BuildPlan, NothingUsable, plan_build

FILES = ("A/100/IMG_1.JPG", "A/101/IMG_1.JPG", "B/IMG_1.JPG", "B/IMG_2.JPG", "IMG_1.JPG")
TIMELAPSE = "RootFolder,File,RelativePath,DateTime,DeleteFlag,ImageQuality,Species,Count0"
OLD_TIMELAPSE = "File,RelativePath,Folder,Date,Time,ImageQuality,DeleteFlag,CameraLocation,Empty,Species,Count,Comments"
#: header of a program -> what it writes of a picture: {folder}, {back} with backslashes, {name}, {path}, {n}
FORMS = {
    TIMELAPSE: "survey,{name},{back},2023-05-1{n} 08:00:01,False,Ok,s{n},1",
    f"{TIMELAPSE},": "survey,{lowname},{lowback},2023-05-1{n} 08:00:01,False,Ok,s{n},1,",
    OLD_TIMELAPSE: "{name},{back},survey,17-May-2023,08:00:0{n},Ok,false,c,false,s{n},1,",
    "File,RelativePath,DateTime,DeleteFlag,Species": "{name},./{path},2023-05-1{n} 08:00:01,false,s{n}",
    "Species,DateTimeOriginal,Directory,FileName": 's{n},2023-05-1{n} 08:00:01,"C:/my data/survey/{folder}",{name}',
    "directory,filename,species": "/mnt/old disk/photos/{folder},{name},s{n}",
    "path,name,species": "{folder},{name},s{n}",
    "image_path,max_confidence,species,datetime": "{path},0.9,s{n},2023-05-1{n} 08:00:01",
    "deployment_id,filename,location,species,timestamp": "{n},{name},gs://bucket/deployments/{path},s{n},2023-05-1{n}",
    "filePath,fileName,species,timestamp": "{path},{name},s{n},2023-05-1{n}",
}


def parts(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def survey(root: Path) -> Path:
    for path in FILES:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())
    return root


def plan_of(folder: Path, header: str, pictures: Path | None = None) -> BuildPlan:
    lines = [header]
    for number, path in enumerate(FILES):
        (above, name), back = parts(path), parts(path)[0].replace("/", "\\")
        names = {"lowname": name.lower(), "lowback": back.lower()}
        lines.append(FORMS[header].format(path=path, folder=above, name=name, back=back, n=number, **names))
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return plan_build(table.read(folder / "t.csv", pictures=pictures, names="plain"), BuildOptions(), {})


@pytest.mark.parametrize(
    ("header", "begin"), [*((header, "") for header in FORMS), (TIMELAPSE, "survey/"), (OLD_TIMELAPSE, "survey/")]
)
def test_every_record_finds_its_own_picture(tmp_path, header, begin):
    survey(tmp_path / "survey")
    plan = plan_of(tmp_path, header, tmp_path if begin else tmp_path / "survey")
    assert plan.pictures == [begin + path for path in FILES]
    names = plan.taxa.names["taxa_L10"]
    taxa = plan.taxa.taxon[plan.candidates, 0].tolist()
    assert [names[taxon][0] for taxon in taxa] == [f"s{number}" for number in range(len(FILES))]


def test_the_table_beside_the_pictures_needs_no_option(tmp_path):
    plan = plan_of(survey(tmp_path), TIMELAPSE)
    assert plan.pictures == list(FILES)
    assert plan.source.links["picture"] == "RelativePath + File"


def bare(folder: Path) -> Path:
    lines = ["File,Cam,DateTime,species"]
    lines += [f"{parts(path)[1]},{parts(path)[0]},2023-05-1{i} 08:00,s{i}" for i, path in enumerate(FILES[:4])]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


def test_no_advice_where_a_name_lies_in_several_folders(tmp_path):
    survey(tmp_path / "survey")
    (tmp_path / "survey" / "IMG_1.JPG").unlink()
    with pytest.raises(NothingUsable) as error:
        plan_build(table.read(bare(tmp_path), pictures=tmp_path / "survey"), BuildOptions(), {})
    assert "IMG_1.JPG is in 3 folders (A/100, A/101, B)" in str(error.value)
    assert "--map folder=COLUMN" in str(error.value)
    assert "--pictures" not in str(error.value)
    source = table.read(bare(tmp_path), pictures=tmp_path / "survey", mapping={"folder": "Cam"})
    assert plan_build(source, BuildOptions(), {}).pictures == list(FILES[:4])


def test_records_of_other_times_are_not_copies_of_one_picture(tmp_path):
    survey(tmp_path / "survey")
    source = table.read(bare(tmp_path), pictures=tmp_path / "survey" / "B")
    named = source.frame.select("picture", "reason").rows()
    assert named == [("IMG_1.JPG", "ambiguous picture name")] * 3 + [("IMG_2.JPG", None)]
    assert any("3 records of different times name only 1 files, such as IMG_1.JPG" in text for text in source.warnings)
