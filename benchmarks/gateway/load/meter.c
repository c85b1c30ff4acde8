/* CPU time of the gateway's processes, this program's own, and percentiles.
 *
 * CPU is read from /proc/PID/task/N/schedstat (nanoseconds on a CPU, user and kernel); what the kernel does for a
 * socket in interrupts is charged to whoever runs then, for all gateways alike.
 */
#include "bench.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int pids[MAX_PIDS], pid_count;

void meter_pids(const char *list) {
    pid_count = 0;
    while (*list && pid_count < MAX_PIDS) {
        char *end;
        pids[pid_count++] = (int)strtol(list, &end, 10);
        list = *end == ',' ? end + 1 : end + strlen(end);
    }
}

static uint64_t cpu_of(int pid) {
    char path[300], line[128];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks) return 0;
    uint64_t sum = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        if (task->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, task->d_name);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fgets(line, sizeof line, f)) sum += strtoull(line, NULL, 10);
        fclose(f);
    }
    closedir(tasks);
    return sum;
}

void meter_read(struct Cpu *c) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    c->own = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    for (int i = 0; i < pid_count; i++) c->by_pid[i] = cpu_of(pids[i]);
    c->at_ns = now_ns();
}

void meter_tell(const struct Cpu *from, const struct Cpu *to) {
    fprintf(out, "\"window_ns\":%lu,\"own_cpu_ns\":%lu,\"cpu_ns\":{", to->at_ns - from->at_ns, to->own - from->own);
    for (int i = 0; i < pid_count; i++)
        fprintf(out, "%s\"%d\":%lu", i ? "," : "", pids[i], to->by_pid[i] - from->by_pid[i]);
    fprintf(out, "},");
}

/* A fixed piece of work: tells a slow minute of the machine from a slow program. */
uint64_t spin_ns(void) {
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    volatile uint64_t x = 1;
    for (int i = 0; i < 2000000; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    return (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000u + (uint64_t)b.tv_nsec - (uint64_t)a.tv_nsec;
}

void sample_add(struct Sample *s, uint64_t ns) {
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 4096;
        s->us10 = realloc(s->us10, s->room * sizeof *s->us10);
    }
    s->us10[s->count++] = ns > 400000000000u ? UINT32_MAX : (uint32_t)(ns / 100);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void sample_tell(const char *name, struct Sample *s) {
    if (!s->count) return;
    qsort(s->us10, s->count, sizeof *s->us10, by_size);
    const double shares[] = {0.5, 0.9, 0.99, 0.999};
    const char *names[] = {"p50", "p90", "p99", "p999"};
    fprintf(out, "\"%s\":{\"n\":%zu,\"max\":%.1f", name, s->count, s->us10[s->count - 1] / 10.0);
    for (int i = 0; i < 4; i++)
        fprintf(out, ",\"%s\":%.1f", names[i], s->us10[(size_t)(shares[i] * (double)(s->count - 1))] / 10.0);
    fprintf(out, "},");
    s->count = 0;
}
