"""A calibrated run behind HTTP, with the standard library alone beside pskd.

    python examples/serve.py RUN 8000
    curl --data-binary @photo.jpg localhost:8000

For trying things out on one's own machine: it knows no users, no encryption and one request at a time.
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import pskd
from pskd.workbench.data.view import decode

LIMIT = 20_000_000  # bytes of an image


def server(run: str, port: int) -> HTTPServer:
    classify = pskd.load(run)
    options = {} if classify.calibration is None else {"coverage": 0.9, "max_risk": 0.05}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                size = int(self.headers["Content-Length"] or 0)
                if not 0 < size <= LIMIT:
                    raise ValueError(f"send an image of at most {LIMIT:,} bytes")
                code, answer = 200, classify(decode(io.BytesIO(self.rfile.read(size)), 3), **options).to_dict()
            except (ValueError, TypeError) as error:
                code, answer = 400, {"error": str(error)}
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    return HTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    server(sys.argv[1], int(sys.argv[2])).serve_forever()
