/* The mock engine: an OpenAI-style server that answers what the phase says, and knows which client it serves.
 *
 * A stream is a cursor in one prepared text, `head chunk chunk ... tail`, and a limit up to which it may be sent: all of
 * it, the next chunk when a credit came, the next chunk when its time came.  Every chunk is 200 bytes of event with
 * another word and exactly one `~`, so that clients can count chunks however a gateway splits, joins or rewrites them.
 *
 * A request names its client as `#s000042#` in the prompt; `#S000042#` asks for a stream without end.
 */
#define _GNU_SOURCE
#include "bench.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct Text {
    int chunks;
    size_t size, ends[MAX_CHUNKS + 1]; /* ends[0] = of the head; ends[i] = of chunk i; size = with the tail */
    char *bytes;
};

struct EngineConn {
    struct Io io;
    struct Head head;
    struct Body body;
    int in_body, busy, slot, closed;
    char kept[16384]; /* the beginning of the request's body */
    int kept_size;
    const struct Text *text;
    enum Mode mode;
    size_t sent, limit;
    int chunk; /* chunks allowed so far */
    struct Timer timer;
    uint64_t due_ns;
};

struct EngineRules rules = {.mode = AT_ONCE, .chunks = 128};
struct EngineCounts engine_counts;
static struct Text *texts[2];
static char plain[2048], other[8][2048];
static size_t plain_size;
static char buffer[262144];

static struct Text *text_new(int chunks, int usage) {
    struct Text *t = calloc(1, sizeof *t);
    t->chunks = chunks;
    t->bytes = malloc((size_t)chunks * 256 + 4096);
    char *at = t->bytes;
    at += sprintf(at, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n");
    t->ends[0] = (size_t)(at - t->bytes);
    for (int i = 0; i < chunks; i++) {
        char event[256];
        int n = sprintf(event,
            "data: {\"id\":\"chatcmpl-7c1d0e5a9b34\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"%.20s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" w%04d", "m", i);
        const char *rest = "~\"},\"finish_reason\":null}]}\n\n";
        for (; n + (int)strlen(rest) < 200; n++) event[n] = (char)('a' + (i + n) % 26);
        n += sprintf(event + n, "%s", rest);
        at += sprintf(at, "%x\r\n%s\r\n", n, event);
        t->ends[i + 1] = (size_t)(at - t->bytes);
    }
    char tail[1024];
    int n = sprintf(tail, "data: {\"id\":\"chatcmpl-7c1d0e5a9b34\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    if (usage)
        n += sprintf(tail + n, "data: {\"id\":\"chatcmpl-7c1d0e5a9b34\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":250,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n", chunks, chunks + 250);
    n += sprintf(tail + n, "data: [DONE]\n\n");
    at += sprintf(at, "%x\r\n%s\r\n0\r\n\r\n", n, tail);
    t->size = (size_t)(at - t->bytes);
    return t;
}

/* Texts of other lengths stay for connections that are still in them; a run has a handful. */
static const struct Text *text_for(int usage) {
    if (!texts[usage] || texts[usage]->chunks != rules.chunks) texts[usage] = text_new(rules.chunks, usage);
    return texts[usage];
}

static size_t answer(char *to, const char *kind, const char *body) {
    return (size_t)sprintf(to, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s", kind, strlen(body), body);
}

static void prepare(void) {
    char body[1024];
    int n = sprintf(body, "{\"id\":\"chatcmpl-7c1d0e5a9b34\",\"object\":\"chat.completion\",\"created\":1790000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
    while (n < 382) n += sprintf(body + n, "%s", "a mean answer ");
    sprintf(body + n, "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":250,\"completion_tokens\":60,\"total_tokens\":310}}");
    plain_size = answer(plain, "application/json", body);
    answer(other[0], "application/json", "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1790000000,\"owned_by\":\"mock\"}]}");
    answer(other[1], "text/plain; version=0.0.4",
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 1\n"
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} 0\n"
        "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0.1\n");
    answer(other[2], "application/json", "{\"model_path\":\"m\",\"served_model_name\":\"m\",\"is_generation\":true,\"version\":\"0\",\"token_ids\":[1],\"count\":1}");
}

static struct Client *client_of(struct EngineConn *e) {
    return e->slot >= 0 && e->slot < MAX_CLIENTS ? clients[e->slot] : NULL;
}

static void unbusy(struct EngineConn *e) {
    struct Client *c = client_of(e);
    if (c && c->engine == e) c->engine = NULL;
    timer_stop(&e->timer);
    e->busy = 0;
}

static void conn_end(struct EngineConn *e) {
    if (e->closed) return;
    e->closed = 1;
    int busy = e->busy, slot = e->slot;
    unbusy(e);
    io_drop(&e->io);
    later_free(e);
    if (!busy) return;
    engine_counts.aborted++;
    if (rules.left) rules.left(slot);
}

/* Sends up to the limit; what the socket does not take waits for room. */
static void push(struct EngineConn *e) {
    for (;;) {
        ssize_t n = 0;
        if (e->limit > e->sent) {
            n = send(e->io.fd, e->text->bytes + e->sent, e->limit - e->sent, MSG_NOSIGNAL);
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
                io_want(&e->io, EPOLLIN | EPOLLOUT);
                return;
            }
            if (n < 0) {
                conn_end(e);
                return;
            }
            e->sent += (size_t)n;
        }
        if (e->sent < e->limit) continue;
        if (e->mode == FLOOD && e->chunk < e->text->chunks) {
            e->chunk++;
            e->limit = e->chunk == e->text->chunks ? e->text->size : e->text->ends[e->chunk];
            continue;
        }
        if (e->mode == ENDLESS) {
            e->sent = e->text->ends[0];
            e->limit = e->text->ends[e->text->chunks];
            continue;
        }
        if (e->sent == e->text->size) {
            io_want(&e->io, EPOLLIN);
            unbusy(e);
        }
        return;
    }
}

static void next_chunk(struct EngineConn *e) {
    struct Client *c = client_of(e);
    if (c) c->sent_ns = now_ns();
    e->chunk++;
    e->limit = e->chunk >= e->text->chunks ? e->text->size : e->text->ends[e->chunk];
    push(e);
}

void engine_grant(struct EngineConn *e) {
    if (e && e->busy && e->mode == CREDIT && e->chunk < e->text->chunks) next_chunk(e);
}

static void chunk_due(struct Timer *t) {
    struct EngineConn *e = (struct EngineConn *)((char *)t - offsetof(struct EngineConn, timer));
    e->due_ns += rules.gap_ns;
    if (e->chunk + 1 < e->text->chunks) timer_start(t, e->due_ns);
    next_chunk(e);
}

static void stream_begin(struct EngineConn *e) {
    e->text = text_for(find(e->kept, (size_t)e->kept_size, "\"include_usage\":true") || find(e->kept, (size_t)e->kept_size, "\"include_usage\": true"));
    e->sent = 0;
    e->chunk = 0;
    e->limit = e->text->ends[0];
    if (e->mode == HOLD) return;
    if (e->mode == AT_ONCE || e->mode == ENDLESS) {
        struct Client *c = client_of(e);
        if (c) c->sent_ns = now_ns();
        e->chunk = e->text->chunks;
        e->limit = e->mode == ENDLESS ? e->text->ends[e->chunk] : e->text->size;
        push(e);
    } else if (e->mode == CREDIT) next_chunk(e);
    else if (e->mode == HEAD_ONLY || e->mode == FLOOD) push(e);
    else if (rules.first_gap_ns) {
        push(e);
        e->due_ns = now_ns() + rules.first_gap_ns;
        timer_start(&e->timer, e->due_ns);
    } else {
        e->due_ns = now_ns();
        chunk_due(&e->timer);
    }
}

static void reply(struct EngineConn *e, const char *bytes, size_t size) {
    if (send(e->io.fd, bytes, size, MSG_NOSIGNAL) != (ssize_t)size) conn_end(e);
}

static void request_whole(struct EngineConn *e) {
    const char *line = e->head.text;
    int post = !strncmp(line, "POST ", 5);
    const char *path_end = strchr(line + 5, ' ');
    size_t path_size = path_end ? (size_t)(path_end - line) : 0;
    if (!post || find(line, path_size, "/render") || find(line, path_size, "tokenize")) {
        engine_counts.other++;
        const char *r = find(line, path_size, "/models") ? other[0] : find(line, path_size, "/metrics") ? other[1] : other[2];
        reply(e, r, strlen(r));
        return;
    }
    engine_counts.requests++;
    size_t n = (size_t)e->kept_size;
    const char *mark = find(e->kept, n, "#s");
    int endless = 0;
    if (!mark && (mark = find(e->kept, n, "#S"))) endless = 1;
    e->slot = mark ? atoi(mark + 2) : -1;
    e->busy = 1;
    struct Client *c = client_of(e);
    if (c) c->engine = e;
    int stream = find(e->kept, n, "\"stream\":true") || find(e->kept, n, "\"stream\": true");
    e->mode = endless ? ENDLESS : rules.mode;
    if (stream) stream_begin(e);
    else if (e->mode != HOLD && e->mode != HEAD_ONLY) {
        reply(e, plain, plain_size);
        if (!e->closed) unbusy(e);
    }
    if (rules.arrived && !e->closed) rules.arrived(e, e->slot);
}

static void keep(void *arg, const char *data, size_t size) {
    struct EngineConn *e = arg;
    engine_counts.body_bytes += size;
    size_t room = sizeof e->kept - (size_t)e->kept_size, n = size < room ? size : room;
    memcpy(e->kept + e->kept_size, data, n);
    e->kept_size += (int)n;
}

static void received(struct EngineConn *e, const char *data, size_t size) {
    while (size && !e->closed) {
        if (!e->in_body) {
            size_t used;
            int whole = head_feed(&e->head, data, size, &used);
            if (whole < 0) conn_end(e);
            if (whole <= 0) return;
            data += used;
            size -= used;
            head_body(&e->head, &e->body, BODY_LENGTH);
            if (e->body.kind == BODY_LENGTH && !e->body.left) e->body.done = 1;
            e->in_body = 1;
            e->kept_size = 0;
            if (head_field(&e->head, "expect")) reply(e, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        }
        long used = body_feed(&e->body, data, size, keep, e);
        if (used < 0) {
            conn_end(e);
            return;
        }
        data += used;
        size -= (size_t)used;
        if (!e->body.done) return;
        request_whole(e);
        e->in_body = 0;
        e->head.size = 0;
    }
}

static void conn_ready(struct Io *io, uint32_t events) {
    struct EngineConn *e = (struct EngineConn *)io;
    if (events & EPOLLOUT) push(e);
    if (e->closed || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t n = recv(io->fd, buffer, sizeof buffer, 0);
    if (n > 0) received(e, buffer, (size_t)n);
    else if (n == 0 || errno != EAGAIN) conn_end(e);
}

static void accept_ready(struct Io *io, uint32_t events) {
    (void)events;
    for (int i = 0; i < 64; i++) {
        int fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct EngineConn *e = calloc(1, sizeof *e);
        e->io = (struct Io){.fd = fd, .ready = conn_ready};
        e->slot = -1;
        e->timer = (struct Timer){.place = -1, .fire = chunk_due};
        engine_counts.connections++;
        io_add(&e->io, EPOLLIN);
    }
}

void engine_listen(int port) {
    if (!plain_size) prepare();
    struct Io *io = calloc(1, sizeof *io);
    int one = 1;
    *io = (struct Io){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), .ready = accept_ready};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(io->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(io->fd, (struct sockaddr *)&a, sizeof a) || listen(io->fd, 4096)) die("engine port");
    io_add(io, EPOLLIN);
}
