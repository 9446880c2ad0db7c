"""A small hub on 127.0.0.1 that holds checkpoints, datasets and Spaces as revisions, and misbehaves when told to.

    python tests/hub_server.py ROOT        prints its port, then serves until it is killed

ROOT/models/<owner>/<name>/<revision>/<files>, ROOT/datasets/... and ROOT/spaces/... are its repositories ("%2F"
stands for a slash in a revision). `POST /control` with JSON sets the faults, each of which strikes requests whose
"METHOD path" matches:

    {"match": "GET .*safetensors", "action": "drop", "times": 1}
    action: status (status, headers), drop (half of the body, then the connection ends), slow (seconds over the
            body), stall (seconds before the answer); times: how often (default: always)

`GET /control` answers with the requests so far as [method, path, range]. If there is a ROOT/listing.json, it is what
repositories are said to hold.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

API = re.compile(
    r"/api/(?P<kind>models|datasets|spaces)/(?P<repo>[^/]+/[^/]+)(/(?P<what>refs|revision|tree)(/(?P<rev>[^/]+))?.*)?"
)
UPLOAD = re.compile(
    r"/api/(?P<kind>models|datasets|spaces)/(?P<repo>[^/]+/[^/]+)/(?P<what>preupload|commit)/(?P<rev>[^/]+)"
)
RESOLVE = re.compile(
    r"/(?:(?P<kind>datasets|spaces)/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<file>.+)"
)


def commit_of(folder: Path) -> str:
    """A stand-in for git: 40 hex digits that depend on the revision's files."""
    if (known := folder / ".commit").exists():
        return known.read_text()
    listing = sorted(
        (p.relative_to(folder).as_posix(), p.stat().st_size, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    )
    return hashlib.sha1(json.dumps([folder.name, listing]).encode()).hexdigest()


def listed(folder: Path, name: str) -> dict:
    """A file as the hub lists it: large ones with the digest of their content."""
    data = (folder / name).read_bytes()
    found = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
    if name.endswith((".safetensors", ".bin")):
        sha = hashlib.sha256(data).hexdigest()
        found["lfs"] = {"size": len(data), "sha256": sha, "pointerSize": 134}
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    faults: list[dict] = []  # noqa: RUF012 (one list for all requests of the process is the point)
    requests: list[tuple] = []  # noqa: RUF012

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        if path == "/control":
            Handler.faults, Handler.requests = json.loads(body), []
            return self.answer(200, b"{}")
        Handler.requests.append((self.command, path, None))
        fault = self.strike(path)
        if fault.get("action") == "status":
            return self.answer(fault["status"], b"", fault.get("headers", {}))
        if path == "/api/validate-yaml":
            return self.answer_json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            folder = self.root / f"{asked['type']}s" / repo / "main"
            if asked["type"] == "space" and not folder.exists():
                folder.mkdir(parents=True)  # with a page to begin with, as on the hub
                (folder / "README.md").write_text(f"---\nsdk: {asked['sdk']}\n---\n")
                (folder / "index.html").write_text("<p>new</p>")
            folder.mkdir(parents=True, exist_ok=True)
            return self.answer_json({"url": f"/{asked['type']}s/{repo}", "name": repo})
        if match := UPLOAD.fullmatch(path):
            return self.upload(body, **match.groupdict())
        return self.error(404, "EntryNotFound")

    def upload(self, body, kind, repo, what, rev):
        """Every file is small enough to travel inside the commit."""
        if what == "preupload":
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            return self.answer_json({"files": modes})
        folder = self.root / kind / repo / unquote(rev)
        lines = [json.loads(line) for line in body.splitlines()]
        parent = next(each["value"].get("parentCommit") for each in lines if each["key"] == "header")
        if parent not in (None, commit_of(folder)):
            return self.error(412, "PreconditionFailed")
        for each in lines:
            path = folder / each["value"].get("path", "")
            if each["key"] == "file":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(each["value"]["content"]))
            elif each["key"] == "deletedFile":
                path.unlink()
        commit = commit_of(folder)
        return self.answer_json(
            {
                "success": True,
                "commitOid": commit,
                "commitUrl": f"http://127.0.0.1/{kind}/{repo}/commit/{commit}",
            }
        )

    def do_GET(self):
        path = urlsplit(self.path).path
        if path == "/control":
            return self.answer_json(Handler.requests)
        Handler.requests.append((self.command, path, self.headers.get("Range")))
        fault = self.strike(path)
        if fault.get("action") == "status":
            return self.answer(fault["status"], b"", fault.get("headers", {}))
        if fault.get("action") == "stall":
            time.sleep(fault["seconds"])
        if match := API.fullmatch(path):
            return self.api(**match.groupdict())
        if match := RESOLVE.fullmatch(path):
            return self.file(fault, **match.groupdict())
        return self.error(404, "EntryNotFound")

    def strike(self, path):
        for fault in Handler.faults:
            if re.search(fault["match"], f"{self.command} {path}") and fault.get("times", 1) > 0:
                fault["times"] = fault.get("times", 10**9) - 1
                return fault
        return {}

    def revision(self, kind, repo, rev):
        """The folder of a revision given by name or commit; None once an error was sent."""
        home = self.root / kind / repo
        if not home.is_dir():
            return self.error(401, "RepoNotFound")
        for folder in home.iterdir():
            if unquote(rev) in (unquote(folder.name), commit_of(folder)):
                return folder
        return self.error(404, "RevisionNotFound")

    def api(self, kind, repo, what, rev, **_):
        if what == "refs":
            home = self.root / kind / repo
            if not home.is_dir():
                return self.error(401, "RepoNotFound")
            names = [(unquote(f.name), commit_of(f)) for f in sorted(home.iterdir())]
            branches = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in names if "refs/" not in n
            ]
            return self.answer_json({"branches": branches, "tags": [], "converts": []})
        if (folder := self.revision(kind, repo, rev or "main")) is None:
            return None
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        if what == "tree":
            sizes = {name: (folder / name).stat().st_size for name in files}
            return self.answer_json(
                [{"type": "file", "path": n, "size": s, "oid": "0" * 40} for n, s in sizes.items()]
            )
        siblings = [listed(folder, name) for name in files]
        if "blobs=" not in self.path:
            siblings = [{"rfilename": each["rfilename"]} for each in siblings]
        if (lie := self.root / "listing.json").exists():
            siblings = json.loads(lie.read_text())
        return self.answer_json({"id": repo, "sha": commit_of(folder), "siblings": siblings})

    def file(self, fault, kind, repo, rev, file):
        if (folder := self.revision(kind or "models", repo, rev)) is None:
            return None
        path = folder / unquote(file)
        if not path.is_file():
            return self.error(404, "EntryNotFound")
        data = path.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit_of(folder)}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(wanted[1]), int(wanted[2] or len(data) - 1) + 1
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return self.answer(206, data[start:stop], headers, fault)
        return self.answer(200, data, headers, fault)

    def error(self, status, code):
        self.answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def answer_json(self, value):
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def answer(self, status, body, headers=None, fault=None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        action = (fault or {}).get("action")
        if action == "drop":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif action == "slow":
            for start in range(0, len(body), step := len(body) // 10 + 1):
                self.wfile.write(body[start : start + step])
                self.wfile.flush()
                time.sleep(fault["seconds"] / 10)
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Hub:
    """A running server, seen from a test."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self.url = f"http://127.0.0.1:{port}"

    def fault(self, *faults: dict) -> None:
        """Replace the faults and forget the requests so far."""
        request = urllib.request.Request(f"{self.url}/control", json.dumps(faults).encode(), method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def requests(self) -> list[list]:
        with urllib.request.urlopen(f"{self.url}/control", timeout=10) as answer:
            return json.load(answer)

    def move(self, repo: str, revision: str, new: Path) -> None:
        """Let a branch stand for what is in `new`; what it stood for before is still there under its commit."""
        folder = self.root / "models" / repo / revision
        commit = commit_of(folder)
        (folder / ".commit").write_text(commit)
        folder.rename(folder.with_name(commit))
        shutil.copytree(new, folder)

    def commit(self, repo: str, revision: str, kind: str = "models") -> str:
        return commit_of(self.root / kind / repo / revision)


@contextmanager
def serve(root: Path):
    """Run the server as a process of its own for the duration of the block."""
    process = subprocess.Popen([sys.executable, __file__, str(root)], stdout=subprocess.PIPE, text=True)
    try:
        yield Hub(root, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
