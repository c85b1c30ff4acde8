/* One process that is both the engine behind a gateway and the clients in front of it.
 *
 * Being one process is the point: the engine knows at once what a client has received, so that a chunk can be sent
 * exactly when the one before has arrived, and a delay is a difference of one clock.
 *
 *     loop.c    epoll, timers, the clock          http.c     heads and bodies of HTTP/1.1, both directions
 *     engine.c  the OpenAI-style mock             client.c   one connection of the load
 *     phases.c  loads in a closed loop            paced.c    loads by a schedule
 *     cancel.c  clients that leave                hostile.c  clients that mean harm
 *     meter.c   CPU time, percentiles             main.c     commands on stdin, one JSON line each on stdout
 */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- loop.c ---- */
struct Io {
    int fd;
    void (*ready)(struct Io *, uint32_t events);
    uint32_t wanted;
};
struct Timer {
    uint64_t at_ns;
    int place; /* in the heap; -1 = not running */
    void (*fire)(struct Timer *);
};
uint64_t now_ns(void);
void io_add(struct Io *, uint32_t events);
void io_want(struct Io *, uint32_t events);
void io_drop(struct Io *); /* closes it */
void timer_start(struct Timer *, uint64_t at_ns);
void timer_stop(struct Timer *);
void loop_until(int (*over)(void), uint64_t at_ns); /* runs until over() or the time; over may be NULL */
void later_free(void *);                            /* freed when the events of this turn are done */
double dice(void);                                  /* uniform in [0, 1) */
void die(const char *what);

/* ---- http.c ---- */
enum BodyKind { BODY_LENGTH, BODY_CHUNKED, BODY_TO_CLOSE };
struct Body {
    enum BodyKind kind;
    uint64_t left; /* of the body, or of the chunk being read */
    int state, done;
};
/* Payload bytes go to take(); returns how many bytes were used, or -1 when it is no HTTP. */
long body_feed(struct Body *, const char *data, size_t size, void (*take)(void *, const char *, size_t), void *arg);
struct Head {
    char text[8192];
    int size;
};
/* Adds bytes until the head is whole: 1 = whole (used tells how many of these bytes), 0 = more, -1 = too large. */
int head_feed(struct Head *, const char *data, size_t size, size_t *used);
const char *head_field(const struct Head *, const char *name); /* the value, or NULL */
void head_body(const struct Head *, struct Body *, enum BodyKind otherwise);
const char *find(const char *data, size_t size, const char *what);

/* ---- engine.c ---- */
enum Mode { AT_ONCE, FLOOD, CREDIT, PACED, ENDLESS, HOLD, HEAD_ONLY }; /* FLOOD: at once, one send() a chunk */
struct Client;
struct EngineConn;
struct EngineRules {
    enum Mode mode;
    uint64_t gap_ns;                           /* PACED */
    uint64_t first_gap_ns;                     /* PACED: before the first chunk */
    int chunks;                                /* of a stream */
    void (*arrived)(struct EngineConn *, int); /* a request is whole; its client's slot or -1 */
    void (*left)(int slot);                    /* an unfinished request's connection ended */
};
extern struct EngineRules rules;
struct EngineCounts {
    uint64_t requests, other, aborted, body_bytes, connections;
};
extern struct EngineCounts engine_counts;
void engine_listen(int port);
void engine_grant(struct EngineConn *); /* CREDIT: the next chunk may go */
#define MAX_CHUNKS 512

/* ---- client.c ---- */
#define MAX_CLIENTS 8192
struct Goal { /* whom to call, and what to tell when something happens */
    int port;
    void (*done)(struct Client *);                        /* an answer is whole (check status, finished, chunks) */
    void (*failed)(struct Client *);                      /* the connection ended or broke before that */
    void (*chunks)(struct Client *, int count, uint64_t); /* so many more chunks have arrived; may be NULL */
};
struct Client {
    struct Io io;
    const struct Goal *goal;
    int slot, open, busy, direct;
    const char *out; /* what is still to be sent of the request */
    size_t out_left;
    char *request; /* this client's own copy, so that numbers in it may differ */
    size_t request_size;
    char *user_at, *serial_at;
    struct Head head;
    struct Body body;
    int in_body, status, stream, closing, deaf, cut;
    int got; /* chunks of this answer */
    int finished;
    char tail[8];
    uint64_t began_ns, first_ns, answers;
    struct EngineConn *engine; /* who serves it now */
    uint64_t sent_ns;          /* when the engine sent its last chunk */
    struct Timer timer;
    void *more;
};
extern struct Client *clients[MAX_CLIENTS];
struct Client *client_new(const struct Goal *, int slot);
int client_connect(struct Client *);                /* 0 = under way */
void client_send(struct Client *, uint64_t began_ns); /* its request, on its connection (made when there is none) */
void client_close(struct Client *);
void client_free(struct Client *);
void client_request(struct Client *, const char *path, int stream, size_t size);
void client_vary(struct Client *); /* another serial number and another user */
extern const char *bearer, *model_name;

/* ---- meter.c ---- */
#define MAX_PIDS 32
struct Cpu {
    uint64_t by_pid[MAX_PIDS], own, at_ns;
};
void meter_pids(const char *comma_list);
void meter_read(struct Cpu *);
void meter_tell(const struct Cpu *from, const struct Cpu *to);
uint64_t spin_ns(void);
struct Sample {
    uint32_t *us10; /* tenths of a microsecond */
    size_t count, room;
};
void sample_add(struct Sample *, uint64_t ns);
void sample_tell(const char *name, struct Sample *); /* sorts and empties it */
extern FILE *out;

/* ---- the phases ---- */
struct Command {
    double seconds, warm, rate;
    int conns, chunks, count, port, direct_port, stream;
    int kind; /* of hostile requests; -1 = all, 99 = only clients that never read */
    double gap_ms;
    size_t size;
    char mode[16];
};
void phase_closed(const struct Command *); /* sat, credit, flood */
void phase_many(const struct Command *);
void phase_rate(const struct Command *); /* rate, ttft */
void phase_large(const struct Command *);
void phase_cancel(const struct Command *);
void phase_hostile(const struct Command *);

#endif
