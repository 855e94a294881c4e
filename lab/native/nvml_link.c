/* NVML: NVLink ports. Their traffic is the device's, spread over the links. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <stdio.h>
#include <string.h>

#define ALL_LINKS 0xffffffffu

uint64_t nvml_link_count(const struct sim_device *device, unsigned link, enum sim_link_count kind)
{
    const struct sim_link *port = &device->links[link];
    uint64_t count = port->counts[kind], now = sim_now_ns();
    if (port->rate > 0.0 && (port->rate_mask >> kind & 1) && now > port->rate_since_ns)
        count += (uint64_t)(port->rate * (double)(now - port->rate_since_ns) / 1e9);
    return count;
}

uint64_t nvml_link_bytes(const struct sim_device *device, unsigned link, int transmitted)
{
    const struct sim_link *port = &device->links[link];
    if (port->down)
        return transmitted ? port->down_tx_bytes : port->down_rx_bytes;
    return sim_load(transmitted ? &device->nvlink_tx_bytes : &device->nvlink_rx_bytes) / PROFILE.nvlink_links;
}

#define ON_LINK(device, link, out)                                                     \
    do {                                                                               \
        ON_DEVICE(device, out);                                                        \
        SUPPORTED_IF(PROFILE.nvlink_links);                                            \
        if ((link) >= PROFILE.nvlink_links)                                            \
            return NVML_ERROR_INVALID_ARGUMENT;                                        \
    } while (0)

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    ON_LINK(device, link, active);
    *active = (unsigned)VALUE(device, !device->links[link].down);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    ON_LINK(device, link, version);
    *version = PROFILE.nvlink_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *result)
{
    /* P2P, system memory, P2P atomics, system memory atomics, SLI, link valid */
    static const unsigned char has[] = {1, 1, 1, 1, 0, 1};
    ON_LINK(device, link, result);
    if (capability >= sizeof has)
        return NVML_ERROR_INVALID_ARGUMENT;
    *result = has[capability];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info)
{
    ON_LINK(device, link, info);
    /* An NVSwitch board: its bridges are on buses of their own, each takes its share of every GPU's links. */
    static const unsigned char buses[] = {0x05, 0x06, 0x07, 0x08, 0x09, 0x0a};
    unsigned bridges = PROFILE.nvlink_version >= 7 ? 2 : PROFILE.nvlink_version >= 6 ? 4 : 6;
    memset(info, 0, sizeof *info);
    info->bus = buses[link % bridges];
    info->pciDeviceId = 0x22a310deu;
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", info->bus);
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
    ON_LINK(device, link, type);
    *type = 2; /* switch */
    return NVML_SUCCESS;
}

/* Counters: 0 replay, 1 recovery, 2 CRC of flits, 3 CRC of data, 4 ECC of data; NVLink5 counts by field ids instead. */
API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter, unsigned long long *count)
{
    ON_LINK(device, link, count);
    if (counter > SIM_LINK_ECC_DATA)
        return NVML_ERROR_INVALID_ARGUMENT;
    SUPPORTED_IF(PROFILE.architecture <= HOPPER);
    *count = VALUE(device, nvml_link_count(device, link, (enum sim_link_count)counter));
    return NVML_SUCCESS;
}

/* ---- field values ---- */

static uint64_t total(const struct sim_device *device, enum sim_link_count kind)
{
    uint64_t sum = 0;
    for (unsigned link = 0; link < PROFILE.nvlink_links; link++)
        sum += nvml_link_count(device, link, kind);
    return sum;
}

/* mantissa x 10^-exponent in the form of NVLink5's BER fields: bits 0-7 exponent, 8-11 mantissa. */
static uint64_t error_rate(double rate)
{
    unsigned exponent = 0;
    if (!(rate > 0.0))
        return 15u << 8 | 254; /* as the hardware says "none seen" */
    while (rate < 1.0 && exponent < 254) {
        rate *= 10.0;
        exponent++;
    }
    unsigned mantissa = (unsigned)(rate + 0.5);
    return (uint64_t)(mantissa > 15 ? 15 : mantissa) << 8 | exponent;
}

static uint64_t bit_error_rate(const struct sim_device *device, unsigned link, enum sim_link_count kind, double floor)
{
    const struct sim_link *port = &device->links[link];
    double bits = (double)PROFILE.nvlink_mbps * 8e6;
    double rate = port->rate_mask >> kind & 1 ? port->rate / bits : 0.0;
    return error_rate(rate > floor ? rate : floor);
}

/* Raw errors are normal on these links and corrected: what a healthy lane shows. */
#define HEALTHY_RAW_BER 3e-11

static uint64_t blackwell(const struct sim_device *device, unsigned id, unsigned link, int *known)
{
    static const enum sim_link_count errors[] = {SIM_LINK_MALFORMED, SIM_LINK_OVERRUN, SIM_LINK_RECEIVE, SIM_LINK_REMOTE,
                                                 SIM_LINK_GENERAL, SIM_LINK_INTEGRITY, SIM_LINK_DISCARDS};
    uint64_t sent = nvml_link_bytes(device, link, 1), received = nvml_link_bytes(device, link, 0);
    *known = 1;
    switch (id) {
    case 201: return sent / 256;
    case 202: return sent;
    case 203: return received / 256;
    case 204: return received;
    case 206: case 207: case 208: case 209: case 210: case 211: case 212:
        return nvml_link_count(device, link, errors[id - 206]);
    case 213: return nvml_link_count(device, link, SIM_LINK_RECOVERED);
    case 214: return nvml_link_count(device, link, SIM_LINK_UNRECOVERED);
    case 215: return nvml_link_count(device, link, SIM_LINK_RECOVERED) + nvml_link_count(device, link, SIM_LINK_UNRECOVERED);
    case 219: return nvml_link_count(device, link, SIM_LINK_EFFECTIVE);
    case 220: return bit_error_rate(device, link, SIM_LINK_EFFECTIVE, 0.0);
    case 221: return nvml_link_count(device, link, SIM_LINK_SYMBOL);
    case 222: return bit_error_rate(device, link, SIM_LINK_SYMBOL, 0.0);
    case 289: return nvml_link_count(device, link, SIM_LINK_RAW_LANE0);
    case 290: return nvml_link_count(device, link, SIM_LINK_RAW_LANE1);
    case 291: return bit_error_rate(device, link, SIM_LINK_RAW_LANE0, HEALTHY_RAW_BER);
    case 292: return bit_error_rate(device, link, SIM_LINK_RAW_LANE1, HEALTHY_RAW_BER);
    case 293: return bit_error_rate(device, link, SIM_LINK_RAW_LANE0, HEALTHY_RAW_BER);
    case 294: return sent / 64;
    case 295: return nvml_link_count(device, link, SIM_LINK_RETRIES);
    case 296: return PROFILE.nvlink_mbps / 17 * 16; /* less the code's overhead */
    default: break;
    }
    if (id >= 235 && id <= 250) {
        /* Blocks by the number of symbols that were corrected in them: nearly all need none. */
        unsigned bin = id - 235;
        uint64_t blocks = received / 64, raw = nvml_link_count(device, link, SIM_LINK_RAW_LANE0);
        return bin == 0 ? blocks : bin == 1 ? raw : bin == 15 ? nvml_link_count(device, link, SIM_LINK_EFFECTIVE) : 0;
    }
    *known = 0;
    return 0;
}

/* The per-lane counters of P100 and V100, six lanes and then twelve: replaced since. */
static int legacy(unsigned id) { return (id >= 32 && id <= 59) || (id >= 96 && id <= 119); }

static uint64_t legacy_count(const struct sim_device *device, unsigned id)
{
    static const enum sim_link_count kinds[] = {SIM_LINK_CRC_FLIT, SIM_LINK_CRC_DATA, SIM_LINK_REPLAY, SIM_LINK_RECOVERY};
    if (id >= 96)
        return nvml_link_count(device, 6 + (id - 96) % 6, kinds[(id - 96) / 6]);
    unsigned lane = (id - 32) % 7;
    enum sim_link_count kind = kinds[(id - 32) / 7];
    return lane == 6 ? total(device, kind) : nvml_link_count(device, lane, kind);
}

static uint64_t throughput(const struct sim_device *device, unsigned id, unsigned scope)
{
    int transmitted = id == 138 || id == 140;
    uint64_t bytes = 0;
    for (unsigned link = 0; link < PROFILE.nvlink_links; link++)
        if (scope == ALL_LINKS || scope == link)
            bytes += nvml_link_bytes(device, link, transmitted);
    /* Raw traffic carries headers and flow control. */
    return (id >= 140 ? bytes / 16 * 17 : bytes) >> 10;
}

int nvml_link_field(const struct sim_device *device, unsigned id, unsigned scope, uint64_t *value, unsigned *type,
                    nvmlReturn_t *code)
{
    const struct sim_profile *profile = &PROFILE;
    int per_link = (id >= 138 && id <= 141) || id == 146 || (id >= 161 && id <= 167) || (id >= 201 && id <= 222) ||
                   (id >= 235 && id <= 250) || (id >= 289 && id <= 296);
    int speed = (id >= 84 && id <= 90) || (id >= 132 && id <= 137);
    int data_ecc = id >= 148 && id <= 160, counts = id == 91 || id == 147;
    int deprecated = (id >= 60 && id <= 73) || (id >= 120 && id <= 131);
    if (!per_link && !legacy(id) && !speed && !data_ecc && !counts && !deprecated)
        return 0;
    *code = NVML_SUCCESS;
    *type = VALUE_UNSIGNED_LONG_LONG;
    if (!profile->nvlink_links || deprecated) {
        *code = NVML_ERROR_NOT_SUPPORTED;
        return 1;
    }
    if (per_link && scope >= profile->nvlink_links && !(id >= 138 && id <= 141 && scope == ALL_LINKS)) {
        *code = NVML_ERROR_INVALID_ARGUMENT;
        return 1;
    }
    if (legacy(id)) {
        /* Hopper and newer answer with success and 0, whatever happened. */
        *value = profile->architecture >= HOPPER ? 0 : legacy_count(device, id);
    } else if (speed || id == 164) {
        *type = VALUE_UNSIGNED;
        *value = profile->nvlink_mbps;
    } else if (id == 91 || id == 147) {
        *type = VALUE_UNSIGNED;
        *value = profile->nvlink_links;
        for (unsigned link = 0; id == 147 && link < profile->nvlink_links; link++)
            *value -= device->links[link].down;
    } else if (id >= 138 && id <= 141) {
        *value = throughput(device, id, scope);
    } else if (id == 146) {
        *type = VALUE_UNSIGNED;
        *value = device->links[scope].remote_link;
    } else if (id == 165) {
        *type = VALUE_UNSIGNED;
        *value = !device->links[scope].down;
    } else if (id == 166) {
        *type = VALUE_UNSIGNED;
        *value = profile->nvlink_version;
    } else if (id == 167) {
        *type = VALUE_UNSIGNED;
        *value = 0; /* high speed */
    } else if (data_ecc || (id >= 161 && id <= 163)) {
        if (profile->architecture > HOPPER)
            *code = NVML_ERROR_NOT_SUPPORTED;
        else if (id <= 159)
            *value = nvml_link_count(device, id - 148, SIM_LINK_ECC_DATA);
        else if (id == 160)
            *value = total(device, SIM_LINK_ECC_DATA);
        else if (id == 163)
            *value = nvml_link_count(device, scope, SIM_LINK_CRC_FLIT) + nvml_link_count(device, scope, SIM_LINK_CRC_DATA);
        else
            *value = nvml_link_count(device, scope, id == 161 ? SIM_LINK_REPLAY : SIM_LINK_RECOVERY);
    } else {
        int known = 0;
        if (profile->architecture >= BLACKWELL)
            *value = blackwell(device, id, scope, &known);
        if (id == 296)
            *type = VALUE_UNSIGNED;
        if (!known)
            *code = NVML_ERROR_NOT_SUPPORTED;
    }
    return 1;
}
