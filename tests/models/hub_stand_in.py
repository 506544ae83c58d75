"""A local stand-in for the Hub with the routes that huggingface_hub needs to fetch and push a model.

Models are kept in memory, one revision each. The stand-in can be told to hide a model from those without the token, and
to break off in the middle of a file.
"""

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_let_me_in"


@dataclass
class Hub:
    address: str = ""
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by repository and name."""
    private: set[str] = field(default_factory=set)
    uploads: dict[str, bytes] = field(default_factory=dict)
    """Large files by hash, not yet committed."""
    served: list[str] = field(default_factory=list)
    """Names of the files that were asked for, HEAD not counted."""
    commits: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    """How many times to come a file breaks off halfway."""

    def sha(self, repo: str) -> str:
        content = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in self.models[repo].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()


@contextmanager
def stand_in() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.answer_get(body=False)

    def do_GET(self) -> None:
        self.answer_get(body=True)

    def answer_get(self, body: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo not in self.hub.models or (repo in self.hub.private and not self.known):
            self.send(401, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api":
            self.answer_api(repo, *parts[4:6])
        elif parts[3] not in ("main", self.hub.sha(repo)):
            self.send(404, {"error": "Revision not found"}, **{"X-Error-Code": "RevisionNotFound"})
        elif parts[4] not in self.hub.models[repo]:
            self.send(404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"})
        else:
            self.send_file(repo, parts[4], body)

    def answer_api(self, repo: str, what: str, revision: str) -> None:
        sha = self.hub.sha(repo)
        if revision not in ("main", sha):
            self.send(404, {"error": "Revision not found"}, **{"X-Error-Code": "RevisionNotFound"})
        elif what == "tree":
            files = self.hub.models[repo].items()
            self.send(200, [{"type": "file", "path": n, "size": len(d), "oid": digest(d)[:40]} for n, d in files])
        else:
            self.send(200, {"id": repo, "sha": sha, "private": repo in self.hub.private, "siblings": [], "tags": []})

    def send_file(self, repo: str, name: str, body: bool) -> None:
        data = self.hub.models[repo][name]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{digest(data)}"')
        self.send_header("X-Repo-Commit", self.hub.sha(repo))
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.hub.served.append(name)
            broken = self.hub.breaks[name] > 0
            self.hub.breaks[name] -= broken
            self.wfile.write(data[start : (start + len(data)) // 2 if broken else None])
            self.close_connection = self.close_connection or broken

    def do_PUT(self) -> None:
        data = self.content
        self.hub.uploads[self.path.rpartition("/")[2]] = data
        self.send(200, {})

    def do_POST(self) -> None:
        content = self.content
        if not self.known:
            self.send(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self.create(json.loads(content))
        elif self.path == "/api/validate-yaml":
            self.send(200, {"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(content)["files"]]
            modes = {True: "lfs", False: "regular"}
            files = [{"path": n, "uploadMode": modes[n.endswith((".safetensors", ".png"))]} for n in names]
            self.send(200, {"files": [{**file, "shouldIgnore": False} for file in files]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(content)["objects"]
            href = f"{self.hub.address}/large/"
            actions = [{**o, "actions": {"upload": {"href": href + o["oid"]}}} for o in objects]
            self.send(200, {"transfer": "basic", "objects": actions})
        elif "/commit/" in self.path:
            self.commit("/".join(self.path.split("/")[3:5]), content)

    def create(self, wish: dict[str, Any]) -> None:
        repo = f"{wish['organization']}/{wish['name']}"
        self.hub.models.setdefault(repo, {})
        if wish.get("visibility") == "private" or wish.get("private"):
            self.hub.private.add(repo)
        self.send(200, {"url": f"{self.hub.address}/{repo}"})

    def commit(self, repo: str, content: bytes) -> None:
        for line in map(json.loads, content.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.hub.models[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.models[repo][value["path"]] = self.hub.uploads[value["oid"]]
        self.hub.commits += 1
        address = f"{self.hub.address}/{repo}/commit/{self.hub.sha(repo)}"
        self.send(200, {"commitUrl": address, "commitOid": self.hub.sha(repo), "success": True})

    @property
    def known(self) -> bool:
        return bool(self.headers.get("Authorization") == f"Bearer {TOKEN}")

    @property
    def content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def send(self, status: int, answer: object, **headers: str) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
