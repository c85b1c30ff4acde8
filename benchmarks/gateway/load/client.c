/* One connection of the load: sends its request, reads the answer, counts chunks, tells its goal. */
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

struct Client *clients[MAX_CLIENTS];
const char *bearer = "bench-key", *model_name = "m";
static char buffer[262144];

static void number(char *at, int digits, unsigned value) {
    while (digits--) {
        at[digits] = (char)('0' + value % 10);
        value /= 10;
    }
}

/* A chat request of exactly `size` body bytes (at least 420): a shared system prompt of 256 bytes, a prompt that differs. */
void client_request(struct Client *c, const char *path, int stream, size_t size) {
    static const char words[] = "the quick engine answers each question in its turn and tells what it has measured ";
    free(c->request);
    char *body = malloc(size + 512), *at = body;
    at += sprintf(at, "{\"model\":\"%s\",\"stream\":%s,\"user\":\"u", model_name, stream ? "true" : "false");
    long user = at - body;
    at += sprintf(at, "0000\",\"max_tokens\":%d,\"messages\":[{\"role\":\"system\",\"content\":\"", rules.chunks > 64 ? rules.chunks : 64);
    for (int i = 0; i < 256; i++) *at++ = words[i % (int)(sizeof words - 1)];
    at += sprintf(at, "\"},{\"role\":\"user\",\"content\":\"#s%06d# n", c->slot);
    long serial = at - body;
    at += sprintf(at, "00000000 ");
    while ((size_t)(at - body) + 4 < size) {
        *at = words[(at - body) % (long)(sizeof words - 1)];
        at++;
    }
    at += sprintf(at, "\"}]}");
    size_t body_size = (size_t)(at - body);
    c->request = malloc(body_size + 1024);
    int head = sprintf(c->request,
        "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench/1\r\nAccept: */*\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n",
        path, bearer, body_size);
    memcpy(c->request + head, body, body_size);
    free(body);
    c->request_size = (size_t)head + body_size;
    c->user_at = c->request + head + user;
    c->serial_at = c->request + head + serial;
    c->stream = stream;
    client_vary(c);
}

void client_vary(struct Client *c) {
    static unsigned serial;
    number(c->serial_at, 8, ++serial);
    number(c->user_at, 4, serial * 7919u % 1000u);
}

struct Client *client_new(const struct Goal *goal, int slot) {
    struct Client *c = calloc(1, sizeof *c);
    c->io.fd = -1;
    c->goal = goal;
    c->slot = slot;
    c->timer.place = -1;
    if (slot >= 0) clients[slot] = c;
    return c;
}

static void flush(struct Client *c) {
    while (c->out_left) {
        ssize_t n = send(c->io.fd, c->out, c->out_left, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS) io_want(&c->io, EPOLLIN | EPOLLOUT);
            return; /* a broken connection shows itself when it is read */
        }
        c->out += n;
        c->out_left -= (size_t)n;
    }
    if (c->cut) {
        client_close(c);
        c->goal->failed(c);
    } else io_want(&c->io, c->deaf ? 0 : EPOLLIN);
}

static void count_chunks(void *arg, const char *data, size_t size) {
    struct Client *c = arg;
    int n = 0;
    for (const char *at = data, *end = data + size; (at = memchr(at, '~', (size_t)(end - at))); at++) n++;
    if (size >= 8) memcpy(c->tail, data + size - 8, 8);
    else {
        memmove(c->tail, c->tail + size, 8 - size);
        memcpy(c->tail + 8 - size, data, size);
    }
    if (!n || !c->stream) return;
    uint64_t now = now_ns();
    if (!c->got) c->first_ns = now;
    c->got += n;
    if (c->goal->chunks) c->goal->chunks(c, n, now);
}

static void failed(struct Client *c) {
    client_close(c);
    c->goal->failed(c);
}

static void received(struct Client *c, const char *data, size_t size) {
    while (size && c->busy) {
        if (!c->in_body) {
            size_t used;
            int whole = head_feed(&c->head, data, size, &used);
            if (whole < 0) failed(c);
            if (whole <= 0) return;
            data += used;
            size -= used;
            c->status = atoi(c->head.text + 9);
            if (c->status == 100) {
                c->head.size = 0;
                continue;
            }
            head_body(&c->head, &c->body, BODY_TO_CLOSE);
            const char *connection = head_field(&c->head, "connection");
            c->closing = connection && (connection[0] | 32) == 'c';
            c->in_body = 1;
        }
        long used = body_feed(&c->body, data, size, count_chunks, c);
        if (!c->busy) return;
        if (used < 0) {
            failed(c);
            return;
        }
        data += used;
        size -= (size_t)used;
        if (!c->body.done) return;
        c->finished = !memcmp(c->tail, "[DONE]", 6);
        c->busy = 0;
        c->answers++;
        if (c->closing) client_close(c);
        c->goal->done(c);
        return;
    }
}

static void client_ready(struct Io *io, uint32_t events) {
    struct Client *c = (struct Client *)io;
    if (events & EPOLLOUT) flush(c);
    if (c->io.fd < 0 || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t n = recv(io->fd, buffer, sizeof buffer, 0);
    if (n > 0) {
        received(c, buffer, (size_t)n);
        return;
    }
    if (n < 0 && errno == EAGAIN) return;
    int busy = c->busy, unanswered = !c->head.size && !c->in_body, reused = c->answers > 0;
    if (busy && c->in_body && c->body.kind == BODY_TO_CLOSE && n == 0) {
        c->finished = !memcmp(c->tail, "[DONE]", 6);
        client_close(c);
        c->goal->done(c);
        return;
    }
    client_close(c);
    if (!busy) return;
    if (unanswered && reused) {
        c->answers = 0; /* a kept connection that was closed under the request: sent once more, as clients do */
        client_send(c, c->began_ns);
    } else c->goal->failed(c);
}

int client_connect(struct Client *c) {
    int one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->goal->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->io = (struct Io){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), .ready = client_ready};
    if (c->io.fd < 0) die("socket");
    setsockopt(c->io.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->io.fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) {
        io_drop(&c->io);
        return -1;
    }
    c->open = 1;
    c->answers = 0;
    io_add(&c->io, EPOLLIN);
    return 0;
}

void client_send(struct Client *c, uint64_t began_ns) {
    c->began_ns = began_ns;
    c->first_ns = 0;
    c->got = c->in_body = c->status = c->finished = c->head.size = 0;
    memset(c->tail, 0, sizeof c->tail);
    c->engine = NULL;
    c->busy = 1;
    if (!c->open && client_connect(c)) {
        c->busy = 0;
        c->goal->failed(c);
        return;
    }
    c->out = c->request;
    c->out_left = c->cut ? (size_t)c->cut : c->request_size;
    flush(c);
}

void client_close(struct Client *c) {
    c->open = c->busy = 0;
    c->engine = NULL;
    c->out_left = 0;
    io_drop(&c->io);
}

void client_free(struct Client *c) {
    timer_stop(&c->timer);
    client_close(c);
    if (c->slot >= 0 && clients[c->slot] == c) clients[c->slot] = NULL;
    free(c->request);
    free(c->more);
    later_free(c);
}
