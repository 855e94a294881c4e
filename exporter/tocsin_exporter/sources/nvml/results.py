"""The numbers that NVML's functions answer with (nvml.h, nvmlReturn_t), and what each condemns."""

__all__ = [
    "ERRORS",
    "FUNCTION_NOT_FOUND",
    "GONE",
    "INSUFFICIENT_SIZE",
    "LIBRARY_NOT_FOUND",
    "LOST",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "SESSION",
    "SUCCESS",
    "TIMEOUT",
    "UNKNOWN",
    "UNSUPPORTED",
]

SUCCESS = 0
NOT_SUPPORTED = 3
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
UNKNOWN = 999
ERRORS = {
    0: "success",
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    5: "already_initialized",
    6: "not_found",
    7: "insufficient_size",
    8: "insufficient_power",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "lib_rm_version_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    23: "insufficient_resources",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    999: "unknown",
}
# The device or this driver will not answer this question, however often it is asked.
UNSUPPORTED = frozenset({2, 3, 4, FUNCTION_NOT_FOUND, 22, 25, 26})
# Errors that condemn the device, not the one call.
GONE = {15: "gpu_lost", 16: "reset_required", 28: "gpu_lost"}
LOST = 15
# Errors that condemn the whole session with the driver.
SESSION = frozenset({1, 9, 18})
