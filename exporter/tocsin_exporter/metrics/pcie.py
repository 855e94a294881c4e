"""Series of PCI functions: GPUs, HCAs and the ports above them, each once by its own address."""

from __future__ import annotations

from tocsin_exporter.metrics.family import NODE, Family, Kind, Tier

__all__ = ["FAMILIES"]

_C, _G = Kind.COUNTER, Kind.GAUGE
_PCI = (*NODE, "pci")
_ROLE = (*_PCI, "role")

FAMILIES = (
    Family("tocsin_pcie_info", _G, (*_ROLE, "kind", "device", "upstream", "root"), "", "Always 1: a function of the PCI bus. kind: gpu, hca, port. upstream and root: addresses of the port right above it and of the root port, to join a device with the ports that it shares.", Tier.FABRIC),
    Family("tocsin_pcie_present", _G, _PCI, "", "1 when the device answers on the bus, 0 when it is gone or reads as all ones (fallen off the bus); absent while it is suspended.", Tier.FABRIC),
    Family("tocsin_pcie_suspended", _G, _PCI, "", "1 while runtime power management has suspended the device; its link is then not read, as that would wake it.", Tier.FABRIC),
    Family("tocsin_pcie_link_generation", _G, _ROLE, "", "Current PCIe generation of the link between this function and the port above it; an idle GPU lowers it.", Tier.FABRIC),
    Family("tocsin_pcie_link_generation_max", _G, _ROLE, "", "Highest PCIe generation that both ends of the link can.", Tier.FABRIC),
    Family("tocsin_pcie_link_width", _G, _ROLE, "", "Current lanes of the link between this function and the port above it.", Tier.FABRIC),
    Family("tocsin_pcie_link_width_max", _G, _ROLE, "", "Most lanes that both ends of the link can.", Tier.FABRIC),
    Family("tocsin_pcie_errors_total", _C, (*_ROLE, "severity"), "", "AER errors that this function has noticed, by severity (corrected, nonfatal, fatal): the kernel's totals. Zero is no proof of a clean link: behind some switches, and where the firmware keeps AER to itself, the kernel is told nothing.", Tier.FABRIC),
    Family("tocsin_pcie_root_received_errors_total", _C, (*_PCI, "severity"), "", "AER error messages that this root port has received from below, by severity.", Tier.FABRIC),
    Family("tocsin_pcie_named_errors_total", _C, (*_ROLE, "severity", "error"), "", "AER errors that this function has noticed, by the kernel's name (BadTLP, Timeout, ...); present from a name's first error. Their sum need not be the total.", Tier.DEEP),
)
