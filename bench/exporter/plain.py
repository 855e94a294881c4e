"""
The exporter that one would write in an afternoon: a prometheus_client collector over pynvml.

It reads the same fields of the same devices with the same calls as the product's own child, so that what
differs is how: on each scrape, in the process that answers, formatted by the client library. It knows no
jobs, no kernel log and no ports.

    plain.py PORT LIBRARY
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tocsin_exporter.sources.nvml.child import Reader
from tocsin_exporter.sources.nvml.child import _initialise as initialise
from tocsin_exporter.sources.nvml.quantities import QUANTITIES, Quantity

_LABELS = ("gpu", "gpu_uuid", "mig")


class Devices(Collector):
    """Reads all devices when it is asked."""

    def __init__(self) -> None:
        self._reader = Reader()
        # The reader keeps the activity sample of the reading before: one scrape at a time.
        self._lock = threading.Lock()

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing: otherwise the registry would read all devices at its start."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the families of one scrape."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        up = GaugeMetricFamily("plain_gpu_up", "1 when the driver answers for this device.", labels=_LABELS)
        with self._lock:
            rows = [self._reader.device(index) for index in range(self._reader.count())]
        for row in rows:
            device = (str(row["index"]), str(row.get("uuid", "")), "")
            up.add_metric(device, float(row["up"]))
            for name, more, value in row.get("values", ()):
                quantity = QUANTITIES.get(name)
                if quantity is None:
                    continue
                if name not in families:
                    families[name] = _family(quantity)
                families[name].add_metric([*device, *more], value)
        yield up
        yield from families.values()


def _family(quantity: Quantity) -> GaugeMetricFamily | CounterMetricFamily:
    labels = (*_LABELS, *quantity.labels)
    if quantity.counter:
        return CounterMetricFamily(f"plain_gpu_{quantity.name}", quantity.help, labels=labels)
    return GaugeMetricFamily(f"plain_gpu_{quantity.name}", quantity.help, labels=labels)


def main() -> int:
    """Serve until killed."""
    failure = initialise(sys.argv[2])
    if failure is not None:
        sys.stderr.write(f"NVML: {failure}\n")
        return 1
    registry = CollectorRegistry()
    registry.register(Devices())
    start_http_server(int(sys.argv[1]), "127.0.0.1", registry)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
