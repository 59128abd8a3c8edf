"""The example of a proxy in the manual: nginx with encryption in front of a server that wants a token."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from linnaeus_jax.inference.server.access import access_of
from tests.docs.pages import DOCS, blocks
from tests.inference.serving_helpers import encoded, serving
from tests.needs import program

NAME, TOKEN = "species.example.org", "a-token-of-the-tests"
WHOLE = """
daemon off;
pid nginx.pid;
error_log error.log;
events {}
http {
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include species.conf;
}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def certificate(folder: Path) -> ssl.SSLContext:
    """Made for the name, and what trusts it."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", "key.pem", "-out", "certificate.pem"]
    about = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-days", "2"]
    subprocess.run([*command, *files, *about], cwd=folder, check=True, capture_output=True)
    return ssl.create_default_context(cafile=folder / "certificate.pem")


@pytest.mark.needs("nginx")
def test_the_example_of_the_manual(model, pictures, tmp_path):
    nginx, trusted, port = str(program("nginx")), certificate(tmp_path), free_port()
    example = next(block.text for block in blocks(DOCS / "serving.md") if block.marks.get("file") == "species.conf")
    with serving(model, access=access_of("127.0.0.1", NAME, token=TOKEN)) as url:
        text = example.replace("listen 443 ", f"listen 127.0.0.1:{port} ")
        text = text.replace("127.0.0.1:8000", url.removeprefix("http://"))
        text = text.replace(f"/etc/ssl/{NAME}.pem", f"{tmp_path}/certificate.pem")
        text = text.replace(f"/etc/ssl/{NAME}.key", f"{tmp_path}/key.pem")
        (tmp_path / "species.conf").write_text(text)
        (tmp_path / "nginx.conf").write_text(WHOLE)
        command = [nginx, "-p", str(tmp_path), "-c", "nginx.conf", "-e", "error.log"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"})
        try:
            check(f"https://127.0.0.1:{port}", trusted, encoded(pictures.pixels[0], "JPEG"), process)
        finally:
            process.terminate()
            process.wait(10)
            if process.stderr is not None:
                process.stderr.close()


def check(url: str, trusted: ssl.SSLContext, picture: bytes, process: subprocess.Popen[str]) -> None:
    with httpx.Client(base_url=url, verify=trusted, headers={"Host": NAME}) as client:

        def ask(method: str, path: str, **more: object) -> httpx.Response:
            return client.request(method, path, extensions={"sni_hostname": NAME}, **more)  # type: ignore[arg-type]

        deadline = time.monotonic() + 10
        while True:
            try:
                health = ask("GET", "/health")
                break
            except httpx.ConnectError:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert health.json()["status"] == "ok"
        assert ask("GET", "/metrics").status_code == 401
        client.auth = httpx.BasicAuth("any", TOKEN)
        assert re.search("<title>", ask("GET", "/").text)
        own, other = {"Origin": f"https://{NAME}"}, {"Origin": "https://evil.example"}
        answer = ask("POST", "/predict", files={"images": ("a.jpg", picture)}, headers=own)
        assert answer.status_code == 200, answer.text
        assert ask("POST", "/predict", files={"images": ("a.jpg", picture)}, headers=other).status_code == 403
        assert ask("POST", "/predict", content=bytes(21 * 2**20)).status_code == 413
        assert ask("GET", "/info", headers={"Host": "evil.example"}).status_code == 400
