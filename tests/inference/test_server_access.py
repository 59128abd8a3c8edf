"""Names of the server, pages of other sites, and the token; nginx as a proxy in front."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import httpx
import pytest

from linnaeus_jax.config.errors import UserError
from linnaeus_jax.inference.server.access import TOKEN_VARIABLE, Access, access_of, read_token
from linnaeus_jax.inference.server.requests import Limits
from linnaeus_jax.inference.server.serving import create_app

TOKEN = "a-token-of-the-tests"
OURS = [("host", "localhost:8000")]


def status(access: Access, headers: Sequence[tuple[str, str]], method: str = "GET", path: str = "/info") -> int:
    """Of the refusal; 200 where there is none."""
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    refusal = access.refusal({"method": method, "path": path, "headers": pairs})
    return refusal.status if refusal else 200


@pytest.mark.parametrize("bound", ["127.0.0.1", "::1"])
def test_only_names_of_this_machine_are_answered(bound):
    access = access_of(bound)
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "localhost."):
        assert status(access, [("host", host)]) == 200, host
    for host in (
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost"),
        *(
            "10.0.0.7",
            "",
            "localhost:x",
            "user@localhost",
            "localhost/x",
            "[::1",
            "localhost, evil.example",
            "*",
            "\xff",
        ),
        "x" * 100_000,
    ):
        for path in ("/", "/info", "/health", "/metrics", "/predict"):
            assert status(access, [("host", host)], path=path) == 400, host
    assert status(access, []) == 400
    assert status(access, [*OURS, ("host", "evil.example")]) == 400
    assert len(access.refusal({"method": "GET", "path": "/", "headers": [(b"host", b"x" * 10**6)]}).detail) < 300  # type: ignore[union-attr]


def test_host_names_are_added():
    access = access_of("192.0.2.7", "Species.Example.org, *.lan,bär.example")
    for host in ("species.example.org", "a.lan", "a.b.lan:80", "192.0.2.7:8000", "localhost", "xn--br-via.example"):
        assert status(access, [("host", host)]) == 200, host
    for host in ("lan", "evil-lan", "x.species.example.org", "192.0.2.8"):
        assert status(access, [("host", host)]) == 400, host
    assert status(access_of("127.0.0.1", "*"), [("host", "any.example")]) == 200
    everywhere = access_of("0.0.0.0")  # an address as a name cannot be made to lead here by another site
    assert status(everywhere, [("host", "192.0.2.8:80")]) == status(access_of("::"), [("host", "[fe80::1]:80")]) == 200
    assert status(everywhere, [("host", "evil.example")]) == 400
    for names in ("http://a", "a:80", "a b", "*x", "a/*", "a..b"):
        with pytest.raises(UserError, match="--host-names holds '"):
            access_of("127.0.0.1", names)


def test_pages_of_other_sites_cannot_post():
    access = access_of("127.0.0.1", "species.example.org", "https://friend.example:8443")
    ours = [("host", "species.example.org")]

    def posted(*headers: tuple[str, str], host: Sequence[tuple[str, str]] = ours) -> int:
        return status(access, [*host, *headers], "POST", "/predict")

    assert posted() == 200  # curl
    for origin in ("https://species.example.org", "http://species.example.org:80", "https://friend.example:8443"):
        assert posted(("origin", origin)) == 200, origin
    assert posted(("origin", "http://localhost:8000"), host=OURS) == 200
    for origin in (
        *(
            "http://evil.example",
            "null",
            "",
            "http://species.example.org.evil.example",
            "https://species.example.org:1",
        ),
        *(
            "http://localhost:8000",
            "https://friend.example",
            "ftp://species.example.org",
            "http://species.example.org/x",
        ),
    ):
        assert posted(("origin", origin)) == 403, origin
    assert posted(("origin", "http://localhost:3000"), host=OURS) == 403
    assert posted(("origin", "https://species.example.org"), ("origin", "http://evil.example")) == 403
    assert posted(("sec-fetch-site", "cross-site")) == 403
    assert posted(("sec-fetch-site", "same-site")) == 403
    assert posted(("sec-fetch-site", "same-origin"), ("origin", "https://species.example.org")) == 200
    assert status(access, [*ours, ("origin", "http://evil.example")]) == 200  # its page cannot read the answer
    for origins in ("friend.example", "https://friend.example/x", "ftp://friend.example"):
        with pytest.raises(UserError, match="--origins holds '"):
            access_of("127.0.0.1", "", origins)


def test_token():
    access = access_of("127.0.0.1", token=TOKEN)

    def asked(*values: str, path: str = "/info") -> int:
        return status(access, [*OURS, *(("authorization", value) for value in values)], path=path)

    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    assert asked(f"Bearer {TOKEN}") == asked(f"bearer  {TOKEN} ") == 200
    assert asked(basic(f":{TOKEN}")) == asked(basic(f"me:{TOKEN}")) == 200
    for value in (
        *(TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Basic \xff"),
        *(basic(TOKEN), basic(f"{TOKEN}:"), "", f"Digest {TOKEN}", f"Bearer {TOKEN.upper()}"),
    ):
        assert asked(value) == 401, value
    assert asked() == asked(f"Bearer {TOKEN}", "Bearer x") == 401
    for path in (
        "/",
        "/page.js",
        "/metrics",
        "/predict",
        "/openapi.json",
        "/nothing",
        "/health/",
        "/Health",
        "//health",
    ):
        assert asked(path=path) == 401, path
    assert asked(path="/health") == 200
    assert status(access, [("host", "evil.example")], path="/health") == 400


def test_token_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token(None) == ""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for wrong in ("", "\n", "two words", "ä", "x" * 5000, "a\nb", "\0"):
        file.write_text(wrong)
        with pytest.raises(UserError, match=r"token holds no token, .* openssl rand"):
            read_token(file)
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path / "missing")
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert read_token(None) == TOKEN
    with pytest.raises(UserError, match="both given"):
        read_token(file)
    monkeypatch.setenv(TOKEN_VARIABLE, "")  # of a secret that could not be had: never an open server
    with pytest.raises(UserError, match=f"{TOKEN_VARIABLE} holds no token"):
        read_token(None)


def test_the_application_asks_for_all_three(model):
    """Without a token, from another site and by another name nothing is answered; the reason is JSON."""
    app = create_app(model, Limits(), access=access_of("127.0.0.1", "", "https://friend.example", TOKEN))

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        authorised = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return [
                await client.get("/info", headers=authorised),
                await client.get("/info"),
                await client.get("/metrics"),
                await client.get("/", headers=authorised | {"Host": "evil.example"}),
                await client.post("/predict", headers=authorised | {"Origin": "https://evil.example"}),
                await client.options(
                    "/predict", headers={"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
                ),
                await client.get("/metrics", headers=authorised),
            ]

    found = asyncio.run(answers())
    assert [answer.status_code for answer in found] == [200, 401, 401, 400, 403, 200, 200]
    for answer in found[1:5]:
        assert answer.json()["detail"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Basic" in found[1].headers["www-authenticate"]
    assert found[5].headers["access-control-allow-origin"] == "https://friend.example"
    assert 'linnaeus_requests_total{path="/info",status="401"} 1.0' in found[6].text
