/* Loads in a closed loop: so many connections, each sends its next request when it has the answer.
 *
 * sat = plain answers; credit = streams whose engine sends a chunk when the client has got the one before (none are
 * coalesced: the hard case, at saturation); flood = streams whose engine sends one chunk after the other
 * without waiting; many = so many streams
 * open at once, each with a chunk from time to time.
 */
#include "bench.h"
#include <stdlib.h>
#include <string.h>

static struct Goal goal;
static uint64_t served, streams, errors, statuses[6], short_streams;
static struct Sample delays;
static int stop_after, ended, measuring;
extern const char *path;

static void note(struct Client *c) {
    statuses[c->status >= 100 && c->status < 600 ? c->status / 100 : 0]++;
    if (c->status != 200) errors++;
    else if (c->stream && (c->got != rules.chunks || !c->finished)) {
        short_streams++;
        errors++;
    }
    c->stream ? streams++ : served++;
}

static void again(struct Client *c) {
    note(c);
    if (measuring && !c->stream) sample_add(&delays, now_ns() - c->began_ns);
    client_vary(c);
    client_send(c, now_ns());
}

static int failures_in_a_row;
static void broke(struct Client *c) {
    errors++;
    if (++failures_in_a_row < 1000) client_send(c, now_ns());
}

static void chunks_came(struct Client *c, int n, uint64_t now) {
    (void)now;
    served += (uint64_t)n;
    if (rules.mode == CREDIT)
        while (n--) engine_grant(c->engine);
}

static void begin(const struct Command *k, int chunks) {
    served = streams = errors = short_streams = 0;
    failures_in_a_row = 0;
    memset(statuses, 0, sizeof statuses);
    delays.count = 0;
    measuring = 0;
    rules = (struct EngineRules){.mode = AT_ONCE, .chunks = chunks};
    goal = (struct Goal){k->port, again, broke, chunks_came};
}

static void tell_counts(void) {
    fprintf(out, "\"served\":%lu,\"streams\":%lu,\"errors\":%lu,\"short_streams\":%lu,\"not_200\":%lu,", served, streams, errors, short_streams,
        statuses[0] + statuses[1] + statuses[3] + statuses[4] + statuses[5]);
}

void phase_closed(const struct Command *k) {
    struct Cpu from, to;
    begin(k, k->chunks);
    if (k->stream) rules.mode = !strcmp(k->mode, "credit") ? CREDIT : FLOOD;
    for (int i = 0; i < k->conns; i++) {
        struct Client *c = client_new(&goal, i);
        client_request(c, path, k->stream, k->size);
        client_send(c, now_ns());
    }
    loop_until(NULL, now_ns() + (uint64_t)(k->warm * 1e9));
    uint64_t requests = engine_counts.requests, other = engine_counts.other, connections = engine_counts.connections;
    meter_read(&from);
    served = streams = 0;
    measuring = 1;
    loop_until(NULL, now_ns() + (uint64_t)(k->seconds * 1e9));
    meter_read(&to);
    meter_tell(&from, &to);
    tell_counts();
    sample_tell("latency_us", &delays);
    fprintf(out, "\"engine_requests\":%lu,\"engine_other\":%lu,\"engine_connections\":%lu,", engine_counts.requests - requests,
        engine_counts.other - other, engine_counts.connections - connections);
    for (int i = 0; i < k->conns; i++) client_free(clients[i]);
}

static void one_ended(struct Client *c) {
    note(c);
    ended++;
}
static void one_broke(struct Client *c) {
    (void)c;
    errors++;
    ended++;
}
static void chunk_delays(struct Client *c, int n, uint64_t now) {
    served += (uint64_t)n;
    if (c->sent_ns) sample_add(&delays, now - c->sent_ns);
}
static int all_ended(void) { return ended >= stop_after; }
static void start_now(struct Timer *t) {
    struct Client *c = (struct Client *)((char *)t - offsetof(struct Client, timer));
    client_send(c, now_ns());
}

void phase_many(const struct Command *k) {
    struct Cpu from, to;
    begin(k, k->chunks);
    goal = (struct Goal){k->port, one_ended, one_broke, chunk_delays};
    rules.mode = PACED;
    rules.gap_ns = (uint64_t)(k->gap_ms * 1e6);
    ended = 0;
    stop_after = k->conns;
    meter_read(&from);
    uint64_t ramp_ns = rules.gap_ns * (uint64_t)k->chunks / 4, most = 0;
    for (int i = 0; i < k->conns; i++) {
        struct Client *c = client_new(&goal, i);
        client_request(c, path, 1, k->size);
        c->timer.fire = start_now;
        timer_start(&c->timer, now_ns() + ramp_ns * (uint64_t)i / (uint64_t)k->conns);
    }
    loop_until(NULL, now_ns() + ramp_ns + rules.gap_ns);
    for (int i = 0; i < k->conns; i++) most += clients[i]->busy && clients[i]->got > 0;
    loop_until(all_ended, now_ns() + rules.gap_ns * (uint64_t)k->chunks * 4 + 5000000000u);
    meter_read(&to);
    meter_tell(&from, &to);
    tell_counts();
    sample_tell("chunk_delay_us", &delays);
    fprintf(out, "\"open_at_once\":%lu,\"unfinished\":%d,\"chunks_expected\":%d,", most, stop_after - ended, k->conns * k->chunks);
    for (int i = 0; i < k->conns; i++) client_free(clients[i]);
}
