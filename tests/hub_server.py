"""A repository served as the Hugging Face hub serves it, with faults on demand."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pt", ".parquet")


class Repository:
    """Revisions of one model or dataset: {revision: {file name: bytes}}, and what goes wrong."""

    def __init__(self, name, revisions, token=None, kind="models"):
        self.name = name
        self.kind = kind
        self.revisions = revisions
        self.token = token
        self.requests = []
        self.served = 0  # bytes of content
        self.drops = {}  # (revision, file) -> how often the connection breaks half way
        self.wrong = set()  # (revision, file): the content differs from the listed hash
        self.dead = set()  # (revision, file): the connection breaks before the first byte
        self.silent = set()  # (revision, file): a range is answered properly, and with no bytes
        self.lost = set()  # (revision, file): listed, and not there
        self.broken = set()  # (revision, file): answered with 500, for ever
        self.heads = 0  # so often the connection breaks at a HEAD request
        self.busy = 0  # so many requests are answered with 503
        self.whole = False  # range headers are ignored

    def commit(self, revision):
        return hashlib.sha1(f"{self.name} {revision}".encode()).hexdigest()

    def revision_of(self, word):
        known = {self.commit(revision): revision for revision in self.revisions}
        return known.get(word, word if word in self.revisions else None)

    def entry(self, revision, name):
        content = self.revisions[revision][name]
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "path": name, "size": len(content), "oid": blob}
        if name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return entry

    def etag(self, revision, name):
        entry = self.entry(revision, name)
        return entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer waits 40 ms

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        several = self.server.repositories
        hub = next((one for one in several if f"/{one.name}/" in path), several[0])
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if self.command == "HEAD" and hub.heads > 0:
            hub.heads -= 1
            self.close_connection = True
            return self.connection.shutdown(2)
        if hub.busy > 0:
            hub.busy -= 1
            return self.answer(503, {"error": "busy"})
        if path == f"/api/{hub.kind}/{hub.name}/refs":
            return self.refs(hub)
        tree = re.fullmatch(rf"/api/{hub.kind}/{hub.name}/tree/([^/]+)/?(.*)", path)
        if tree and hub.revision_of(tree[1]):
            revision = hub.revision_of(tree[1])
            names = sorted(name for name in hub.revisions[revision] if name.rpartition("/")[0] == tree[2])
            # Two entries a page, so that paging is exercised.
            start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
            link = {}
            if start + 2 < len(names):
                link = {"Link": f'<http://{self.headers["Host"]}{path}?cursor={start + 2}>; rel="next"'}
            page = [hub.entry(revision, name) for name in names[start : start + 2]]
            folder = [{"type": "directory", "path": "sub", "oid": "0"}] if start == 0 else []
            return self.answer(200, folder + page, link)
        place = "" if hub.kind == "models" else f"/{hub.kind}"
        found = re.fullmatch(rf"{place}/{hub.name}/resolve/([^/]+)/(.+)", path)
        if found:
            return self.resolve(hub, hub.revision_of(found[1]), found[2])
        stored = re.fullmatch(rf"/store/{hub.name}/([^/]+)/(.+)", path)
        if stored:
            return self.content(hub, stored[1], stored[2])
        return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def refs(self, hub):
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": hub.commit(name)} for name in hub.revisions
        ]
        return self.answer(200, {"branches": branches, "tags": [], "converts": []})

    def resolve(self, hub, revision, name):
        if revision is None or name not in hub.revisions[revision] or (revision, name) in hub.lost:
            return self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": hub.commit(revision), "ETag": f'"{hub.etag(revision, name)}"'}
        if name.endswith(LARGE):  # large files live elsewhere, as on the hub
            size = len(hub.revisions[revision][name])
            headers |= {"X-Linked-Etag": f'"{hub.etag(revision, name)}"', "X-Linked-Size": str(size)}
            # Another host name for the same server: credentials must not follow.
            port = self.server.server_address[1]
            headers["Location"] = f"http://localhost:{port}/store/{hub.name}/{revision}/{name}"
            return self.answer(302, None, headers)
        return self.content(hub, revision, name, headers)

    def content(self, hub, revision, name, headers=None):
        if (revision, name) in hub.broken:
            self.answer(500, {"error": "broken"})
            return
        content = hub.revisions[revision][name]
        if (revision, name) in hub.wrong:
            content = content[:-1] + bytes([content[-1] ^ 1])
        status, start, stop = 200, 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        headers = dict(headers or {}, **{"Accept-Ranges": "bytes"})
        if asked and not hub.whole:
            start, stop = int(asked[1]), min(int(asked[2] or len(content) - 1) + 1, len(content))
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        if (revision, name) in hub.silent:
            content, stop = b"", start
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = content[start:stop]
        if (revision, name) in hub.dead:
            self.close_connection = True
            self.connection.shutdown(2)
            return
        if hub.drops.get((revision, name), 0) > 0 and len(body) > 100:
            hub.drops[revision, name] -= 1
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        hub.served += len(body)
        self.wfile.write(body)

    def answer(self, status, value, headers=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for key, text in (headers or {}).items():
            self.send_header(key, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(*repositories):
    """The address of a server that hands these repositories out."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.repositories = repositories
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
