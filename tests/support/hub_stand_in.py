"""A stand-in for the Hugging Face Hub: what pushes and downloads ask, and no more."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A commit is known by 40 hexadecimal digits.
_API = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/revision/[\w.-]+)?$")
_PREUPLOAD = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/preupload/main$")
_COMMIT = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/commit/main$")
_RESOLVE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/[\w.-]+/(.+)$")


class Hub:
    """Repositories of files.

    Attributes:
        url: of the server.
        repos: bytes by file, by repository.
        sizes: of files, in place of the true ones.
        asked: methods and paths of all requests.
    """

    def __init__(self, url):
        self.url, self.repos, self.sizes, self.asked = url, {}, {}, []

    def commit_of(self, repo):
        """A number that changes with every file."""
        content = hashlib.sha1()
        for name, data in sorted(self.repos[repo].items()):
            content.update(name.encode() + data)
        return content.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_):
        pass

    def _answer(self, status, content=b"", **headers):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers["Content-Type"] = "application/json"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        path = self.path.split("?")[0]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.asked.append(("POST", path))
        if path == "/api/repos/create":
            about = json.loads(body)
            repo = f"{about['organization']}/{about['name']}"
            self.hub.repos.setdefault(repo, {})
            self._answer(200, {"url": f"{self.hub.url}/{repo}"})
        elif path == "/api/validate-yaml":
            assert json.loads(body)["content"].startswith("---\nlicense:")
            self._answer(200, {"errors": [], "warnings": []})
        elif _PREUPLOAD.match(path):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif match := _COMMIT.match(path):
            repo = match[1]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    data = base64.b64decode(value["content"])
                    self.hub.repos[repo][value["path"]] = data
            sha = self.hub.commit_of(repo)
            url = f"{self.hub.url}/{repo}/commit/{sha}"
            self._answer(200, {"success": True, "commitOid": sha, "commitUrl": url})
        else:
            self._answer(404)

    def do_GET(self):
        path = self.path.split("?")[0]
        self.hub.asked.append((self.command, path))
        if (match := _API.match(path)) and match[1] in self.hub.repos:
            repo = match[1]
            files = [
                {"rfilename": name, "size": self.hub.sizes.get(name, len(data))}
                for name, data in self.hub.repos[repo].items()
            ]
            sha = self.hub.commit_of(repo)
            self._answer(200, {"id": repo, "sha": sha, "siblings": files})
        elif (match := _RESOLVE.match(path)) and match[1] in self.hub.repos:
            data = self.hub.repos[match[1]][match[2]]
            about = {"X_Repo_Commit": self.hub.commit_of(match[1])}
            etag = hashlib.sha256(data).hexdigest()
            self._answer(200, data, ETag=f'"{etag}"', **about)
        else:
            self._answer(404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815 (the name that http.server asks for)


@contextmanager
def serve():
    """A server on this machine; gives its `Hub`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"hub": hub})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
