/* NVML: how a call misbehaves, as fault injection wrote it into the shared memory. */
#define _GNU_SOURCE
#include "nvml_sim.h"

#include <string.h>
#include <time.h>

static int matches(const struct sim_rule *rule, const char *call, unsigned device)
{
    if (rule->device != SIM_ANY && rule->device != device)
        return 0;
    return rule->call[0] == 0 || strncmp(rule->call, call, sizeof rule->call) == 0;
}

static uint32_t kind_of(const struct sim_rule *rule)
{
    return __atomic_load_n(&rule->kind, __ATOMIC_ACQUIRE);
}

/* The call sits in the driver until somebody takes the rule away. */
static void hang(const struct sim_rule *rule)
{
    struct timespec pause = {.tv_nsec = 20000000};
    while (kind_of(rule) == SIM_RULE_HANG)
        nanosleep(&pause, NULL);
}

static void slow(const struct sim_rule *rule)
{
    struct timespec left = {.tv_sec = (time_t)(rule->value / 1000000000ull), .tv_nsec = (long)(rule->value % 1000000000ull)};
    nanosleep(&left, NULL);
}

static unsigned rules_of(const struct sim_node *node)
{
    uint32_t count = __atomic_load_n(&node->rule_count, __ATOMIC_ACQUIRE);
    return count > SIM_MAX_RULES ? SIM_MAX_RULES : count;
}

nvmlReturn_t nvml_rules_call(const struct sim_node *node, const char *call, unsigned device)
{
    unsigned count = rules_of(node);
    for (unsigned i = 0; i < count; i++) {
        const struct sim_rule *rule = &node->rules[i];
        uint32_t kind = kind_of(rule);
        if (kind == SIM_RULE_NONE || rule->field || !matches(rule, call, device))
            continue;
        if (kind == SIM_RULE_HANG)
            hang(rule);
        else if (kind == SIM_RULE_SLOW)
            slow(rule);
        else if (kind == SIM_RULE_ERROR)
            return rule->code;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_rules_field(const struct sim_node *node, const char *call, unsigned device, unsigned field,
                              unsigned scope, uint64_t *value, int *replaced, int *batch)
{
    unsigned count = rules_of(node);
    nvmlReturn_t result = NVML_SUCCESS;
    *replaced = *batch = 0;
    for (unsigned i = 0; i < count; i++) {
        const struct sim_rule *rule = &node->rules[i];
        uint32_t kind = kind_of(rule);
        if (kind == SIM_RULE_NONE || rule->field != field || !matches(rule, call, device))
            continue;
        if (rule->scope != SIM_ANY && rule->scope != scope)
            continue;
        if (kind == SIM_RULE_HANG) {
            hang(rule);
        } else if (kind == SIM_RULE_SLOW) {
            slow(rule);
        } else if (kind == SIM_RULE_VALUE) {
            *value = rule->value;
            *replaced = 1;
        } else {
            result = rule->code;
            *batch |= kind == SIM_RULE_BATCH;
        }
    }
    return result;
}

uint64_t nvml_value(const char *call, const struct sim_device *device, uint64_t truth)
{
    const struct sim_node *node = nvml_shared();
    unsigned count = rules_of(node), index = nvml_index_of(device);
    for (unsigned i = 0; i < count; i++) {
        const struct sim_rule *rule = &node->rules[i];
        if (kind_of(rule) == SIM_RULE_VALUE && rule->field == 0 && matches(rule, call, index))
            truth = rule->value;
    }
    return truth;
}
