"""Why the driver as a whole cannot be read, in the two closed lists: of collectors and of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tocsin_exporter.errors import CollectError
from tocsin_exporter.sources.nvml.results import GONE, UNKNOWN

__all__ = ["RefusedError", "refusal"]

# nvmlReturn_t -> reason of the collector, reason of the devices, what to do.
_RIGHTS = "run with access to /dev/nvidiactl and /dev/nvidia*"
_REASONS = {
    4: ("no_permission", "no_permission", _RIGHTS),
    9: ("no_driver", "no_driver", "load the nvidia module"),
    10: ("timeout", "timeout", "see the kernel log"),
    12: ("no_library", "no_library", "install the driver or point --nvml.library at libnvidia-ml.so.1"),
    13: ("unsupported", "unsupported", "the library is too old; install a newer driver"),
    18: (
        "no_driver",
        "version_mismatch",
        "the library and the loaded nvidia module differ; reload the module or reboot",
    ),
    UNKNOWN: (
        "no_permission",
        "access_lost",
        "the container lost its access to the devices, as after a reload of systemd; start it anew",
    ),
}


class RefusedError(CollectError):
    """The driver cannot be read: ``reason`` for the collector, ``up`` for the devices."""

    def __init__(self, reason: str, up: str, detail: str, *, repeated: bool = False) -> None:
        super().__init__(reason, detail)
        self.up = up
        self.repeated = repeated

    def again(self, seconds: float) -> RefusedError:
        """Return the same for the time in which nothing is tried."""
        detail = f"{self.detail}; next try in {seconds:.0f} s"
        return RefusedError(self.reason, self.up, detail, repeated=True)


def refusal(raw: Mapping[str, Any]) -> RefusedError:
    """Return what a child's ``fail`` means."""
    try:
        code = int(raw.get("code", 0))
    except (TypeError, ValueError):
        code = 0
    other = ("bad_data", GONE.get(code, "unknown"), "see the kernel log")
    reason, up, hint = _REASONS.get(code, other)
    return RefusedError(reason, up, f"NVML: {str(raw.get('name'))[:200]} (code {code}); {hint}")
