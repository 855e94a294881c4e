"""Keeps the kubelet's list of which container has which devices."""

from __future__ import annotations

from pathlib import Path

from tocsin_exporter.errors import SourceError
from tocsin_exporter.identity.podresources import ContainerDevices, list_devices
from tocsin_exporter.sources.latest import ErrorCounter, PollingSource

__all__ = ["KubeletSource"]

_SECONDS = 15.0
_DEADLINE = 5.0
_MAX_AGE = 120.0


class KubeletSource(PollingSource[tuple[ContainerDevices, ...]]):
    """Asks the kubelet at *path* every 15 seconds; where there is none it costs a look at a file."""

    def __init__(self, path: Path, errors: ErrorCounter) -> None:
        super().__init__("kubelet", _SECONDS, _MAX_AGE, errors)
        self._path = path

    def read(self) -> tuple[ContainerDevices, ...]:
        """Ask once; a machine without a kubelet has an empty list."""
        try:
            return list_devices(self._path, _DEADLINE)
        except SourceError as err:
            if err.reason == "unsupported":
                return ()
            raise

    def devices_of(self, namespace: str, pod: str, container: str) -> tuple[str, ...]:
        """
        Return the devices of a pod's container, named as in `Assignment`.

        Without the container's name only a pod with a single container on devices gives an answer.
        """
        listed, _ = self.latest.read()
        found = [each for each in listed or () if (each.namespace, each.pod) == (namespace, pod)]
        named = [each for each in found if each.container == container]
        if container:
            return named[0].devices if named else ()
        return found[0].devices if len(found) == 1 else ()
