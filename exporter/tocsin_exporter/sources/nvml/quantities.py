"""
The quantities of a device: what each is called, what it is, how it is read, and where it is told again per holder.

The one table of the driver's side: the child reads by it, the source tells counters from gauges by it,
and the metric table is built from it. It is imported in the child, so it needs nothing but the standard library.

Left out on purpose: the NVLink fields 32-73, 84-90 and 96-137 (they answer 0 on Hopper without counting),
nvmlDeviceGetPcieThroughput (20 ms per call), nvmlDeviceValidateInforom (seconds), deprecated fields.
What the simulated library does not answer was never seen answered: units and meanings are those of nvml.h.
"""

from __future__ import annotations

from tocsin_exporter.sources.nvml.quantities_links import LINK_ROWS
from tocsin_exporter.sources.nvml.reads import (
    CORE,
    DEEP,
    FABRIC,
    HALF,
    HOPPER,
    MINUTE,
    START,
    TIERS,
    TURING,
    Quantity,
    Read,
    call,
    field,
    gpm,
    own,
)

__all__ = ["CORE", "DEEP", "FABRIC", "HELD_DOWN", "LIMITS", "QUANTITIES", "RECOVERY_ACTIONS", "TIERS", "Quantity"]

_PERCENT = 0.01
_MEGA = 1e6
_MILLI = 1e-3
_NANO = 1e-9
_MIB = 1048576.0

# nvmlDeviceGpuRecoveryAction_t
RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot",
)  # fmt: skip
_COMPUTE_MODES = ("default", None, "prohibited", "exclusive_process")
# nvmlClockType_t, nvmlClockId_t
_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)
_TARGET, _DEFAULT, _BOOST = 1, 2, 3
# nvml.h: the constants, not the comment above the fields, which has the last two the other way round.
_POWER_SCOPES = (("gpu", 0), ("module", 1), ("memory", 2), ("gpu_base", 3))
# Quantity and labels of each part of a limit.
LIMITS = (
    ("memory_limit_bytes", ("soft",)),
    ("memory_limit_bytes", ("hard",)),
    ("memory_limit_used_bytes", ()),
)
# The reasons for which something holds a clock down; the others are settings, idleness or another GPU's clock.
HELD_DOWN = ("sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
_LOCATIONS = (("l1", 0), ("l2", 1), ("dram", 2), ("register", 3), ("texture", 4), ("texture_shared", 5), ("cbu", 6), ("sram", 7))
_SEVERITIES = (("corrected", 0), ("uncorrected", 1))
_WINDOWS = (("volatile", 0), ("lifetime", 1))
_ENGINES = (("nvdec", 30, 8), ("nvjpg", 40, 8), ("nvofa", 50, 2), ("nvenc", 166, 4))


def _ecc(window: str, severity: str, location: str, labels: tuple[str, ...]) -> Read:
    numbers = (dict(_SEVERITIES)[severity], dict(_WINDOWS)[window], dict(_LOCATIONS)[location])
    return call("nvmlDeviceGetMemoryErrorCounter", argument=numbers, labels=labels)


def _smoothing(name: str, number: int, label: str, decode: float = 1.0) -> Read:
    return field(f"PWR_SMOOTHING_{name}", number, labels=(label,), decode=decode)


_ACTIVITY = (
    Quantity("utilization_ratio", False, (), "ratio", "Share of the last sample period in which a kernel ran.", CORE, True,
             reads=(call("nvmlDeviceGetUtilizationRates", "gpu", decode=_PERCENT),)),
    Quantity("memory_utilization_ratio", False, (), "ratio", "Share of the last sample period in which device memory was read or written.", FABRIC, False,
             reads=(call("nvmlDeviceGetUtilizationRates", "memory", decode=_PERCENT),)),
    Quantity("engine_utilization_ratio", False, ("engine",), "ratio", "Share of the last sample period in which the engine (encoder, decoder, jpeg, ofa) worked.", FABRIC, False,
             reads=tuple(call(f"nvmlDeviceGet{name}Utilization", "0", labels=(label,), decode=_PERCENT)
                         for name, label in (("Encoder", "encoder"), ("Decoder", "decoder"), ("Jpg", "jpeg"), ("Ofa", "ofa")))),
    Quantity("sm_active_ratio", False, (), "ratio", "Share of SM cycles with a resident warp since the previous collection (Hopper and newer).", CORE, True,
             reads=(gpm("SM_UTIL", 2, decode=_PERCENT),)),
    Quantity("sm_occupancy_ratio", False, (), "ratio", "Resident warps over the maximum since the previous collection (Hopper and newer).", CORE, False,
             reads=(gpm("SM_OCCUPANCY", 3, decode=_PERCENT),)),
    Quantity("tensor_active_ratio", False, (), "ratio", "Share of cycles with a busy tensor pipe since the previous collection (Hopper and newer).", CORE, True,
             reads=(gpm("ANY_TENSOR_UTIL", 5, decode=_PERCENT),)),
    Quantity("dram_active_ratio", False, (), "ratio", "Share of the device memory bandwidth used since the previous collection (Hopper and newer).", CORE, True,
             reads=(gpm("DRAM_BW_UTIL", 10, decode=_PERCENT),)),
    Quantity("graphics_active_ratio", False, (), "ratio", "Share of time in which any work ran since the previous collection (Hopper and newer).", FABRIC, False,
             reads=(gpm("GRAPHICS_UTIL", 1, decode=_PERCENT),)),
    Quantity("tensor_pipe_active_ratio", False, ("pipe",), "ratio", "Share of cycles with a busy tensor pipe since the previous collection, by kind of operation (dfma, hmma, dmma, imma).", FABRIC, False,
             reads=tuple(gpm(f"{name}_TENSOR_UTIL", number, labels=(name.lower(),), decode=_PERCENT)
                         for name, number in (("DFMA", 6), ("HMMA", 7), ("DMMA", 8), ("IMMA", 9)))),
    Quantity("pipe_active_ratio", False, ("pipe",), "ratio", "Share of cycles in which the SMs did this kind of arithmetic outside the tensor pipes since the previous collection (integer, fp64, fp32, fp16).", FABRIC, False,
             reads=tuple(gpm(f"{name}_UTIL", number, labels=(name.lower(),), decode=_PERCENT)
                         for name, number in (("INTEGER", 4), ("FP64", 11), ("FP32", 12), ("FP16", 13)))),
    Quantity("media_engine_active_ratio", False, ("engine",), "ratio", "Share of time in which the media engine worked since the previous collection.", DEEP, False,
             reads=tuple(gpm(f"{name.upper()}_{index}_UTIL", first + index, labels=(f"{name}{index}",), decode=_PERCENT)
                         for name, first, count in _ENGINES for index in range(count))),
    Quantity("cache_hit_ratio", False, ("memory",), "ratio", "Hits of the cache in front of a memory (host, peer, dram) since the previous collection.", DEEP, False,
             reads=tuple(gpm(f"{name}_CACHE_HIT", number, labels=(label,), decode=_PERCENT)
                         for name, number, label in (("HOSTMEM", 160, "host"), ("PEERMEM", 162, "peer"), ("DRAM", 164, "dram")))),
    Quantity("cache_miss_ratio", False, ("memory",), "ratio", "Misses of the cache in front of a memory (host, peer, dram) since the previous collection.", DEEP, False,
             reads=tuple(gpm(f"{name}_CACHE_MISS", number, labels=(label,), decode=_PERCENT)
                         for name, number, label in (("HOSTMEM", 161, "host"), ("PEERMEM", 163, "peer"), ("DRAM", 165, "dram")))),
    Quantity("context_switch_active_ratio", False, ("engine",), "ratio", "Share of time in which the graphics engine switched contexts since the previous collection.", DEEP, False,
             reads=tuple(gpm(f"GR{index}_CTXSW_ACTIVE_PCT", 174 + 5 * index, labels=(str(index),), decode=_PERCENT) for index in range(8))),
    Quantity("context_switch_cycles", False, ("engine", "kind"), "", "Context switch cycles of the graphics engine between the last two collections (elapsed, active, per_request).", DEEP, False,
             reads=tuple(gpm(f"GR{index}_CTXSW_{name}", 170 + 5 * index + offset, labels=(str(index), label)) for index in range(8)
                         for offset, name, label in ((0, "CYCLES_ELAPSED", "elapsed"), (1, "CYCLES_ACTIVE", "active"), (3, "CYCLES_PER_REQ", "per_request")))),
    Quantity("context_switch_requests", False, ("engine",), "", "Context switch requests to the graphics engine between the last two collections.", DEEP, False,
             reads=tuple(gpm(f"GR{index}_CTXSW_REQUESTS", 172 + 5 * index, labels=(str(index),)) for index in range(8))),
    Quantity("sm_cycles_total", True, (), "", "SM cycles since the boot.", FABRIC, False, reads=(gpm("SM_CYCLES_ELAPSED", 248),)),
    Quantity("sm_active_cycles_total", True, (), "", "SM cycles with a resident warp since the boot.", FABRIC, False, reads=(gpm("SM_CYCLES_ACTIVE", 249),)),
    Quantity("pipe_active_cycles_total", True, ("pipe",), "", "Cycles in which a pipe was busy since the boot (tensor is all tensor pipes together).", FABRIC, False,
             reads=tuple(gpm(f"{name}_CYCLES_ACTIVE", number, labels=(label,)) for name, number, label in (
                 ("MMA", 250, "tensor"), ("DMMA", 251, "dmma"), ("HMMA", 252, "hmma"), ("IMMA", 253, "imma"), ("DFMA", 254, "dfma"),
                 ("INTEGER", 257, "integer"), ("FP64", 258, "fp64"), ("FP32", 259, "fp32"), ("FP16", 260, "fp16")))),
    Quantity("mma_stall_ratio", False, (), "ratio", "Share of time in which matrix operations stalled.", DEEP, False, MINUTE,
             reads=(field("MMA_STALL_PERCENT", 297, decode=_PERCENT, since=HOPPER),)),
)

_MEMORY_ROWS = (
    Quantity("memory_total_bytes", False, (), "bytes", "Device memory.", CORE, False,
             reads=(call("nvmlDeviceGetMemoryInfo_v2", "total"), call("nvmlDeviceGetMemoryInfo", "total"))),
    Quantity("memory_used_bytes", False, (), "bytes", "Device memory in use.", CORE, True,
             reads=(call("nvmlDeviceGetMemoryInfo_v2", "used"), call("nvmlDeviceGetMemoryInfo", "used"))),
    Quantity("memory_free_bytes", False, (), "bytes", "Device memory that can be allocated.", FABRIC, False,
             reads=(call("nvmlDeviceGetMemoryInfo_v2", "free"), call("nvmlDeviceGetMemoryInfo", "free"))),
    Quantity("memory_reserved_bytes", False, (), "bytes", "Device memory that driver and firmware keep for themselves.", FABRIC, False,
             reads=(call("nvmlDeviceGetMemoryInfo_v2", "reserved"),)),
    Quantity("bar1_total_bytes", False, (), "bytes", "Window through which the host reaches device memory (BAR1).", FABRIC, False, HALF,
             reads=(call("nvmlDeviceGetBAR1MemoryInfo", "bar1Total"),)),
    Quantity("bar1_used_bytes", False, (), "bytes", "BAR1 in use.", FABRIC, False, HALF, reads=(call("nvmlDeviceGetBAR1MemoryInfo", "bar1Used"),)),
    Quantity("protected_memory_used_bytes", False, (), "bytes", "Device memory in use under confidential computing.", DEEP, False, MINUTE,
             reads=(call("nvmlDeviceGetConfComputeProtectedMemoryUsage", "used"),)),
    Quantity("process_memory_bytes", False, (), "bytes", "Device memory of the processes that the driver lists (MPS clients included); on job series of the job's.", FABRIC, True, reads=(own("processes"),)),
    Quantity("memory_limit_bytes", False, ("kind",), "bytes", "Device memory limits that cgroups of the processes on the device have, each cgroup once (soft, hard; driver 615 and newer); on job series of the job's.", FABRIC, True, HALF, reads=(own("processes"),)),
    Quantity("memory_limit_used_bytes", False, (), "bytes", "Device memory in use under those limits; on job series of the job's.", FABRIC, True, HALF, reads=(own("processes"),)),
    Quantity("pid_memory_bytes", False, ("pid", "kind"), "bytes", "Device memory of one process (compute, graphics, mps), for at most 64 processes; gone with the process.", DEEP, False, reads=(own("processes"),)),
    Quantity("pid_utilization_ratio", False, ("pid", "engine"), "ratio", "Share of time in which a process used an engine (sm, memory, encoder, decoder) since the previous collection, for at most 64 processes; absent while it does not use the device (nvmlDeviceGetProcessUtilization).", DEEP, False, reads=(own("processes"),)),
    Quantity("mps_processes", False, (), "", "Processes that use the device through MPS.", FABRIC, False, reads=(own("processes"),)),
    Quantity("graphics_processes", False, (), "", "Graphics processes that the driver lists on the device.", DEEP, False, reads=(own("processes"),)),
)

_CLOCKS = (
    Quantity("sm_clock_hertz", False, (), "hertz", "Current SM clock.", CORE, True, reads=(call("nvmlDeviceGetClockInfo", argument=(_SM,), decode=_MEGA),)),
    Quantity("sm_clock_max_hertz", False, (), "hertz", "Highest SM clock of this device.", CORE, True, MINUTE, reads=(call("nvmlDeviceGetMaxClockInfo", argument=(_SM,), decode=_MEGA),)),
    Quantity("memory_clock_hertz", False, (), "hertz", "Current memory clock.", CORE, False, reads=(call("nvmlDeviceGetClockInfo", argument=(_MEMORY,), decode=_MEGA),)),
    Quantity("clock_hertz", False, ("clock",), "hertz", "Current clock of the graphics and video domains.", FABRIC, False,
             reads=tuple(call("nvmlDeviceGetClockInfo", argument=(kind,), labels=(label,), decode=_MEGA) for label, kind in (("graphics", _GRAPHICS), ("video", _VIDEO)))),
    Quantity("clock_max_hertz", False, ("clock",), "hertz", "Highest clock of the graphics, memory and video domains.", FABRIC, False, START,
             reads=tuple(call("nvmlDeviceGetMaxClockInfo", argument=(kind,), labels=(label,), decode=_MEGA) for label, kind in (("graphics", _GRAPHICS), ("memory", _MEMORY), ("video", _VIDEO)))),
    Quantity("clock_setting_hertz", False, ("clock", "setting"), "hertz", "Clock that is asked for: application target, application default, highest boost a customer may set.", FABRIC, False, MINUTE,
             reads=tuple(call("nvmlDeviceGetClock", argument=(kind, setting), labels=(label, name), decode=_MEGA)
                         for label, kind in (("graphics", _GRAPHICS), ("sm", _SM), ("memory", _MEMORY))
                         for name, setting in (("target", _TARGET), ("default", _DEFAULT), ("boost_max", _BOOST)))),
    Quantity("performance_state", False, (), "", "Performance state, from 0 (highest) to 15.", FABRIC, False, reads=(call("nvmlDeviceGetPerformanceState"),), most=15),
    Quantity("clock_monitor_fault", False, (), "", "1 when the clock monitors report a fault of the hardware.", FABRIC, False, MINUTE,
             reads=(call("nvmlDeviceGetClkMonStatus", "bGlobalStatus"),), most=1),
    Quantity("memory_clock_switch", False, ("kind",), "", "1 for the way in which the memory clock can be switched: deferred (driver reload), runtime.", DEEP, False, START,
             reads=(field("MCLK_SWITCH_TYPE", 298, states=(None, "deferred", "runtime"), since=HOPPER),)),
    Quantity("memory_clock_switch_min_interval_seconds", False, (), "seconds", "Least time between two switches of the memory clock; 0 is no limit.", DEEP, False, START,
             reads=(field("MCLK_MIN_SWITCH_INTERVAL_MILLISECONDS", 299, decode=_MILLI, since=HOPPER),)),
)

_POWER = (
    Quantity("power_watts", False, (), "watts", "Board power draw (a mean over one second on most boards since Ampere).", CORE, True, reads=(call("nvmlDeviceGetPowerUsage", decode=_MILLI),)),
    Quantity("power_limit_watts", False, (), "watts", "Enforced power limit.", CORE, False, HALF, reads=(call("nvmlDeviceGetEnforcedPowerLimit", decode=_MILLI),)),
    Quantity("power_instant_watts", False, ("scope",), "watts", "Power draw at this moment, by scope (gpu, module, memory, gpu_base).", FABRIC, False,
             reads=tuple(field("POWER_INSTANT", 186, scope=scope, labels=(label,), decode=_MILLI) for label, scope in _POWER_SCOPES)),
    Quantity("power_average_watts", False, ("scope",), "watts", "Power draw averaged over one second, by scope (gpu, module, memory, gpu_base).", FABRIC, False,
             reads=tuple(field("POWER_AVERAGE", 185, scope=scope, labels=(label,), decode=_MILLI) for label, scope in _POWER_SCOPES)),
    Quantity("power_setting_watts", False, ("setting",), "watts", "Power limits: min and max that can be set, default, current (with limits set out of band), requested.", FABRIC, False, MINUTE,
             reads=tuple(field(f"POWER_{name}_LIMIT", number, labels=(name.lower(),), decode=_MILLI)
                         for name, number in (("MIN", 187), ("MAX", 188), ("DEFAULT", 189), ("CURRENT", 190), ("REQUESTED", 192)))),
    Quantity("energy_joules_total", True, (), "joules", "Energy since the driver was loaded; on job series since the job holds the device.", CORE, True,
             reads=(call("nvmlDeviceGetTotalEnergyConsumption", decode=_MILLI),)),
    Quantity("energy_scope_joules_total", True, ("scope",), "joules", "Energy since the driver was loaded, by scope (module, memory, gpu_base).", FABRIC, False,
             reads=tuple(field("ENERGY", 191, scope=scope, labels=(label,), decode=_MILLI) for label, scope in _POWER_SCOPES[1:])),
    Quantity("power_smoothing_lifetime_ratio", False, (), "ratio", "Lifetime left of the power smoothing circuit.", FABRIC, False, MINUTE,
             reads=(field("PWR_SMOOTHING_HW_CIRCUITRY_PERCENT_LIFETIME_REMAINING", 258, decode=_PERCENT),)),
    Quantity("power_smoothing_state", False, ("setting",), "", "Power smoothing: 0/1 for enabled, immediate_ramp_down, delayed_supported, state_of_charge; numbers for privilege_level, presets, active_preset.", DEEP, False, MINUTE,
             reads=(_smoothing("ENABLED", 251, "enabled"), _smoothing("PRIV_LVL", 252, "privilege_level"), _smoothing("IMM_RAMP_DOWN_ENABLED", 253, "immediate_ramp_down"),
                    _smoothing("MAX_NUM_PRESET_PROFILES", 259, "presets"), _smoothing("ACTIVE_PRESET_PROFILE", 264, "active_preset"),
                    _smoothing("DELAYED_PWR_SMOOTHING_SUPPORTED", 280, "delayed_supported"), _smoothing("SOC_POWER_SMOOTHING_ENABLED", 300, "state_of_charge"))),
    Quantity("power_smoothing_applied_watts", False, ("setting",), "watts", "Power smoothing: applied ceiling and floor, floors and activation points in force.", DEEP, False, MINUTE,
             reads=(_smoothing("APPLIED_TMP_CEIL", 254, "ceiling"), _smoothing("APPLIED_TMP_FLOOR", 255, "floor"),
                    _smoothing("PRIMARY_POWER_FLOOR", 275, "primary_floor"), _smoothing("SECONDARY_POWER_FLOOR", 276, "secondary_floor"),
                    _smoothing("MIN_PRIMARY_FLOOR_ACT_OFFSET", 277, "primary_activation_offset"), _smoothing("MIN_PRIMARY_FLOOR_ACT_POINT", 278, "primary_activation_point"),
                    _smoothing("ADMIN_OVERRIDE_SECONDARY_POWER_FLOOR", 285, "override_secondary_floor"),
                    _smoothing("ADMIN_OVERRIDE_PRIMARY_FLOOR_ACT_OFFSET", 288, "override_primary_activation_offset"))),
    Quantity("power_smoothing_floor_ratio", False, ("setting",), "ratio", "Power smoothing: floors as a share of the module's power (highest and lowest that can be set, override).", DEEP, False, MINUTE,
             reads=(_smoothing("MAX_PERCENT_TMP_FLOOR_SETTING", 256, "max", _PERCENT), _smoothing("MIN_PERCENT_TMP_FLOOR_SETTING", 257, "min", _PERCENT),
                    _smoothing("ADMIN_OVERRIDE_PERCENT_TMP_FLOOR", 265, "override", _PERCENT))),
    Quantity("power_smoothing_ramp_watts_per_second", False, ("setting",), "", "Power smoothing: ramp rates of the override.", DEEP, False, MINUTE,
             reads=(_smoothing("ADMIN_OVERRIDE_RAMP_UP_RATE", 266, "override_up", _MILLI), _smoothing("ADMIN_OVERRIDE_RAMP_DOWN_RATE", 267, "override_down", _MILLI))),
    Quantity("power_smoothing_window_seconds", False, ("setting",), "seconds", "Power smoothing: hysteresis of the override, unit of the activation windows.", DEEP, False, MINUTE,
             reads=(_smoothing("ADMIN_OVERRIDE_RAMP_DOWN_HYST_VAL", 268, "override_hysteresis", _MILLI), _smoothing("WINDOW_MULTIPLIER", 279, "window_unit", _MILLI))),
    Quantity("power_smoothing_window_multiplier", False, ("setting",), "", "Power smoothing: activation and target windows of the override, in window units.", DEEP, False, MINUTE,
             reads=(_smoothing("ADMIN_OVERRIDE_PRIMARY_FLOOR_ACT_WIN_MULT", 286, "override_activation"), _smoothing("ADMIN_OVERRIDE_PRIMARY_FLOOR_TAR_WIN_MULT", 287, "override_target"))),
    Quantity("power_smoothing_profile_ratio", False, ("preset",), "ratio", "Power smoothing: floor of a preset as a share of the module's power.", DEEP, False, START,
             reads=tuple(field("PWR_SMOOTHING_PROFILE_PERCENT_TMP_FLOOR", 260, scope=preset, labels=(str(preset),), decode=_PERCENT) for preset in range(5))),
    Quantity("power_smoothing_profile_ramp_watts_per_second", False, ("preset", "direction"), "", "Power smoothing: ramp rates of a preset.", DEEP, False, START,
             reads=tuple(field(f"PWR_SMOOTHING_PROFILE_RAMP_{name}_RATE", number, scope=preset, labels=(str(preset), name.lower()), decode=_MILLI)
                         for preset in range(5) for name, number in (("UP", 261), ("DOWN", 262)))),
    Quantity("power_smoothing_profile_hysteresis_seconds", False, ("preset",), "seconds", "Power smoothing: hysteresis of a preset's ramp down.", DEEP, False, START,
             reads=tuple(field("PWR_SMOOTHING_PROFILE_RAMP_DOWN_HYST_VAL", 263, scope=preset, labels=(str(preset),), decode=_MILLI) for preset in range(5))),
    Quantity("power_smoothing_profile_watts", False, ("preset", "setting"), "watts", "Power smoothing: secondary floor and activation offset of a preset.", DEEP, False, START,
             reads=tuple(field(f"PWR_SMOOTHING_PROFILE_{name}", number, scope=preset, labels=(str(preset), label)) for preset in range(5)
                         for name, number, label in (("SECONDARY_POWER_FLOOR", 281, "secondary_floor"), ("PRIMARY_FLOOR_ACT_OFFSET", 284, "activation_offset")))),
    Quantity("power_smoothing_profile_window_multiplier", False, ("preset", "setting"), "", "Power smoothing: windows of a preset, in window units.", DEEP, False, START,
             reads=tuple(field(f"PWR_SMOOTHING_PROFILE_PRIMARY_FLOOR_{name}_WIN_MULT", number, scope=preset, labels=(str(preset), label)) for preset in range(5)
                         for name, number, label in (("ACT", 282, "activation"), ("TAR", 283, "target")))),
    Quantity("power_balancing", False, ("setting",), "", "Power balancing between synchronised devices: frequency and activity factor, as the driver counts them.", DEEP, False, MINUTE,
             reads=(field("POWER_SYNC_BALANCING_FREQ", 272, labels=("frequency",), since=HOPPER), field("POWER_SYNC_BALANCING_AF", 273, labels=("activity",), since=HOPPER))),
    Quantity("peak_power_multiplier_ratio", False, (), "ratio", "Multiplier of the electrical design point for peaks.", DEEP, False, MINUTE,
             reads=(field("EDPP_MULTIPLIER", 274, decode=_PERCENT, since=HOPPER),), most=10),
    Quantity("adaptive_power_limit_watts", False, (), "watts", "Power limit as adapted by the driver (adaptive TGP; driver 615 and newer).", DEEP, False, MINUTE,
             reads=(call("nvmlDeviceGetAdaptiveTgpModeInfo_v1", "adjustedLimitMw", decode=_MILLI),)),
)

_TEMPERATURE = (
    Quantity("temperature_celsius", False, (), "celsius", "Core temperature.", CORE, True,
             reads=(call("nvmlDeviceGetTemperatureV/0", "temperature"), call("nvmlDeviceGetTemperature", argument=(0,)))),
    Quantity("memory_temperature_celsius", False, (), "celsius", "Memory temperature.", CORE, False, reads=(field("MEMORY_TEMP", 82),)),
    Quantity("hottest_temperature_celsius", False, (), "celsius", "Temperature of the hottest part of the device (driver 615 and newer).", FABRIC, False, reads=(call("nvmlDeviceGetTemperatureV/1", "temperature"),)),
    Quantity("temperature_margin_celsius", False, (), "celsius", "Degrees left to the temperature at which the clock is lowered.", FABRIC, False, reads=(call("nvmlDeviceGetMarginTemperature", "marginTemperature", decode="signed"),)),
    Quantity("temperature_threshold_celsius", False, ("threshold",), "celsius", "Temperatures at which the device shuts down, slows down, or leaves the range of memory or core.", FABRIC, False, START,
             reads=tuple(call("nvmlDeviceGetTemperatureThreshold", argument=(number,), labels=(label,)) for label, number in (("shutdown", 0), ("slowdown", 1), ("memory_max", 2), ("gpu_max", 3)))),
    Quantity("temperature_threshold_margin_celsius", False, ("threshold",), "celsius", "The same thresholds on the scale of the margin (Ada and newer): negative lies beyond the limit.", FABRIC, False, START,
             reads=tuple(field(f"TEMPERATURE_{name}_TLIMIT", number, labels=(label,), decode="signed")
                         for name, number, label in (("SHUTDOWN", 193, "shutdown"), ("SLOWDOWN", 194, "slowdown"), ("MEM_MAX", 195, "memory_max"), ("GPU_MAX", 196, "gpu_max")))),
    Quantity("fan_speed_ratio", False, ("fan",), "ratio", "Fan speed as a share of the highest (none on SXM boards).", FABRIC, False, HALF,
             reads=tuple(call("nvmlDeviceGetFanSpeed_v2", argument=(fan,), labels=(str(fan),), decode=_PERCENT) for fan in range(3)), most=2),
)

_THROTTLE = (
    Quantity("throttle_active", False, ("reason",), "", "1 while the clock is held down for this reason (nvmlDeviceGetCurrentClocksEventReasons).", CORE, True, reads=(own("throttle"),), told=HELD_DOWN),
    Quantity("throttle_seconds_total", True, ("reason",), "seconds", "Time for which the clock was held down for this reason: the driver's own counter for sw_power_cap, sync_boost, sw_thermal, hw_thermal and hw_power_brake where it has one, else the time between readings that saw it.", CORE, True,
             reads=(*(field(name, number, labels=(label,), decode=_NANO) for name, number, label in (
                 ("PERF_POLICY_POWER", 74, "sw_power_cap"), ("PERF_POLICY_SYNC_BOOST", 76, "sync_boost"),
                 ("CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", 269, "sw_thermal"), ("CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", 270, "hw_thermal"),
                 ("CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", 271, "hw_power_brake"))), own("throttle")), told=HELD_DOWN),
    Quantity("clock_policy_seconds_total", True, ("policy",), "seconds", "Time for which the clock was below the requested one because of this policy, counted by the driver.", FABRIC, False,
             reads=tuple(field(f"PERF_POLICY_{name}", number, labels=(name.lower(),), decode=_NANO) for name, number in (
                 ("THERMAL", 75), ("BOARD_LIMIT", 77), ("LOW_UTILIZATION", 78), ("RELIABILITY", 79), ("TOTAL_APP_CLOCKS", 80), ("TOTAL_BASE_CLOCKS", 81)))),
)

_HEALTH = (
    Quantity("ecc_errors_total", True, ("severity", "memory"), "", "ECC errors by severity (corrected, uncorrected) and memory (dram, sram); lifetime counts of the board.", CORE, True,
             reads=tuple(_ecc("lifetime", severity, memory, (severity, memory)) for severity, _ in _SEVERITIES for memory in ("dram", "sram")),
             event=True, timed="ecc_{severity}"),
    Quantity("ecc_location_errors_total", True, ("window", "severity", "location"), "", "ECC errors by window (volatile: since the driver was loaded, lifetime), severity and location; which locations there are depends on the architecture, and the lifetime counts of dram and sram are tocsin_gpu_ecc_errors_total.", FABRIC, False, HALF,
             reads=tuple(_ecc(window, severity, location, (window, severity, location)) for window, _ in _WINDOWS for severity, _ in _SEVERITIES for location, _ in _LOCATIONS
                         if not (window == "lifetime" and location in ("dram", "sram")))),
    Quantity("ecc_all_errors_total", True, ("window", "severity"), "", "ECC errors by window and severity, all locations together.", FABRIC, False, HALF,
             reads=tuple(call("nvmlDeviceGetTotalEccErrors", argument=(kind, window), labels=(name, severity)) for name, window in _WINDOWS for severity, kind in _SEVERITIES)),
    Quantity("ecc_mode", False, ("state",), "", "1 when ECC is on, now and after the next reset; a difference waits for a reset.", FABRIC, False, MINUTE,
             reads=(call("nvmlDeviceGetEccMode", "0", labels=("current",)), call("nvmlDeviceGetEccMode", "1", labels=("pending",))), most=1),
    Quantity("sram_errors_total", True, ("window", "kind"), "", "SRAM errors by window and kind (parity and sec_ded are uncorrected; root only).", FABRIC, False, MINUTE,
             reads=tuple(call("nvmlDeviceGetSramEccErrorStatus", f"{prefix}{suffix}", labels=(window, kind), since=7) for prefix, window in (("aggregate", "lifetime"), ("volatile", "volatile"))
                         for suffix, kind in (("UncParity", "parity"), ("UncSecDed", "sec_ded"), ("Cor", "corrected")))),
    Quantity("sram_uncorrected_errors_total", True, ("unit",), "", "Uncorrected SRAM errors over the board's lifetime, by unit (root only).", FABRIC, False, MINUTE,
             reads=tuple(call("nvmlDeviceGetSramEccErrorStatus", f"aggregateUncBucket{name}", labels=(unit,), since=7) for name, unit in (("L2", "l2"), ("Sm", "sm"), ("Pcie", "pcie"), ("Mcu", "mcu"), ("Other", "other")))),
    Quantity("sram_threshold_exceeded", False, (), "", "1 when the uncorrected SRAM errors are so many that the board is to be replaced (root only).", CORE, False, MINUTE,
             reads=(call("nvmlDeviceGetSramEccErrorStatus", "bThresholdExceeded", since=7),), most=1),
    Quantity("row_remaps_total", True, ("severity",), "", "Memory rows remapped, by severity of the cause; lifetime counts of the board.", CORE, True,
             reads=(call("nvmlDeviceGetRemappedRows", "0", labels=("corrected",)), call("nvmlDeviceGetRemappedRows", "1", labels=("uncorrected",))),
             event=True, timed="row_remap"),
    Quantity("row_remap_pending", False, (), "", "1 when a remap waits for a reset.", CORE, True, reads=(call("nvmlDeviceGetRemappedRows", "2"),), most=1),
    Quantity("row_remap_failed", False, (), "", "1 when a remap failed.", CORE, True, reads=(call("nvmlDeviceGetRemappedRows", "3"),), most=1),
    Quantity("row_remap_inactive", False, ("severity",), "", "Row remaps that are not in force yet.", FABRIC, False, MINUTE,
             reads=(field("REMAPPED_ROWS_COR_INACTIVE", 301, labels=("corrected",)), field("REMAPPED_ROWS_UNC_INACTIVE", 302, labels=("uncorrected",)))),
    Quantity("row_remap_banks", False, ("availability",), "", "Memory banks by the rows they have left for remapping (max: all, high, partial, low, none).", FABRIC, False, MINUTE,
             reads=tuple(call("nvmlDeviceGetRowRemapperHistogram", name, labels=(name,)) for name in ("max", "high", "partial", "low", "none"))),
    Quantity("bank_remaps", False, ("state",), "", "Memory banks remapped: in force, not yet in force.", FABRIC, False, MINUTE,
             reads=(field("ACTIVE_BANK_REMAPPINGS", 303, labels=("active",)), field("INACTIVE_BANK_REMAPPINGS", 304, labels=("inactive",)),
                    call("nvmlDeviceGetBankRemapperStatus_v1", "activeRemappings", labels=("active",)), call("nvmlDeviceGetBankRemapperStatus_v1", "inactiveRemappings", labels=("inactive",)))),
    Quantity("bank_remap_pending", False, (), "", "1 when a bank remap waits for a reset.", FABRIC, False, MINUTE,
             reads=(field("PENDING_BANK_REMAPPING", 307), call("nvmlDeviceGetBankRemapperStatus_v1", "bPending")), most=1),
    Quantity("bank_remap_groups", False, ("availability",), "", "Groups of memory banks by the spare banks they have left (max: all, none).", FABRIC, False, MINUTE,
             reads=(field("BANK_REMAPPER_HISTOGRAM_MAX", 305, labels=("max",)), field("BANK_REMAPPER_HISTOGRAM_NONE", 306, labels=("none",)))),
    Quantity("retired_pages", False, ("cause",), "", "Memory pages retired, by cause (before Ampere).", FABRIC, False, MINUTE,
             reads=(field("RETIRED_SBE", 29, labels=("single_bit",), until=TURING), field("RETIRED_DBE", 30, labels=("double_bit",), until=TURING))),
    Quantity("retired_pages_pending", False, (), "", "1 when a page waits for a reset to be retired (before Ampere).", FABRIC, False, MINUTE, reads=(field("RETIRED_PENDING", 31, until=TURING),), most=1),
    Quantity("repair_pending", False, ("repair",), "", "1 when a repair (channel, tpc) waits for a reset.", FABRIC, False, MINUTE,
             reads=(call("nvmlDeviceGetRepairStatus", "bChannelRepairPending", labels=("channel",)), call("nvmlDeviceGetRepairStatus", "bTpcRepairPending", labels=("tpc",))), most=1),
    Quantity("memory_unrepairable", False, (), "", "1 when memory is broken beyond repair.", FABRIC, False, MINUTE, reads=(call("nvmlDeviceGetUnrepairableMemoryFlag_v1", "unrepairableMemory"),), most=1),
    Quantity("recovery_action", False, ("action",), "", "1 for what the driver wants to be done with the device (Hopper and newer): none (1 is well), gpu_reset, node_reboot, drain_p2p, drain_and_reset, recover_imex_domain, bus_reset, system_reboot; an action other than none is there only while it is wanted.", CORE, True,
             reads=(field("GET_GPU_RECOVERY_ACTION", 230, states=RECOVERY_ACTIONS, decode="sparse", since=HOPPER),)),
)

_MODES = (
    Quantity("persistence_mode", False, (), "", "1 when the driver stays initialised without clients.", FABRIC, False, MINUTE, reads=(call("nvmlDeviceGetPersistenceMode"),), most=1),
    Quantity("compute_mode", False, ("mode",), "", "1 for the compute mode in force.", FABRIC, False, MINUTE, reads=(call("nvmlDeviceGetComputeMode", states=_COMPUTE_MODES),)),
    Quantity("mig_mode", False, ("state",), "", "1 when MIG is on, now and after the next reset; a difference waits for a reset.", FABRIC, False, MINUTE,
             reads=(call("nvmlDeviceGetMigMode", "0", labels=("current",)), call("nvmlDeviceGetMigMode", "1", labels=("pending",))), most=1),
    Quantity("mig_sms", False, (), "", "SMs of a MIG instance.", FABRIC, False, reads=(own("mig"),)),
    Quantity("gsp_firmware_mode", False, ("state",), "", "1 when the GPU system processor runs the firmware, now and by default.", FABRIC, False, START,
             reads=(call("nvmlDeviceGetGspFirmwareMode", "0", labels=("current",)), call("nvmlDeviceGetGspFirmwareMode", "1", labels=("default",))), most=1),
    Quantity("accounting_mode", False, (), "", "1 when the driver keeps accounts of processes.", DEEP, False, MINUTE, reads=(call("nvmlDeviceGetAccountingMode"),), most=1),
    Quantity("display_active", False, (), "", "1 when a display is in use.", DEEP, False, MINUTE, reads=(call("nvmlDeviceGetDisplayActive"),), most=1),
    Quantity("dram_encryption_mode", False, ("state",), "", "1 when device memory is encrypted, now and after the next reset.", DEEP, False, MINUTE,
             reads=(call("nvmlDeviceGetDramEncryptionMode", "0.encryptionState", labels=("current",)), call("nvmlDeviceGetDramEncryptionMode", "1.encryptionState", labels=("pending",))), most=1),
    Quantity("virtualization_mode", False, ("mode",), "", "1 for the kind of virtualization the device is in.", DEEP, False, START,
             reads=(call("nvmlDeviceGetVirtualizationMode", states=("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")),)),
    Quantity("resetless_mig_supported", False, (), "", "1 when MIG can be switched without a reset.", DEEP, False, START, reads=(field("IS_RESETLESS_MIG_SUPPORTED", 184),), most=1),
    Quantity("mig_query_supported", False, (), "", "1 when MIG profiles can be queried with MIG off.", DEEP, False, START, reads=(field("IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE", 199),), most=1),
)

_PCIE = (
    Quantity("pcie_link_generation", False, (), "", "Current PCIe generation.", CORE, True, reads=(call("nvmlDeviceGetCurrPcieLinkGeneration"),), most=20),
    Quantity("pcie_link_generation_max", False, (), "", "Highest PCIe generation of device and slot.", CORE, True, MINUTE, reads=(call("nvmlDeviceGetMaxPcieLinkGeneration"),), most=20),
    Quantity("pcie_link_width", False, (), "", "Current PCIe lanes.", CORE, True, reads=(call("nvmlDeviceGetCurrPcieLinkWidth"),), most=64),
    Quantity("pcie_link_width_max", False, (), "", "Most PCIe lanes of device and slot.", CORE, True, MINUTE, reads=(call("nvmlDeviceGetMaxPcieLinkWidth"),), most=64),
    Quantity("pcie_replays_total", True, (), "", "PCIe replays.", CORE, True, reads=(call("nvmlDeviceGetPcieReplayCounter"), field("PCIE_REPLAY_COUNTER", 94)), event=True),
    Quantity("pcie_device_generation_max", False, (), "", "Highest PCIe generation of the device itself, whatever the slot.", FABRIC, False, START, reads=(call("nvmlDeviceGetGpuMaxPcieLinkGeneration"),), most=20),
    Quantity("pcie_replay_rollovers_total", True, (), "", "Overflows of the PCIe replay counter: the link was retrained.", FABRIC, False, HALF, reads=(field("PCIE_REPLAY_ROLLOVER_COUNTER", 95),)),
    Quantity("pcie_recoveries_total", True, (), "", "Times the PCIe link left its active state to recover.", FABRIC, False, HALF, reads=(field("PCIE_L0_TO_RECOVERY_COUNTER", 169),)),
    Quantity("pcie_errors_total", True, ("kind",), "", "PCIe errors that the device counted, by kind.", FABRIC, False, HALF,
             reads=tuple(field(f"PCIE_COUNT_{name}", number, labels=(label,)) for name, number, label in (
                 ("CORRECTABLE_ERRORS", 173, "correctable"), ("NAKS_RECEIVED", 174, "naks_received"), ("RECEIVER_ERROR", 175, "receiver"), ("BAD_TLP", 176, "bad_tlp"),
                 ("NAKS_SENT", 177, "naks_sent"), ("BAD_DLLP", 178, "bad_dllp"), ("NON_FATAL_ERROR", 179, "nonfatal"), ("FATAL_ERROR", 180, "fatal"),
                 ("UNSUPPORTED_REQ", 181, "unsupported_request"), ("LCRC_ERROR", 182, "lcrc"), ("LANE_ERROR", 183, "lane")))),
    Quantity("pcie_transmit_bytes_total", True, (), "bytes", "Bytes the device sent over PCIe since this exporter first saw it; the driver's counter wraps, the passes are added up.", FABRIC, False,
             reads=(field("PCIE_COUNT_TX_BYTES", 197, decode="wrapping"),)),
    Quantity("pcie_receive_bytes_total", True, (), "bytes", "Bytes the device received over PCIe since this exporter first saw it; the driver's counter wraps, the passes are added up.", FABRIC, False,
             reads=(field("PCIE_COUNT_RX_BYTES", 198, decode="wrapping"),)),
    Quantity("pcie_transmit_bytes_per_second", False, (), "", "Rate at which the device sent over PCIe since the previous collection, in bytes per second (Hopper and newer).", FABRIC, False, reads=(gpm("PCIE_TX_PER_SEC", 20, decode=_MIB),)),
    Quantity("pcie_receive_bytes_per_second", False, (), "", "Rate at which the device received over PCIe since the previous collection, in bytes per second (Hopper and newer).", FABRIC, False, reads=(gpm("PCIE_RX_PER_SEC", 21, decode=_MIB),)),
    Quantity("pcie_transmit_since_boot_bytes_total", True, (), "bytes", "Bytes the device sent over PCIe since the boot, in the unit that the metric states.", DEEP, False, reads=(gpm("PCIE_TX", 255, decode="unit"),)),
    Quantity("pcie_receive_since_boot_bytes_total", True, (), "bytes", "Bytes the device received over PCIe since the boot, in the unit that the metric states.", DEEP, False, reads=(gpm("PCIE_RX", 256, decode="unit"),)),
    Quantity("pcie_atomics_mask", False, ("direction",), "", "PCIe atomics that can be sent and received, as a bit mask of the driver.", DEEP, False, START,
             reads=(field("PCIE_OUTBOUND_ATOMICS_MASK", 228, labels=("outbound",)), field("PCIE_INBOUND_ATOMICS_MASK", 229, labels=("inbound",)))),
)

_ROWS = (*_ACTIVITY, *_MEMORY_ROWS, *_CLOCKS, *_POWER, *_TEMPERATURE, *_THROTTLE, *_HEALTH, *_MODES, *_PCIE, *LINK_ROWS)

QUANTITIES = {row.name: row for row in _ROWS}
