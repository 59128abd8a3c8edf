"""A field of what the server says of its model is one declaration: type, meaning, and how it is found."""

from typing import Annotated

import httpx
from pydantic import Field

from linnaeus_jax.inference.model import Model
from linnaeus_jax.inference.server import serving
from linnaeus_jax.inference.server.information import Found, ModelInformation
from tests.inference import serving_helpers
from tests.inference.conftest import small_bundle


class LongerInformation(ModelInformation):
    known_taxa: Annotated[
        int,
        Found(lambda it: sum(len(it.bundle.taxonomy.classes[task]) for task in it.tasks)),
        Field(description="of all ranks"),
    ]


def test_a_field_is_answered_and_described(monkeypatch):
    monkeypatch.setattr(serving, "ModelInformation", LongerInformation)
    with serving_helpers.serving(Model(small_bundle(), buckets=(2,))) as url, httpx.Client(base_url=url) as client:
        info, description = client.get("/info").json(), client.get("/openapi.json").json()
    assert info["known_taxa"] == sum(info["num_classes_per_rank"].values()) == 11
    schema = description["components"]["schemas"]["LongerInformation"]
    assert schema["properties"]["known_taxa"]["description"] == "of all ranks"
    assert "known_taxa" in schema["required"]
