/* Prints `struct.field offset size`, one a line: the test compares them with the Python mirror. */
#include "sim.h"

#include <stdio.h>

#define FIELD(type, field) printf(#type "." #field " %zu %zu\n", offsetof(struct type, field), sizeof(((struct type *)0)->field))
#define SIZE(type) printf(#type " 0 %zu\n", sizeof(struct type))

int main(void)
{
    SIZE(sim_process); SIZE(sim_link); SIZE(sim_instance); SIZE(sim_device); SIZE(sim_profile);
    SIZE(sim_rule); SIZE(sim_event); SIZE(sim_node);
    SIZE(sim_recipe); SIZE(sim_rendezvous); SIZE(sim_rank); SIZE(sim_comm); SIZE(sim_job);
    FIELD(sim_process, start_ticks); FIELD(sim_process, memory_bytes);
    FIELD(sim_process, kind); FIELD(sim_process, instance);
    FIELD(sim_link, remote_link); FIELD(sim_link, counts); FIELD(sim_link, rate); FIELD(sim_link, rate_since_ns);
    FIELD(sim_instance, profile); FIELD(sim_instance, engines); FIELD(sim_instance, memory_bytes);
    FIELD(sim_instance, dram_ns); FIELD(sim_instance, pcie_rx_bytes);
    FIELD(sim_rule, code); FIELD(sim_rule, value); FIELD(sim_rule, call);
    FIELD(sim_event, data); FIELD(sim_event, compute_instance);
    FIELD(sim_device, absent); FIELD(sim_device, pcie_errors); FIELD(sim_device, gpm_blank);
    FIELD(sim_device, ecc_mode); FIELD(sim_device, ecc_sram_base); FIELD(sim_device, ecc_rate);
    FIELD(sim_device, sram_threshold_exceeded); FIELD(sim_device, repair_pending); FIELD(sim_device, power_limit_mw);
    FIELD(sim_device, fabric_state); FIELD(sim_device, fabric_health_summary); FIELD(sim_device, memory_hard_limit);
    FIELD(sim_device, idle_since_ns); FIELD(sim_device, mig_mode); FIELD(sim_device, instance_generation);
    FIELD(sim_device, instances); FIELD(sim_device, links);
    FIELD(sim_device, serial); FIELD(sim_device, minor); FIELD(sim_device, hca); FIELD(sim_device, speed_factor);
    FIELD(sim_device, clock_fraction); FIELD(sim_device, throttle_reasons); FIELD(sim_device, throttle_held_ns);
    FIELD(sim_device, lost); FIELD(sim_device, pcie_generation); FIELD(sim_device, pcie_replays);
    FIELD(sim_device, ecc_dram); FIELD(sim_device, ecc_sram); FIELD(sim_device, remapped_rows);
    FIELD(sim_device, remap_failed); FIELD(sim_device, heartbeat_ns); FIELD(sim_device, sm_ns);
    FIELD(sim_device, tensor_ns); FIELD(sim_device, energy_uj); FIELD(sim_device, fabric_rx_bytes);
    FIELD(sim_device, temperature_c); FIELD(sim_device, power_mw); FIELD(sim_device, processes);
    FIELD(sim_profile, cuda_version); FIELD(sim_profile, gpm); FIELD(sim_profile, pci_subsystem_id);
    FIELD(sim_profile, nvlink_mbps); FIELD(sim_profile, tlimit); FIELD(sim_profile, event_types);
    FIELD(sim_profile, bar1_bytes);
    FIELD(sim_profile, memory_bytes); FIELD(sim_profile, pcie_bytes_per_second);
    FIELD(sim_node, name); FIELD(sim_node, hang); FIELD(sim_node, init_code);
    FIELD(sim_node, session); FIELD(sim_node, events); FIELD(sim_node, rule_count); FIELD(sim_node, rules);
    FIELD(sim_node, profile); FIELD(sim_node, devices);
    FIELD(sim_comm, joined); FIELD(sim_comm, node); FIELD(sim_comm, arrived); FIELD(sim_comm, arrival_ns);
    FIELD(sim_comm, sends); FIELD(sim_comm, receives);
    FIELD(sim_job, recipe); FIELD(sim_job, rendezvous); FIELD(sim_job, ranks); FIELD(sim_job, comms);
    return 0;
}
