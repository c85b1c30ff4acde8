/* Large bodies, one after another: what a megabyte costs, and that every byte arrives. */
#include "bench.h"

extern const char *path;
static int ended, errors;
static struct Sample latency;

static void done(struct Client *c) {
    ended = 1;
    errors += c->status != 200;
}
static void broke(struct Client *c) {
    (void)c;
    ended = 1;
    errors++;
}
static int has_ended(void) { return ended; }

void phase_large(const struct Command *k) {
    static struct Goal goal;
    struct Cpu from, to;
    int unfinished = 0;
    goal = (struct Goal){k->port, done, broke, NULL};
    rules = (struct EngineRules){.mode = AT_ONCE, .chunks = 128};
    struct Client *c = client_new(&goal, 0);
    client_request(c, path, 0, k->size);
    errors = 0;
    for (int i = 0; i <= k->count && !unfinished; i++) { /* the first one is not counted: buffers grow in it */
        if (i == 1) {
            meter_read(&from);
            engine_counts.body_bytes = 0;
        }
        ended = 0;
        client_vary(c);
        uint64_t began = now_ns();
        client_send(c, began);
        loop_until(has_ended, began + 60000000000u);
        unfinished = !ended;
        if (i) sample_add(&latency, now_ns() - began);
    }
    meter_read(&to);
    meter_tell(&from, &to);
    fprintf(out, "\"served\":%d,\"errors\":%d,\"unfinished\":%d,\"engine_bytes\":%lu,\"body_bytes\":%zu,", k->count, errors, unfinished,
        engine_counts.body_bytes, k->size);
    sample_tell("latency_us", &latency);
    client_free(c);
}
