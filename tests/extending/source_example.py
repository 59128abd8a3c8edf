"""A source of data sets: one folder of pictures whose names say what they show, `parus_major_0012.jpg`.

linnaeus build --plugins source_example.py --named pictures --out data/mine
"""

from pathlib import Path

import polars as pl

from linnaeus_jax.building.sources.source import Option, source
from linnaeus_jax.reading.picture_folder import list_files, open_folder
from linnaeus_jax.reading.schema import SourceRows, standard_frame


@source(
    Option("--named", type=Path, metavar="DIR", help="pictures named genus_species_number.jpg"),
    Option("--between", default="_", help="what stands between the words of a name"),
)
def read(request):
    args = request.args
    root = open_folder(args.named)
    pictures = list_files(root, follow_links=args.follow_links, leave_out=[args.out]).pictures()
    words = [Path(name).stem.split(args.between) for name in pictures]
    frame = pl.DataFrame(
        {
            "picture": pictures,
            "name_L10": [" ".join(each[:2]).capitalize() for each in words],
            "name_L20": [each[0].capitalize() for each in words],
        }
    )
    levels = ("L10", "L20")
    return SourceRows(standard_frame(frame, levels), root, levels, files=())
