/* HTTP/1.1 as far as both ends of a gateway need it: whole heads, and bodies by length, by chunks or to the close. */
#define _GNU_SOURCE
#include "bench.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *find(const char *data, size_t size, const char *what) { return memmem(data, size, what, strlen(what)); }

int head_feed(struct Head *h, const char *data, size_t size, size_t *used) {
    size_t room = sizeof h->text - 1 - (size_t)h->size, take = size < room ? size : room;
    int before = h->size, from = before > 3 ? before - 3 : 0;
    memcpy(h->text + before, data, take);
    h->size += (int)take;
    char *end = memmem(h->text + from, (size_t)(h->size - from), "\r\n\r\n", 4);
    if (!end) return h->size == (int)sizeof h->text - 1 ? -1 : 0;
    h->size = (int)(end - h->text) + 4;
    h->text[h->size] = 0;
    *used = (size_t)(h->size - before);
    return 1;
}

const char *head_field(const struct Head *h, const char *name) {
    size_t n = strlen(name);
    for (const char *line = strchr(h->text, '\n'); line && line[1] != '\r'; line = strchr(line + 1, '\n')) {
        if (strncasecmp(line + 1, name, n) || line[1 + n] != ':') continue;
        for (line += n + 2; *line == ' ';) line++;
        return line;
    }
    return NULL;
}

void head_body(const struct Head *h, struct Body *b, enum BodyKind otherwise) {
    *b = (struct Body){.kind = otherwise};
    const char *value = head_field(h, "transfer-encoding");
    if (value && !strncasecmp(value, "chunked", 7)) {
        b->kind = BODY_CHUNKED;
        return;
    }
    if ((value = head_field(h, "content-length"))) {
        b->kind = BODY_LENGTH;
        b->left = strtoull(value, NULL, 10);
    }
    b->done = b->kind == BODY_LENGTH && b->left == 0;
}

enum { SIZE_LINE, SIZE_END, PAYLOAD, AFTER, AFTER_END, TRAILER, TRAILER_LINE, LAST };

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static long chunked(struct Body *b, const char *data, size_t size, void (*take)(void *, const char *, size_t), void *arg) {
    size_t i = 0;
    while (i < size && !b->done) {
        char c = data[i];
        switch (b->state) {
        case SIZE_LINE:
            if (digit(c) >= 0) b->left = b->left * 16 + (uint64_t)digit(c);
            else if (c == '\r') b->state = SIZE_END;
            else if (c != ';' && c != ' ') return -1;
            i++;
            break;
        case SIZE_END:
            if (c != '\n') return -1;
            b->state = b->left ? PAYLOAD : TRAILER;
            i++;
            break;
        case PAYLOAD: {
            size_t n = size - i < b->left ? size - i : (size_t)b->left;
            take(arg, data + i, n);
            i += n;
            b->left -= n;
            if (!b->left) b->state = AFTER;
            break;
        }
        case AFTER:
            if (c != '\r') return -1;
            b->state = AFTER_END;
            i++;
            break;
        case AFTER_END:
            if (c != '\n') return -1;
            b->state = SIZE_LINE;
            i++;
            break;
        case TRAILER:
            b->state = c == '\r' ? LAST : TRAILER_LINE;
            i++;
            break;
        case TRAILER_LINE:
            if (c == '\n') b->state = TRAILER;
            i++;
            break;
        default:
            if (c != '\n') return -1;
            b->done = 1;
            i++;
        }
    }
    return (long)i;
}

long body_feed(struct Body *b, const char *data, size_t size, void (*take)(void *, const char *, size_t), void *arg) {
    if (b->done) return 0;
    if (b->kind == BODY_CHUNKED) return chunked(b, data, size, take, arg);
    size_t n = b->kind == BODY_LENGTH && size > b->left ? (size_t)b->left : size;
    take(arg, data, n);
    if (b->kind == BODY_LENGTH && !(b->left -= n)) b->done = 1;
    return (long)n;
}
