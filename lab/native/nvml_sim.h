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
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

/* A handle points at the device's state, as the real one points at something of the driver's. */
typedef struct sim_device *nvmlDevice_t;

/* Blocks while the driver hangs; NULL when the library was not initialised. */
struct sim_node *nvml_node(void);
/* The checks every call on a device makes: driver, handle, loss. */
nvmlReturn_t nvml_device(nvmlDevice_t device);
nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned length);
int nvml_running(const struct sim_device *device); /* 1 while a process's device clock ticks */
uint64_t nvml_energy_uj(const struct sim_device *device);
double nvml_temperature(const struct sim_device *device);
unsigned nvml_sm_clock(const struct sim_device *device);
unsigned nvml_power_mw(const struct sim_device *device);
uint64_t nvml_throttle_ns(const struct sim_device *device, unsigned bit);

#define ON_DEVICE(device, out)                                   \
    do {                                                         \
        nvmlReturn_t result_ = nvml_device(device);              \
        if (result_ != NVML_SUCCESS)                             \
            return result_;                                      \
        if (!(out))                                              \
            return NVML_ERROR_INVALID_ARGUMENT;                  \
    } while (0)

#endif
