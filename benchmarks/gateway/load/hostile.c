/* Clients that mean harm, so many of them: random models, paths and keys, broken JSON, broken HTTP, clients that leave at
 * every point, clients that never read.  What is looked for is memory that grows and a gateway that stops answering.
 */
#include "bench.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLEEPERS 16
extern const char *path;
static struct Goal goal;
static int begun, ended, target, only;
static uint64_t statuses[6], dropped, good, good_failed;
static struct Client *sleepers[SLEEPERS];
static int sleeper;

enum Kind { GOOD, MODEL, PATH, KEY, JSON, CUT_HEAD, CUT_BODY, LEAVE_STREAM, LEAVE_PLAIN, BYTES, LONG_HEADER, METHOD, KINDS };

static char letter(void) { return (char)('a' + (int)(dice() * 26)); }
static void scramble(char *at, size_t n) {
    while (n--) *at++ = letter();
}

/* Another request in place of the client's own; `stream` tells which answer is expected. */
static void dress(struct Client *c, enum Kind kind) {
    char word[24] = {0}, target_path[64];
    c->cut = 0;
    scramble(word, 8 + (size_t)(dice() * 12));
    const char *model = model_name, *key = bearer;
    strcpy(target_path, path);
    if (kind == MODEL) model_name = word;
    if (kind == KEY) bearer = word;
    if (kind == PATH) sprintf(target_path, "/%s/%s", dice() < 0.5 ? "v1" : word, word);
    client_request(c, target_path, kind == LEAVE_STREAM, 1024);
    model_name = model;
    bearer = key;
    char *body = strstr(c->request, "\r\n\r\n") + 4;
    if (kind == JSON) scramble(body + (int)(dice() * 900), 100);
    if (kind == CUT_HEAD) c->cut = 20 + (int)(dice() * 80);
    if (kind == CUT_BODY) c->cut = (int)(body - c->request) + 1 + (int)(dice() * 900);
    if (kind == BYTES)
        for (int i = 0; i < 60; i++) c->request[i] = (char)(dice() * 256);
    if (kind == METHOD) memcpy(c->request, "BREW", 4);
    if (kind == LONG_HEADER) {
        char *longer = malloc(c->request_size + 4200);
        size_t line = (size_t)(strstr(c->request, "\r\n") + 2 - c->request);
        memcpy(longer, c->request, line);
        char *at = longer + line;
        at += sprintf(at, "X-%s: ", word);
        scramble(at, 4000);
        at += 4000;
        memcpy(at, "\r\n", 2);
        memcpy(at + 2, c->request + line, c->request_size - line);
        c->request_size = (size_t)(at + 2 - longer) + c->request_size - line;
        free(c->request);
        c->request = longer;
    }
    c->stream = kind == LEAVE_STREAM;
}

static void next(struct Client *c);

static void never_read(void) {
    if (sleepers[sleeper]) client_free(sleepers[sleeper]);
    struct Client *c = sleepers[sleeper] = client_new(&goal, MAX_CLIENTS - 1 - sleeper);
    sleeper = (sleeper + 1) % SLEEPERS;
    client_request(c, path, 1, 1024);
    *strstr(c->request, "#s") = '#';
    strstr(c->request, "#s")[1] = 'S'; /* a stream without end */
    c->deaf = 1;
    client_send(c, now_ns());
}

static void leave(struct Timer *t) {
    struct Client *c = (struct Client *)((char *)t - offsetof(struct Client, timer));
    if (c->open) client_close(c);
    ended++;
    next(c);
}

static void next(struct Client *c) {
    if (begun >= target) return;
    begun++;
    if (begun % 200 == 0 && (only < 0 || only == 99)) never_read();
    enum Kind kind = only < 0 ? (enum Kind)(dice() * KINDS) : only == 99 ? GOOD : (enum Kind)only;
    dress(c, kind);
    c->more = NULL;
    c->direct = kind == GOOD;
    client_send(c, now_ns());
    if (kind == LEAVE_PLAIN) {
        c->timer.fire = leave;
        timer_start(&c->timer, now_ns() + (uint64_t)(dice() * 300000));
    }
}

static void answered(struct Client *c) {
    if (c->deaf) return;
    timer_stop(&c->timer);
    statuses[c->status >= 100 && c->status < 600 ? c->status / 100 : 0]++;
    if (c->direct) c->status == 200 ? good++ : good_failed++;
    ended++;
    next(c);
}

static void fell(struct Client *c) {
    if (c->deaf) return;
    timer_stop(&c->timer);
    dropped++;
    if (c->direct) good_failed++;
    ended++;
    /* not at once: a connection that breaks while it is being made would call itself for ever */
    c->timer.fire = leave;
    ended--;
    timer_start(&c->timer, now_ns() + 50000);
}

static void first_chunk(struct Client *c, int n, uint64_t now) {
    (void)n;
    if (c->deaf) return;
    c->timer.fire = leave;
    timer_start(&c->timer, now);
    if (c->io.fd >= 0) client_close(c);
}

static int all_ended(void) { return ended >= target; }

void phase_hostile(const struct Command *k) {
    struct Cpu from, to;
    goal = (struct Goal){k->port, answered, fell, first_chunk};
    rules = (struct EngineRules){.mode = AT_ONCE, .chunks = 32};
    memset(statuses, 0, sizeof statuses);
    begun = ended = 0;
    only = k->kind;
    dropped = good = good_failed = 0;
    target = k->count;
    meter_read(&from);
    for (int i = 0; i < k->conns; i++) next(client_new(&goal, i));
    loop_until(all_ended, now_ns() + (uint64_t)(k->seconds * 1e9));
    meter_read(&to);
    meter_tell(&from, &to);
    fprintf(out, "\"served\":%d,\"asked\":%d,\"good\":%lu,\"good_failed\":%lu,\"dropped\":%lu,\"statuses\":[%lu,%lu,%lu,%lu,%lu],", ended, begun, good,
        good_failed, dropped, statuses[0] + statuses[1], statuses[2], statuses[3], statuses[4], statuses[5]);
    for (int i = 0; i < k->conns; i++) client_free(clients[i]);
    for (int i = 0; i < SLEEPERS; i++) {
        if (sleepers[i]) client_free(sleepers[i]);
        sleepers[i] = NULL;
    }
}
