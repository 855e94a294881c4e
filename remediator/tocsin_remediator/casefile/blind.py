"""What no measurement on the node can show. Fixed wording: an honest pack says it every time."""

from __future__ import annotations

from typing import Final

FIXED: Final = (
    "This is node-side evidence and what was ruled out on our side; "
    "it is not a measurement of the provider's equipment."
)

CANNOT_SEE: Final[dict[str, tuple[str, ...]]] = {
    "workload": (
        "Whether the program's own code or data is right: only what it prints, calls and waits for is seen.",
        "Errors that a process hides from the kernel and from its output.",
    ),
    "device": (
        "Silent arithmetic errors: a GPU that computes wrong numbers at full speed looks healthy here.",
        "Cooling and power supply of the rack beyond what the GPU itself reports.",
        "The board's history with earlier owners, beyond the counters that it keeps.",
    ),
    "fabric": (
        "Switches and the far end of a link: only this node's ports are read.",
        "Congestion that other tenants cause inside the fabric.",
    ),
    "storage": ("The storage servers: only this node's waits for them are seen.",),
    "platform": ("The hypervisor and the physical host below a virtual machine.",),
    "host": ("What the hypervisor takes away without reporting it as stolen time.",),
    "serving": ("What clients experience between them and the engine.",),
}
