/* Mapping of the shared files and the few questions both libraries ask about them. */
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t sim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t sim_start_ticks(int32_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = 0;
    /* The command may hold spaces and parentheses: count fields behind the last one. */
    char *after = strrchr(text, ')');
    if (!after || after[1] != ' ' || after[2] == 'Z' || after[2] == 'X')
        return 0;
    unsigned long long ticks = 0;
    char *field = after + 2;
    for (int number = 3; number < 22; number++) {
        field = strchr(field, ' ');
        if (!field)
            return 0;
        field++;
    }
    if (sscanf(field, "%llu", &ticks) != 1)
        return 0;
    return ticks;
}

int sim_process_alive(const struct sim_process *process)
{
    return process->pid > 0 && sim_start_ticks(process->pid) == process->start_ticks;
}

static void *map_file(const char *variable, size_t size, const char **reason)
{
    const char *path = getenv(variable);
    if (!path || !*path) {
        *reason = "the environment names no file";
        return NULL;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        *reason = "the file cannot be opened";
        return NULL;
    }
    struct stat status;
    void *address = MAP_FAILED;
    /* A file that is too short would kill the process at the first access beyond its end. */
    if (fstat(fd, &status) == 0 && (size_t)status.st_size >= size)
        address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (address == MAP_FAILED) {
        *reason = "the file is shorter than the layout or cannot be mapped";
        return NULL;
    }
    return address;
}

struct sim_node *sim_map_node(const char **reason)
{
    struct sim_node *node = map_file("TOCSIN_SIM_DEVICES", sizeof *node, reason);
    if (node && (node->magic != SIM_NODE_MAGIC || node->version != SIM_LAYOUT_VERSION || node->size != sizeof *node ||
                 node->device_count > SIM_MAX_DEVICES)) {
        munmap(node, sizeof *node);
        *reason = "the file has another layout";
        return NULL;
    }
    return node;
}

struct sim_job *sim_map_job(const char **reason)
{
    struct sim_job *job = map_file("TOCSIN_SIM_JOB", sizeof *job, reason);
    if (job && (job->magic != SIM_JOB_MAGIC || job->version != SIM_LAYOUT_VERSION || job->size != sizeof *job ||
                job->world_size > SIM_MAX_RANKS)) {
        munmap(job, sizeof *job);
        *reason = "the file has another layout";
        return NULL;
    }
    return job;
}
