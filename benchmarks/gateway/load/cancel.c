/* Clients that leave: from the client's close to the engine's end of connection.
 *
 * plain = before the first byte of a plain answer; token = after the head of a stream, before its first chunk, with the
 * engine silent; middle = after three chunks of a stream that gets one each 20 ms.
 */
#include "bench.h"
#include <string.h>

extern const char *path;
static uint64_t left_ns;
static int has_arrived, ended, chunks_seen;
static struct Sample delays;

static void arrived(struct EngineConn *e, int slot) {
    (void)e;
    (void)slot;
    has_arrived = 1;
}
static void left(int slot) {
    (void)slot;
    left_ns = now_ns();
}
static void over(struct Client *c) {
    (void)c;
    ended = 1;
}
static void chunk_came(struct Client *c, int n, uint64_t now) {
    (void)c;
    (void)now;
    chunks_seen += n;
}
static int is_arrived(void) { return has_arrived || ended; }
static int in_middle(void) { return chunks_seen >= 3 || ended; }
static int is_left(void) { return left_ns != 0; }

void phase_cancel(const struct Command *k) {
    static struct Goal goal;
    int middle = !strcmp(k->mode, "middle"), stream = strcmp(k->mode, "plain") != 0, seen = 0, unready = 0;
    goal = (struct Goal){k->port, over, over, chunk_came};
    rules = (struct EngineRules){.mode = middle ? PACED : stream ? HEAD_ONLY : HOLD, .chunks = MAX_CHUNKS, .gap_ns = 20000000, .arrived = arrived, .left = left};
    for (int i = 0; i < k->count; i++) {
        struct Client *c = client_new(&goal, i);
        has_arrived = ended = chunks_seen = 0;
        left_ns = 0;
        client_request(c, path, stream, k->size);
        client_send(c, now_ns());
        loop_until(middle ? in_middle : is_arrived, now_ns() + 3000000000u);
        loop_until(NULL, now_ns() + 30000000u);
        if (ended || left_ns || !(middle ? chunks_seen >= 3 : has_arrived)) unready++;
        else {
            uint64_t from = now_ns();
            client_close(c);
            loop_until(is_left, from + 2000000000u);
            if (left_ns) {
                sample_add(&delays, left_ns - from);
                seen++;
            }
        }
        client_free(c);
        if (!left_ns && i >= 2 && !seen) break; /* this one does not cancel: three waits say so */
    }
    rules = (struct EngineRules){.mode = AT_ONCE, .chunks = 128};
    fprintf(out, "\"seen\":%d,\"unready\":%d,", seen, unready);
    sample_tell("delay_us", &delays);
}
