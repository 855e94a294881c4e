/* Inside libnvidia-ml.so.1: NVML types as nvidia-ml-py declares them, and what the parts share. */
#ifndef TOCSIN_NVML_SIM_H
#define TOCSIN_NVML_SIM_H

#include "sim.h"

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

/* nvmlDeviceArchitecture_t */
enum { AMPERE = 7, ADA = 8, HOPPER = 9, BLACKWELL = 10 };

/* A handle points at the device's state, as the real one points at something of the driver's; that of a MIG device
 * points at the instance within it. */
typedef struct sim_device *nvmlDevice_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

/* The version a caller writes into a structure. */
#define VERSION_OF(object, number) ((unsigned)sizeof(object) | (unsigned)(number) << 24)

/* nvml_core.c */
struct sim_node *nvml_shared(void); /* the mapped node; not NULL after nvml_enter succeeded */
/* What every call does first: hangs with the driver, fails as injected, or is not initialised. */
nvmlReturn_t nvml_enter(const char *call);
/* The same and the checks of a device: handle, hang, loss. A MIG device's handle is an invalid argument. */
nvmlReturn_t nvml_enter_device(const char *call, nvmlDevice_t device);
/* For calls that take both: *device is the GPU; *instance is NULL unless the handle is a MIG device's. */
nvmlReturn_t nvml_enter_any(const char *call, nvmlDevice_t handle, struct sim_device **device,
                            struct sim_instance **instance);
nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned length);
void nvml_bus_id(const struct sim_device *device, char *text, size_t length, int domain_digits);
unsigned nvml_driver_major(void);
int nvml_mig_active(const struct sim_device *device);
/* Whether calls on this device or its event set still work: the library's session is the node's. */
int nvml_session_valid(void);
unsigned nvml_index_of(const struct sim_device *device); /* in the node's list, absent ones included */

/* nvml_rules.c */
nvmlReturn_t nvml_rules_call(const struct sim_node *node, const char *call, unsigned device);
/* The rules of one field of a call: SUCCESS, or an error; *value may be replaced. *batch is set when the whole call is
 * to fail with what is returned. */
nvmlReturn_t nvml_rules_field(const struct sim_node *node, const char *call, unsigned device, unsigned field,
                              unsigned scope, uint64_t *value, int *replaced, int *batch);
/* The value a call without fields reports instead of the truth. */
uint64_t nvml_value(const char *call, const struct sim_device *device, uint64_t truth);

/* nvml_telemetry.c */
int nvml_running(const struct sim_device *device); /* 1 while a process's device clock ticks */
uint64_t nvml_energy_uj(const struct sim_device *device);
double nvml_temperature(const struct sim_device *device);
unsigned nvml_sm_clock(const struct sim_device *device);
unsigned nvml_power_mw(const struct sim_device *device);
uint64_t nvml_throttle_ns(const struct sim_device *device, unsigned bit);

/* nvml_ecc.c; type 0 corrected, 1 uncorrected; window 0 since the driver was loaded, 1 lifetime */
uint64_t nvml_ecc_dram(const struct sim_device *device, unsigned type, unsigned window);
uint64_t nvml_ecc_sram(const struct sim_device *device, unsigned type, unsigned window);

/* nvml_link.c */
uint64_t nvml_link_count(const struct sim_device *device, unsigned link, enum sim_link_count kind);
uint64_t nvml_link_bytes(const struct sim_device *device, unsigned link, int transmitted);
/* 1 when the field is one of NVLink's and answered, 0 when it is another; *code is its nvmlReturn. */
int nvml_link_field(const struct sim_device *device, unsigned id, unsigned scope, uint64_t *value, unsigned *type,
                    nvmlReturn_t *code);

/* nvml_processes.c */
uint64_t nvml_used_memory(const struct sim_device *device, const struct sim_instance *instance);

/* nvmlValueType_t */
enum { VALUE_DOUBLE, VALUE_UNSIGNED, VALUE_UNSIGNED_LONG, VALUE_UNSIGNED_LONG_LONG, VALUE_SIGNED_LONG_LONG, VALUE_SIGNED };

#define ON_DEVICE(device, out)                                   \
    do {                                                         \
        nvmlReturn_t result_ = nvml_enter_device(__func__, device); \
        if (result_ != NVML_SUCCESS)                             \
            return result_;                                      \
        if (!(out))                                              \
            return NVML_ERROR_INVALID_ARGUMENT;                  \
    } while (0)

/* Declares `device` and `instance` of a handle that may be a MIG device's. */
#define ON_ANY(handle, out)                                      \
    struct sim_device *device = NULL;                            \
    struct sim_instance *instance = NULL;                        \
    do {                                                         \
        nvmlReturn_t result_ = nvml_enter_any(__func__, handle, &device, &instance); \
        if (result_ != NVML_SUCCESS)                             \
            return result_;                                      \
        if (!(out))                                              \
            return NVML_ERROR_INVALID_ARGUMENT;                  \
    } while (0)

#define ON_NODE(out)                                             \
    do {                                                         \
        nvmlReturn_t result_ = nvml_enter(__func__);             \
        if (result_ != NVML_SUCCESS)                             \
            return result_;                                      \
        if (!(out))                                              \
            return NVML_ERROR_INVALID_ARGUMENT;                  \
    } while (0)

#define PROFILE (nvml_shared()->profile)
#define VALUE(device, truth) nvml_value(__func__, device, (uint64_t)(truth))

#define NUMBER_CALL(name, value)                                                       \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *out)                          \
    {                                                                                  \
        ON_DEVICE(device, out);                                                        \
        *out = (unsigned)VALUE(device, value);                                         \
        return NVML_SUCCESS;                                                           \
    }

#define SUPPORTED_IF(condition)                                                        \
    do {                                                                               \
        if (!(condition))                                                              \
            return NVML_ERROR_NOT_SUPPORTED;                                           \
    } while (0)

#endif
