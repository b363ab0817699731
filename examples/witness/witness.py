"""A witness for `firstflight audit --witness`: counts how often each request was executed.

Mount `app` at a path of a WSGI application, in one process, or run it: python3 witness.py 9099
"""

import collections
import json
import sys
import threading
from wsgiref.simple_server import make_server

counts = collections.OrderedDict()
lock = threading.Lock()


def app(environ, start_response):
    query = environ.get("QUERY_STRING", "")
    with lock:
        counts[query] = counts.get(query, 0) + 1
        executions = counts[query]
        if len(counts) > 10_000:
            counts.popitem(last=False)
    early_data = environ.get("HTTP_EARLY_DATA")
    body = json.dumps({"executions": executions, "early_data": early_data}).encode()
    start_response("200 OK", [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ])
    return [body]


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), app).serve_forever()
