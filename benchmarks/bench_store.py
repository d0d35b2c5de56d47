"""Reading ranges of a store that takes 50 ms to answer: 8 readers against one.

    python benchmarks/bench_store.py [--latency 0.05 --ranges 64 --size 65536 --readers 1 8] [--record]

The store is a web server on this machine that sleeps before every answer, read through obstore as `joma scan` reads an
address. It shares the machine with the reader, so that on few cores more readers than these only measure Python.
"""

import argparse
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import perf_counter, sleep

from _record import record

from joma.host.stores import Address, read_address
from joma.scan.sources.objects import Web


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    content, latency = b"", 0.0

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        sleep(self.latency)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert asked
        start, stop = int(asked[1]), int(asked[2]) + 1
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.content)}")
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(self.content[start:stop])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--ranges", type=int, default=64)
    parser.add_argument("--size", type=int, default=2**16)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    # Every other stretch is wanted, and gaps are as long: nothing is joined.
    wanted = [(2 * at * options.size, (2 * at + 1) * options.size) for at in range(options.ranges)]
    Handler.content, Handler.latency = bytes(2 * options.ranges * options.size), options.latency
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = read_address(f"http://127.0.0.1:{server.server_address[1]}/model.safetensors")
    rows: list[dict[str, object]] = []
    for readers in options.readers:
        seconds = timed(Web(place), place, wanted, readers)
        row = {"latency_s": options.latency, "ranges": options.ranges, "bytes": options.size, "readers": readers}
        row |= {"seconds": round(seconds, 3), "floor_s": round(options.latency * -(-options.ranges // readers), 3)}
        rows.append(row | {"times_one": round(float(str(rows[0]["seconds"])) / seconds, 2) if rows else 1.0})
        print(json.dumps(rows[-1]), flush=True)
    server.shutdown()
    server.server_close()
    record("store", rows)


def timed(web: Web, place: Address, wanted: list[tuple[int, int]], readers: int) -> float:
    found = web.find(place)
    if found is None:
        sys.exit("the server has no file")
    source = web.ranges(place, found)
    source.readers = readers
    start = perf_counter()
    source.expect([wanted])
    for first, last in wanted:
        source.read_into(first, memoryview(bytearray(last - first)))
    seconds = perf_counter() - start
    source.close()
    return seconds


if __name__ == "__main__":
    main()
