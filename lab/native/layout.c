/* Prints `struct.field offset size`, one a line: the test compares them with the Python mirror. */
#include "sim.h"

#include <stdio.h>

#define FIELD(type, field) printf(#type "." #field " %zu %zu\n", offsetof(struct type, field), sizeof(((struct type *)0)->field))
#define SIZE(type) printf(#type " 0 %zu\n", sizeof(struct type))

int main(void)
{
    SIZE(sim_process); SIZE(sim_device); SIZE(sim_profile); SIZE(sim_node);
    SIZE(sim_recipe); SIZE(sim_rendezvous); SIZE(sim_rank); SIZE(sim_comm); SIZE(sim_job);
    FIELD(sim_process, start_ticks); FIELD(sim_process, memory_bytes);
    FIELD(sim_device, serial); FIELD(sim_device, minor); FIELD(sim_device, hca); FIELD(sim_device, speed_factor);
    FIELD(sim_device, clock_fraction); FIELD(sim_device, throttle_reasons); FIELD(sim_device, throttle_held_ns);
    FIELD(sim_device, lost); FIELD(sim_device, pcie_generation); FIELD(sim_device, pcie_replays);
    FIELD(sim_device, ecc_dram); FIELD(sim_device, ecc_sram); FIELD(sim_device, remapped_rows);
    FIELD(sim_device, remap_failed); FIELD(sim_device, heartbeat_ns); FIELD(sim_device, sm_ns);
    FIELD(sim_device, tensor_ns); FIELD(sim_device, energy_uj); FIELD(sim_device, fabric_rx_bytes);
    FIELD(sim_device, temperature_c); FIELD(sim_device, power_mw); FIELD(sim_device, processes);
    FIELD(sim_profile, cuda_version); FIELD(sim_profile, gpm); FIELD(sim_profile, pci_subsystem_id);
    FIELD(sim_profile, memory_bytes); FIELD(sim_profile, pcie_bytes_per_second);
    FIELD(sim_node, name); FIELD(sim_node, hang); FIELD(sim_node, profile); FIELD(sim_node, devices);
    FIELD(sim_comm, joined); FIELD(sim_comm, node); FIELD(sim_comm, arrived); FIELD(sim_comm, arrival_ns);
    FIELD(sim_comm, sends); FIELD(sim_comm, receives);
    FIELD(sim_job, recipe); FIELD(sim_job, rendezvous); FIELD(sim_job, ranks); FIELD(sim_job, comms);
    return 0;
}
