"""A stand-in for the server of W&B: it keeps the history of runs, and answers what `wandb` asks when one goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FILE = "wandb-history.jsonl"


class Histories(ThreadingHTTPServer):
    """Holds the lines of the history of each run by its id."""

    daemon_threads = True

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def rows(self, run: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.get(run, [])]


class Handler(BaseHTTPRequestHandler):
    """GraphQL, and the stream of what is logged."""

    server: Histories

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            sent = gzip.decompress(sent)
        body = json.loads(sent) if self.path.endswith(("/file_stream", "/graphql")) else {}
        if self.path.endswith("/file_stream"):
            part = body.get("files", {}).get(FILE, {"offset": 0, "content": []})
            lines = self.server.lines.setdefault(self.path.split("/")[-2], [])
            lines[part["offset"] : part["offset"] + len(part["content"])] = part["content"]
            self._answer({"limits": {}})
        else:
            self._answer({"data": self._graphql(body.get("query", ""), body.get("variables") or {})})

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def _graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "p", "name": "birds", "entity": {"id": "e", "name": "me"}}
        if "viewer" in query:
            return {"viewer": {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        if "RunResumeStatus" in query:
            lines = self.server.lines.get(given["name"])
            run = {"id": "r", "name": given["name"], "summaryMetrics": "{}", "config": "{}", "tags": [], "notes": None}
            if lines is not None:
                run |= {
                    "historyLineCount": len(lines),
                    "eventsLineCount": 0,
                    "logLineCount": 0,
                    "wandbConfig": '{"t": 1}',
                }
                run |= {"historyTail": json.dumps(lines[-1:]), "eventsTail": "[]", "displayName": given["name"]}
            return {"model": {**project, "bucket": None if lines is None else run}}
        if "upsertBucket" in query:
            lines = self.server.lines.setdefault(given["name"], [])
            run = {"id": "r", "name": given["name"], "displayName": given["name"], "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**run, "historyLineCount": len(lines)}, "inserted": not lines}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.server.url}/files/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        return {}

    def _answer(self, value: dict[str, Any]) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Histories]:
    """The server, while it runs."""
    with Histories() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
