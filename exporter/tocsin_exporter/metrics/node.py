"""Series of the node (fabric ports, host) and of the exporter itself."""

from __future__ import annotations

from tocsin_exporter.metrics.family import JOB_PORT, NODE, PORT, Family, Kind, Tier

__all__ = ["FAMILIES"]

_C, _G = Kind.COUNTER, Kind.GAUGE

FAMILIES = (
    # fabric
    Family("tocsin_fabric_port_info", _G, (*PORT, "link_layer", "hca_type", "firmware"), "", "Always 1: what the port is.", Tier.FABRIC),
    Family("tocsin_fabric_port_active", _G, PORT, "", "1 when the port's logical state is ACTIVE.", Tier.FABRIC),
    Family("tocsin_fabric_port_expected", _G, PORT, "", "1 when the port is in use: seen ACTIVE within a week, or has carried a GiB since the driver was loaded. 0: down by design, as unprovisioned, management and spare ports are.", Tier.FABRIC),
    Family("tocsin_fabric_port_rate_bytes_per_second", _G, PORT, "", "Signalling rate of the port.", Tier.FABRIC),
    Family("tocsin_fabric_receive_bytes_total", _C, PORT, "bytes", "Data received.", Tier.FABRIC),
    Family("tocsin_fabric_transmit_bytes_total", _C, PORT, "bytes", "Data sent.", Tier.FABRIC),
    Family("tocsin_fabric_transmit_wait_total", _C, PORT, "", "Ticks in which the port had data and no credit.", Tier.FABRIC),
    Family("tocsin_fabric_errors_total", _C, (*PORT, "counter"), "", "Port error counters, by the kernel's file name.", Tier.FABRIC),
    Family("tocsin_fabric_link_downed_total", _C, PORT, "", "Times the link failed and went down.", Tier.FABRIC),
    Family("tocsin_fabric_counter_saturated", _G, (*PORT, "counter"), "", "1 when the counter, by the kernel's file name, has stopped at its highest value: its rate is 0 whatever happens, until it is cleared (perfquery -R).", Tier.FABRIC),
    Family("tocsin_job_port_receive_bytes_total", _C, JOB_PORT, "bytes", "While the job holds the port. Data received."),
    Family("tocsin_job_port_transmit_bytes_total", _C, JOB_PORT, "bytes", "While the job holds the port. Data sent."),
    Family("tocsin_job_port_errors_total", _C, (*JOB_PORT, "counter"), "", "While the job holds the port. Port error counters, by the kernel's file name."),
    Family("tocsin_job_port_active", _G, JOB_PORT, "", "While the job holds the port. 1 when its logical state is ACTIVE."),
    Family("tocsin_fabric_switch_errors_total", _C, (*NODE, "switch", "class"), "", "SXid events of an NVSwitch, by the severity in the message: fatal, nonfatal, unknown; present from a switch's first event."),
    Family("tocsin_fabric_switch_code_errors_total", _C, (*NODE, "switch", "code"), "", "SXid events of an NVSwitch, by exact code; present from a code's first event."),
    Family("tocsin_fabric_switch_event_timestamp_seconds", _G, (*NODE, "switch", "class"), "seconds", "Kernel time of the last SXid event of this severity."),
    # host
    Family("tocsin_host_pressure_seconds_total", _C, (*NODE, "resource", "kind"), "seconds", "Pressure stall time by resource (cpu, memory, io) and kind (some, full)."),
    Family("tocsin_host_memory_total_bytes", _G, NODE, "bytes", "Memory of the host."),
    Family("tocsin_host_memory_available_bytes", _G, NODE, "bytes", "Memory that can be had without swapping."),
    Family("tocsin_host_oom_kills_total", _C, NODE, "", "Processes that the kernel killed for lack of memory since boot."),
    Family("tocsin_host_boot_timestamp_seconds", _G, NODE, "seconds", "When the host booted."),
    Family("tocsin_host_load1", _G, NODE, "", "Load average over one minute."),
    # the exporter
    Family("tocsin_exporter_info", _G, (*NODE, "version", "kernel", "ebpf"), "", "Always 1: this exporter; `ebpf` is the loader step in use or off."),
    Family("tocsin_exporter_start_timestamp_seconds", _G, NODE, "seconds", "When this exporter started."),
    Family("tocsin_exporter_source_errors_total", _C, (*NODE, "source", "reason"), "", "Reads that failed, each a gap in what depends on it."),
    Family("tocsin_exporter_unattributed_increments_total", _C, NODE, "", "Event counts that belong to no holder because the holder changed while the exporter was down or the device did not answer."),
    Family("tocsin_exporter_state_durable", _G, NODE, "", "1 when a restart would find every event count that is served; 0 while the state file cannot be written or none is kept."),
    Family("tocsin_exporter_dropped_labels_total", _C, (*NODE, "reason"), "", "Label values from outside that were cut or refused."),
    Family("tocsin_exporter_kernel_records_total", _C, (*NODE, "facility"), "", "Kernel log records read; `user` ones were written by user space and are never events."),
    Family("tocsin_exporter_kernel_records_lost_total", _C, NODE, "", "Kernel log records that were overwritten before they were read."),
    Family("tocsin_exporter_device_events_total", _C, (*NODE, "source"), "", "Device events by who told them, each counted once: kernel log and driver (both), or one of them (log, driver); settled after a minute."),
    Family("tocsin_exporter_http_connections", _G, NODE, "", "Connections that are open."),
    Family("tocsin_exporter_http_requests_total", _C, (*NODE, "code"), "", "Requests answered, by status code."),
    Family("tocsin_exporter_http_cut_connections_total", _C, (*NODE, "reason"), "", "Connections ended before their time: late, crowded (room was needed), handshake (TLS), unread (answers not taken), descriptors (none left)."),
    Family("tocsin_exporter_web_config_success", _G, NODE, "", "1 when the web configuration file is in use as it stands, 0 while it is broken and the one before is."),
    Family("tocsin_exporter_web_config_last_success_timestamp_seconds", _G, NODE, "seconds", "When the web configuration was last taken over."),
    Family("tocsin_identity_unmatched_processes", _G, NODE, "", "Processes that the driver lists on devices and whose job nobody knows: other pid namespaces, services such as MPS."),
    Family("tocsin_exporter_nvml_child_ends_total", _C, (*NODE, "reason"), "", "Children for the driver that ended before their time: hung, ended, stopped, failed, memory or quiesced."),
    Family("tocsin_exporter_nvml_stuck_children", _G, NODE, "", "Children that cannot be killed because they are stuck in the driver."),
    Family("tocsin_exporter_quiesced_until_timestamp_seconds", _G, NODE, "seconds", "Until when the devices are left alone by `tocsin-exporter quiesce`; absent otherwise."),
    Family("tocsin_identity_conflicts_total", _C, (*NODE, "fact"), "", "Processes whose sources disagree about a fact."),
    Family("tocsin_collector_success", _G, (*NODE, "collector"), "", "1 when the collector's last run succeeded."),
    Family("tocsin_collector_duration_seconds", _G, (*NODE, "collector"), "seconds", "Duration of the collector's last run."),
    Family("tocsin_collector_last_success_timestamp_seconds", _G, (*NODE, "collector"), "seconds", "When the collector last succeeded."),
    Family("tocsin_collector_error_info", _G, (*NODE, "collector", "reason"), "", "Always 1, present while the collector fails: why."),
    Family("tocsin_visibility", _G, (*NODE, "layer"), "", "What the node shows of a layer: 1 seen, 0.5 partly, 0 not."),
)
