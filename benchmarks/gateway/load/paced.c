/* Loads by a schedule: Poisson arrivals whose latency counts from when they were due, not from when they were sent.
 *
 * Every arrival at the gateway has a twin process of arrivals straight at the engine, in the same seconds: what the
 * gateway adds is the difference of two medians that saw the same machine.
 */
#include "bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const char *path;
struct Line { /* one of the two processes of arrivals */
    struct Timer timer;
    struct Goal goal;
    const struct Command *k;
    struct Client *idle[MAX_CLIENTS];
    int idle_count, direct;
    uint64_t due_ns, end_ns, begun, ended, errors;
    struct Sample latency, delay;
};
static struct Line lines[2];
static int slots;

static void finished(struct Client *c) {
    struct Line *l = &lines[c->direct];
    int good = c->status == 200 && (!c->stream || (c->got == rules.chunks && c->finished));
    if (good) sample_add(&l->latency, (c->stream ? c->first_ns : now_ns()) - c->began_ns);
    else l->errors++;
    l->ended++;
    l->idle[l->idle_count++] = c;
}

static void broken(struct Client *c) {
    struct Line *l = &lines[c->direct];
    l->errors++;
    l->ended++;
    l->idle[l->idle_count++] = c;
}

static void chunk_came(struct Client *c, int n, uint64_t now) {
    (void)n;
    if (c->sent_ns && c->got > 1) sample_add(&lines[c->direct].delay, now - c->sent_ns);
}

static void arrive(struct Timer *t) {
    struct Line *l = (struct Line *)t;
    if (l->due_ns > l->end_ns) return;
    struct Client *c;
    if (l->idle_count) {
        c = l->idle[--l->idle_count];
        client_vary(c);
    } else if (slots < MAX_CLIENTS) {
        c = client_new(&l->goal, slots++);
        c->direct = l->direct;
        client_request(c, l->direct ? "/v1/chat/completions" : path, l->k->stream, l->k->size);
    } else {
        l->errors++;
        c = NULL;
    }
    uint64_t due = l->due_ns;
    l->due_ns += (uint64_t)(-log(1.0 - dice()) / l->k->rate * 1e9);
    timer_start(t, l->due_ns);
    if (!c) return;
    l->begun++;
    client_send(c, due);
}

static int all_back(void) { return lines[0].ended == lines[0].begun && lines[1].ended == lines[1].begun; }

static void start(struct Line *l, const struct Command *k, int direct, uint64_t at_ns) {
    struct Sample latency = l->latency, delay = l->delay;
    memset(l, 0, sizeof *l);
    l->latency = latency;
    l->delay = delay;
    l->latency.count = l->delay.count = 0;
    l->direct = direct;
    l->k = k;
    l->goal = (struct Goal){direct ? k->direct_port : k->port, finished, broken, chunk_came};
    l->timer = (struct Timer){.place = -1, .fire = arrive};
    l->due_ns = at_ns + (uint64_t)(dice() / k->rate * 1e9);
    l->end_ns = at_ns + (uint64_t)((k->warm + k->seconds) * 1e9);
    timer_start(&l->timer, l->due_ns);
}

void phase_rate(const struct Command *k) {
    struct Cpu from, to;
    rules = (struct EngineRules){.mode = k->stream ? PACED : AT_ONCE, .chunks = k->chunks, .gap_ns = (uint64_t)(k->gap_ms * 1e6)};
    slots = 0;
    uint64_t at = now_ns();
    start(&lines[0], k, 0, at);
    start(&lines[1], k, 1, at);
    loop_until(NULL, at + (uint64_t)(k->warm * 1e9));
    lines[0].latency.count = lines[0].delay.count = lines[1].latency.count = lines[1].delay.count = 0;
    meter_read(&from);
    uint64_t before = lines[0].begun;
    loop_until(NULL, at + (uint64_t)((k->warm + k->seconds) * 1e9));
    meter_read(&to);
    meter_tell(&from, &to);
    fprintf(out, "\"served\":%lu,", lines[0].begun - before);
    loop_until(all_back, now_ns() + 10000000000u);
    fprintf(out, "\"errors\":%lu,\"direct_errors\":%lu,\"unfinished\":%lu,\"connections\":%d,", lines[0].errors, lines[1].errors,
        lines[0].begun - lines[0].ended, slots);
    sample_tell(k->stream ? "ttft_us" : "latency_us", &lines[0].latency);
    sample_tell(k->stream ? "direct_ttft_us" : "direct_latency_us", &lines[1].latency);
    sample_tell("chunk_delay_us", &lines[0].delay);
    sample_tell("direct_chunk_delay_us", &lines[1].delay);
    timer_stop(&lines[0].timer);
    timer_stop(&lines[1].timer);
    for (int i = 0; i < slots; i++) client_free(clients[i]);
}
