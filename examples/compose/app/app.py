"""The sample application: app.py ADDRESS:PORT

It says of each request whether it came early (RFC 8470: the field Early-Data that the server in
front sets), and how often its target has been executed. A GET changes nothing here but that count.

    /           a small page        /image      a large picture
    /count      the counts, JSON    /health     200
"""

import html
import json
import random
import struct
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>0-RTT</title></head>
<body><h1>{method} {target}</h1>
<p>Early data: <b>{early}</b>. Executed: <b>{count}</b>.</p>
<p><a href="/">again</a>, <a href="/image">a large picture</a></p></body></html>
"""


def picture(side=700):
    """A PNG of noise, about 1.5 MB, which no compression makes smaller."""
    noise = random.Random(0)
    rows = b"".join(b"\0" + noise.randbytes(3 * side) for _ in range(side))

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    counts, lock, image = {}, threading.Lock(), picture()

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/health":
            return self.send("text/plain", b"ok\n")
        if self.path == "/count":
            with self.lock:
                return self.send("application/json", json.dumps(self.counts).encode() + b"\n")
        with self.lock:
            what = f"{self.command} {self.path}"
            self.counts[what] = self.counts.get(what, 0) + 1
            count = self.counts[what]
        if self.path == "/image":
            return self.send("image/png", self.image)
        early = "yes" if self.headers.get("Early-Data") == "1" else "no"
        target = html.escape(self.path)
        page = PAGE.format(method=self.command, target=target, early=early, count=count)
        self.send("text/html", page.encode())

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def send(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        # Or a browser would take the response from its cache, and measure nothing.
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True


address, port = sys.argv[1].rsplit(":", 1)
server = Server((address, int(port)), Handler)
print(f"listening on {address}:{server.server_port}", flush=True)
server.serve_forever()
