"""
A scraper as Prometheus is one: ``scraper.py URL TIMEOUT``, one connection that stays, gzip.

A process of its own, so that what it does with an answer takes no time from what is measured. Each line
of its input is a number of scrapes; it answers with a line of JSON: ``{"times": [seconds, …], "failed": n}``.
"""

from __future__ import annotations

import gzip
import http.client
import json
import sys
import time
from urllib.parse import urlsplit

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=0.0.4;q=0.4,*/*;q=0.2"
)
# Prometheus never asks twice at once.
_PAUSE = 0.02


class Scraper:
    """Asks one address again and again."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        self._where = (parts.hostname or "", parts.port or 80)
        self._path = parts.path
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None

    def scrape(self) -> bytes:
        """Return the body, unpacked; OSError or HTTPException when there is none in time."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._where, timeout=self._timeout)
        try:
            self._connection.request("GET", self._path, headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise
        return gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body

    def timed(self, count: int) -> dict[str, object]:
        """Return the seconds of *count* scrapes; one that failed took as long as it was waited for."""
        times: list[float] = []
        failed = 0
        for _ in range(count):
            began = time.perf_counter()
            try:
                self.scrape()
            except (OSError, http.client.HTTPException):
                failed += 1
            times.append(time.perf_counter() - began)
            time.sleep(_PAUSE)
        return {"times": times, "failed": failed}


def main() -> int:
    """Serve the lines of standard input."""
    scraper = Scraper(sys.argv[1], float(sys.argv[2]))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(scraper.timed(int(line))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
