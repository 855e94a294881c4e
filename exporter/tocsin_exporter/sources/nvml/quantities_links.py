"""The quantities of NVLink, the NVLink fabric and the chip-to-chip link; a part of `quantities`."""

from __future__ import annotations

from tocsin_exporter.sources.nvml.reads import (
    AMPERE,
    BLACKWELL,
    C2C,
    DEEP,
    FABRIC,
    HALF,
    HOPPER,
    MINUTE,
    NVLINK,
    START,
    Quantity,
    Read,
    call,
    field,
    gpm,
    own,
)

__all__ = ["LINK_ROWS", "MOST_GPM_LINKS"]

_MEGA = 1e6
_KIB = 1024.0
_MIB = 1048576.0
# The scope that means all links together.
_ALL_LINKS = 0xFFFFFFFF
# GPM has ids of their own for so many links.
MOST_GPM_LINKS = 72

_STATES = ("not_started", "in_progress", "completed")
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: name, position and form of each part of the mask.
_HEALTH = (
    ("degraded_bandwidth", "bits:0:3"),
    ("route_recovery", "bits:2:3"),
    ("route_unhealthy", "bits:4:3"),
    ("access_timeout_recovery", "bits:6:3"),
    ("partition_assigned", "bits:12:3"),
    ("manager_connected", "bits:14:3"),
)
_MISCONFIGURED = (
    None, "none", "incorrect_system_guid", "incorrect_chassis_serial", "no_partition", "insufficient_nvlinks",
    "incompatible_firmware", "invalid_location", "invalid_state",
)  # fmt: skip
_SUMMARY = (None, "healthy", "unhealthy", "limited_capacity")
_FORMS = ("nvmlDeviceGetGpuFabricInfoV/3", "nvmlDeviceGetGpuFabricInfoV/2")


def _gpm_link(link: int, direction: int) -> int:
    """Return the metric id of a link's rate; *direction* is 0 for received, 1 for sent."""
    return (62 + 2 * link if link < 18 else 212 + 2 * (link - 18)) + direction


def _blackwell(name: str, number: int, *labels: str, decode: float | str = 1.0) -> Read:
    # The ids exist in older drivers and mean nothing on older links.
    return field(f"NVLINK_{name}", number, labels=labels, decode=decode, since=BLACKWELL, per=NVLINK)


def _error(name: str, number: int, label: str) -> Read:
    return call("nvmlDeviceGetNvLinkErrorCounter/" + name, argument=(number,), labels=(label,), until=HOPPER, per=NVLINK)


LINK_ROWS = (
    Quantity("nvlinks", False, (), "", "NVLinks that the device has.", FABRIC, False, MINUTE, reads=(own("nvlink"),)),
    Quantity("nvlinks_active", False, (), "", "NVLinks that are up; fewer than there are is a lost link unless the board leaves some unconnected.", FABRIC, False, HALF, reads=(own("nvlink"),)),
    Quantity("nvswitch_links", False, (), "", "NVLinks that reach an NVSwitch.", FABRIC, False, MINUTE, reads=(field("NVSWITCH_CONNECTED_LINK_COUNT", 147),), most=1024),
    Quantity("nvlink_active", False, ("link",), "", "1 when the NVLink is up.", FABRIC, False, HALF,
             reads=(field("NVLINK_GET_STATE", 165, decode="active", since=AMPERE, per=NVLINK), call("nvmlDeviceGetNvLinkState", per=NVLINK)), most=1),
    Quantity("nvlink_speed_bytes_per_second", False, ("link",), "", "Speed of the NVLink in bytes per second.", FABRIC, False, MINUTE, reads=(field("NVLINK_GET_SPEED", 164, decode=_MEGA, since=AMPERE, per=NVLINK),)),
    Quantity("nvlink_low_power", False, ("link",), "", "1 while the NVLink is in its low-power state.", DEEP, False, MINUTE, reads=(field("NVLINK_GET_POWER_STATE", 167, since=AMPERE, per=NVLINK),), most=1),
    Quantity("nvlink_info", False, ("link", "version", "remote", "remote_pci", "remote_link"), "", "Always 1: version of the NVLink and what is at its other end (gpu, switch, cpu).", DEEP, False, START, reads=(own("nvlink"),)),
    Quantity("nvlink_transmit_bytes_total", True, (), "bytes", "Data sent over all NVLinks.", FABRIC, False, reads=(field("NVLINK_THROUGHPUT_DATA_TX", 138, scope=_ALL_LINKS, decode=_KIB, since=AMPERE),)),
    Quantity("nvlink_receive_bytes_total", True, (), "bytes", "Data received over all NVLinks.", FABRIC, False, reads=(field("NVLINK_THROUGHPUT_DATA_RX", 139, scope=_ALL_LINKS, decode=_KIB, since=AMPERE),)),
    Quantity("nvlink_raw_transmit_bytes_total", True, (), "bytes", "Data and protocol sent over all NVLinks.", DEEP, False, reads=(field("NVLINK_THROUGHPUT_RAW_TX", 140, scope=_ALL_LINKS, decode=_KIB, since=AMPERE),)),
    Quantity("nvlink_raw_receive_bytes_total", True, (), "bytes", "Data and protocol received over all NVLinks.", DEEP, False, reads=(field("NVLINK_THROUGHPUT_RAW_RX", 141, scope=_ALL_LINKS, decode=_KIB, since=AMPERE),)),
    Quantity("nvlink_link_transmit_bytes_total", True, ("link",), "bytes", "Data sent over one NVLink.", FABRIC, False, HALF,
             reads=(_blackwell("COUNT_XMIT_BYTES", 202), field("NVLINK_THROUGHPUT_DATA_TX", 138, decode=_KIB, since=AMPERE, per=NVLINK))),
    Quantity("nvlink_link_receive_bytes_total", True, ("link",), "bytes", "Data received over one NVLink.", FABRIC, False, HALF,
             reads=(_blackwell("COUNT_RCV_BYTES", 204), field("NVLINK_THROUGHPUT_DATA_RX", 139, decode=_KIB, since=AMPERE, per=NVLINK))),
    Quantity("nvlink_link_packets_total", True, ("link", "direction"), "", "Packets over one NVLink (Blackwell and newer).", DEEP, False, HALF,
             reads=(_blackwell("COUNT_XMIT_PACKETS", 201, "transmit"), _blackwell("COUNT_RCV_PACKETS", 203, "receive"))),
    Quantity("nvlink_errors_total", True, ("link", "kind"), "", "Errors of one NVLink by kind; the kinds beginning with dl_ are those of the data link up to Hopper, the others those of Blackwell and newer.", FABRIC, False, HALF,
             reads=(*(_error(name, number, label) for name, number, label in (("DL_REPLAY", 0, "dl_replay"), ("DL_RECOVERY", 1, "dl_recovery"),
                      ("DL_CRC_FLIT", 2, "dl_crc_flit"), ("DL_CRC_DATA", 3, "dl_crc_data"), ("DL_ECC_DATA", 4, "dl_ecc_data"))),
                    *(_blackwell(f"COUNT_{name}", number, label) for name, number, label in (
                        ("MALFORMED_PACKET_ERRORS", 206, "malformed_packet"), ("BUFFER_OVERRUN_ERRORS", 207, "buffer_overrun"), ("RCV_ERRORS", 208, "receive"),
                        ("RCV_REMOTE_ERRORS", 209, "receive_remote"), ("RCV_GENERAL_ERRORS", 210, "receive_general"),
                        ("LOCAL_LINK_INTEGRITY_ERRORS", 211, "local_link_integrity"), ("XMIT_DISCARDS", 212, "transmit_discards"),
                        ("EFFECTIVE_ERRORS", 219, "effective"), ("SYMBOL_ERRORS", 221, "symbol"))))),
    Quantity("nvlink_lane_errors_total", True, ("link", "lane"), "", "Raw errors of one lane of an NVLink, before correction (Blackwell and newer).", DEEP, False, HALF,
             reads=tuple(_blackwell(f"COUNT_RAW_ERRORS_LANE{lane}", 289 + lane, str(lane)) for lane in range(2))),
    Quantity("nvlink_recoveries_total", True, ("link", "result"), "", "Recoveries of one NVLink (successful, failed: the link went down, any; Blackwell and newer).", FABRIC, False, HALF,
             reads=(_blackwell("COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", 213, "successful"), _blackwell("COUNT_LINK_RECOVERY_FAILED_EVENTS", 214, "failed"), _blackwell("COUNT_LINK_RECOVERY_EVENTS", 215, "any"))),
    Quantity("nvlink_bit_error_ratio", False, ("link", "kind"), "ratio", "Bit error rate of one NVLink: effective (after correction), symbol, raw (Blackwell and newer).", FABRIC, False, HALF,
             reads=(_blackwell("COUNT_EFFECTIVE_BER", 220, "effective", decode="ber"), _blackwell("COUNT_SYMBOL_BER", 222, "symbol", decode="ber"), _blackwell("COUNT_RAW_BER_V2", 293, "raw", decode="ber"))),
    Quantity("nvlink_lane_bit_error_ratio", False, ("link", "lane"), "ratio", "Raw bit error rate of one lane of an NVLink (Blackwell and newer).", DEEP, False, HALF,
             reads=tuple(_blackwell(f"COUNT_RAW_BER_LANE{lane}_V2", 291 + lane, str(lane), decode="ber") for lane in range(2))),
    Quantity("nvlink_corrected_codewords_total", True, ("link", "symbols"), "", "Code words of one NVLink by the number of symbols that were corrected in them (Blackwell and newer).", DEEP, False, MINUTE,
             reads=tuple(_blackwell(f"COUNT_FEC_HISTORY_{number}", 235 + number, str(number)) for number in range(16))),
    Quantity("nvlink_physical_blocks_total", True, ("link", "kind"), "", "Blocks that the physical layer of one NVLink sent and sent again (Blackwell and newer).", DEEP, False, HALF,
             reads=(_blackwell("PLR_XMIT_BLOCKS", 294, "sent"), _blackwell("PLR_XMIT_RETRY_BLOCKS", 295, "retried"))),
    Quantity("nvlink_data_rate_bytes_per_second", False, ("link",), "", "Rate of one NVLink that is left for data after error correction, in bytes per second; the driver's number is taken as MB/s.", DEEP, False, MINUTE, reads=(_blackwell("GET_DATA_RATE", 296, decode=_MEGA),)),
    Quantity("nvlink_power_threshold", False, ("bound",), "", "Idle time after which an NVLink goes to low power, in the driver's units (unit: 0 is 100 us, 1 is 50 us).", DEEP, False, START,
             reads=tuple(field(f"NVLINK_GET_POWER_THRESHOLD{name}", number, labels=(label,), since=HOPPER) for name, number, label in (
                 ("", 168, "current"), ("_MAX", 200, "max"), ("_MIN", 223, "min"), ("_UNITS", 224, "unit"), ("_SUPPORTED", 225, "supported")))),
    Quantity("nvlink_transmit_bytes_per_second", False, (), "", "Rate sent over all NVLinks since the previous collection, in bytes per second (Hopper and newer).", FABRIC, False, reads=(gpm("NVLINK_TOTAL_TX_PER_SEC", 61, decode=_MIB),)),
    Quantity("nvlink_receive_bytes_per_second", False, (), "", "Rate received over all NVLinks since the previous collection, in bytes per second (Hopper and newer).", FABRIC, False, reads=(gpm("NVLINK_TOTAL_RX_PER_SEC", 60, decode=_MIB),)),
    Quantity("nvlink_link_transmit_bytes_per_second", False, ("link",), "", "Rate sent over one NVLink since the previous collection, in bytes per second.", DEEP, False,
             reads=tuple(gpm(f"NVLINK_L{link}_TX_PER_SEC", _gpm_link(link, 1), labels=(str(link),), decode=_MIB, per=NVLINK) for link in range(36))),
    Quantity("nvlink_link_receive_bytes_per_second", False, ("link",), "", "Rate received over one NVLink since the previous collection, in bytes per second.", DEEP, False,
             reads=tuple(gpm(f"NVLINK_L{link}_RX_PER_SEC", _gpm_link(link, 0), labels=(str(link),), decode=_MIB, per=NVLINK) for link in range(36))),
    Quantity("nvlink_link_since_boot_bytes_total", True, ("link", "direction"), "bytes", "Bytes over one NVLink since the boot (transmit, receive).", DEEP, False, HALF,
             reads=tuple(gpm(f"NVLINK_L{link}_{name}", 261 + 2 * link + offset, labels=(str(link), label), per=NVLINK)
                         for link in range(MOST_GPM_LINKS) for offset, name, label in ((0, "RX", "receive"), (1, "TX", "transmit")))),
    # the NVLink fabric
    Quantity("fabric_state", False, ("state",), "", "1 for the state of the device's registration with the NVLink fabric (not_started, in_progress, completed).", FABRIC, False, HALF,
             reads=tuple(call(form, "state", states=(None, *_STATES)) for form in _FORMS)),
    Quantity("fabric_status", False, (), "", "Result of the registration with the NVLink fabric as an error number of the driver; 0 is well.", FABRIC, False, HALF,
             reads=tuple(call(form, "status") for form in _FORMS)),
    Quantity("fabric_condition", False, ("condition",), "", "1 while the fabric reports this condition of the device, 0 while it denies it.", FABRIC, False, HALF,
             reads=tuple(call(form, "healthMask", labels=(name,), decode=bits) for name, bits in _HEALTH for form in _FORMS)),
    Quantity("fabric_misconfigured", False, ("cause",), "", "1 for the fault that the fabric finds in the device's configuration; none is well.", FABRIC, False, HALF,
             reads=tuple(call(form, "healthMask", decode="field:8:15", states=_MISCONFIGURED) for form in _FORMS)),
    Quantity("fabric_health", False, ("summary",), "", "1 for the fabric's judgement of the device (healthy, unhealthy, limited_capacity).", FABRIC, False, HALF,
             reads=(call("nvmlDeviceGetGpuFabricInfoV/3", "healthSummary", states=_SUMMARY),)),
    Quantity("fabric_info", False, ("clique", "cluster"), "", "Always 1: the NVLink domain that the device is in.", FABRIC, False, MINUTE, reads=(own("nvlink"),)),
    # the link between the CPU and the device
    Quantity("c2c_links", False, (), "", "Chip-to-chip links to the CPU.", DEEP, False, START, reads=(field("C2C_LINK_COUNT", 170, since=HOPPER),), most=64),
    Quantity("c2c_link_active", False, ("link",), "", "1 when the chip-to-chip link is up.", DEEP, False, HALF, reads=(field("C2C_LINK_GET_STATUS", 171, since=HOPPER, per=C2C),), most=1),
    Quantity("c2c_link_speed_bytes_per_second", False, ("link",), "", "Most that the chip-to-chip link carries, in bytes per second; the driver's number is taken as MB/s.", DEEP, False, START, reads=(field("C2C_LINK_GET_MAX_BW", 172, decode=_MEGA, since=HOPPER, per=C2C),)),
    Quantity("c2c_link_errors_total", True, ("link", "kind"), "", "Errors of the chip-to-chip link (interrupt, replay, replay_back_to_back).", DEEP, False, HALF,
             reads=tuple(field(f"C2C_LINK_ERROR_{name}", number, labels=(label,), since=HOPPER, per=C2C) for name, number, label in (
                 ("INTR", 231, "interrupt"), ("REPLAY", 232, "replay"), ("REPLAY_B2B", 233, "replay_back_to_back")))),
    Quantity("c2c_link_low_power", False, ("link",), "", "1 while the chip-to-chip link is in its low-power state.", DEEP, False, MINUTE, reads=(field("C2C_LINK_POWER_STATE", 234, since=HOPPER, per=C2C),), most=1),
    Quantity("c2c_bytes_per_second", False, ("direction", "kind"), "", "Rate over all chip-to-chip links since the previous collection, in bytes per second (data, total).", DEEP, False,
             reads=tuple(gpm(f"C2C_{kind}_{name}_PER_SEC", number, labels=(direction, kind.lower()), decode=_MIB) for kind, name, number, direction in (
                 ("TOTAL", "TX", 100, "transmit"), ("TOTAL", "RX", 101, "receive"), ("DATA", "TX", 102, "transmit"), ("DATA", "RX", 103, "receive")))),
    Quantity("c2c_link_bytes_per_second", False, ("link", "direction", "kind"), "", "Rate over one chip-to-chip link since the previous collection, in bytes per second.", DEEP, False,
             reads=tuple(gpm(f"C2C_LINK{link}_{kind}_{name}_PER_SEC", 104 + 4 * link + offset, labels=(str(link), direction, kind.lower()), decode=_MIB, per=C2C)
                         for link in range(14) for offset, kind, name, direction in ((0, "TOTAL", "TX", "transmit"), (1, "TOTAL", "RX", "receive"), (2, "DATA", "TX", "transmit"), (3, "DATA", "RX", "receive")))),
)
