/* epoll, a heap of timers and the clock.  Level-triggered; a turn's freed things live until its events are handled. */
#define _GNU_SOURCE
#include "bench.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static int poll_fd = -1;
static struct Timer **heap;
static int heap_size, heap_room;
static void **garbage;
static int garbage_size, garbage_room;

void die(const char *what) {
    perror(what);
    exit(1);
}

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double dice(void) {
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static void control(int what, struct Io *io, uint32_t events) {
    if (poll_fd < 0 && (poll_fd = epoll_create1(0)) < 0) die("epoll");
    struct epoll_event e = {.events = events, .data.ptr = io};
    if (epoll_ctl(poll_fd, what, io->fd, &e) < 0) die("epoll_ctl");
    io->wanted = events;
}

void io_add(struct Io *io, uint32_t events) { control(EPOLL_CTL_ADD, io, events); }
void io_want(struct Io *io, uint32_t events) {
    if (io->wanted != events) control(EPOLL_CTL_MOD, io, events);
}
void io_drop(struct Io *io) {
    if (io->fd >= 0) close(io->fd);
    io->fd = -1;
}

void later_free(void *p) {
    if (garbage_size == garbage_room) {
        garbage_room = garbage_room ? garbage_room * 2 : 64;
        garbage = realloc(garbage, (size_t)garbage_room * sizeof *garbage);
    }
    garbage[garbage_size++] = p;
}

static void put(int place, struct Timer *t) {
    heap[place] = t;
    t->place = place;
}

static void up(int i, struct Timer *t) {
    for (; i > 0 && heap[(i - 1) / 2]->at_ns > t->at_ns; i = (i - 1) / 2) put(i, heap[(i - 1) / 2]);
    put(i, t);
}

static void down(int i, struct Timer *t) {
    for (;;) {
        int child = 2 * i + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && heap[child + 1]->at_ns < heap[child]->at_ns) child++;
        if (heap[child]->at_ns >= t->at_ns) break;
        put(i, heap[child]);
        i = child;
    }
    put(i, t);
}

void timer_stop(struct Timer *t) {
    if (t->place < 0) return;
    int place = t->place;
    t->place = -1;
    struct Timer *last = heap[--heap_size];
    if (last == t) return;
    if (place > 0 && heap[(place - 1) / 2]->at_ns > last->at_ns) up(place, last);
    else down(place, last);
}

void timer_start(struct Timer *t, uint64_t at_ns) {
    timer_stop(t);
    t->at_ns = at_ns;
    if (heap_size == heap_room) {
        heap_room = heap_room ? heap_room * 2 : 256;
        heap = realloc(heap, (size_t)heap_room * sizeof *heap);
    }
    up(heap_size++, t);
}

/* One wait, its events, then the timers that are due. */
static void turn(uint64_t until_ns) {
    struct epoll_event events[256];
    uint64_t now = now_ns();
    if (heap_size && heap[0]->at_ns < until_ns) until_ns = heap[0]->at_ns;
    uint64_t wait = until_ns > now ? until_ns - now : 0;
    struct timespec t = {.tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u)};
    int n = epoll_pwait2(poll_fd, events, 256, &t, NULL);
    if (n < 0 && errno != EINTR) die("epoll_pwait2");
    for (int i = 0; i < n; i++) {
        struct Io *io = events[i].data.ptr;
        if (io->fd >= 0) io->ready(io, events[i].events);
    }
    now = now_ns();
    while (heap_size && heap[0]->at_ns <= now) {
        struct Timer *due = heap[0];
        timer_stop(due);
        due->fire(due);
    }
    for (int i = 0; i < garbage_size; i++) free(garbage[i]);
    garbage_size = 0;
}

void loop_until(int (*over)(void), uint64_t at_ns) {
    while (now_ns() < at_ns && !(over && over())) turn(at_ns);
}
