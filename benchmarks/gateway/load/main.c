/* bench ENGINE_PORT [ENGINE_PORT ...]: serves as the engines; commands on stdin, one JSON line each on stdout.
 *
 *     PHASE key=value ...      PHASE: sat credit flood many rate ttft large cancel hostile spin wait set
 *
 * `set` keeps bearer, path, model and the pids whose CPU time is read.  Engines serve while it waits for commands.
 */
#define _GNU_SOURCE
#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

FILE *out;
const char *path = "/v1/chat/completions";
static char line[4096];
static size_t line_size;
static int line_whole, stdin_ended;

static void stdin_ready(struct Io *io, uint32_t events) {
    (void)events;
    ssize_t n = read(io->fd, line + line_size, 1);
    if (n <= 0) {
        stdin_ended = 1;
        return;
    }
    if (line[line_size] == '\n') {
        line[line_size] = 0;
        line_whole = 1;
        io_want(io, 0);
    } else if (line_size < sizeof line - 1) line_size++;
}

static int line_or_end(void) { return line_whole || stdin_ended; }

static void put(struct Command *k, const char *name, const char *value) {
    double number = strtod(value, NULL);
    const struct {
        const char *name;
        double *at;
    } reals[] = {{"seconds", &k->seconds}, {"warm", &k->warm}, {"rate", &k->rate}, {"gap_ms", &k->gap_ms}};
    const struct {
        const char *name;
        int *at;
    } wholes[] = {{"conns", &k->conns}, {"chunks", &k->chunks}, {"count", &k->count}, {"port", &k->port}, {"direct", &k->direct_port}, {"kind", &k->kind}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (!strcmp(name, reals[i].name)) *reals[i].at = number;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (!strcmp(name, wholes[i].name)) *wholes[i].at = (int)number;
    if (!strcmp(name, "size")) k->size = (size_t)number;
    if (!strcmp(name, "mode")) snprintf(k->mode, sizeof k->mode, "%s", value);
    if (!strcmp(name, "bearer")) bearer = strdup(value);
    if (!strcmp(name, "path")) path = strdup(value);
    if (!strcmp(name, "model")) model_name = strdup(value);
    if (!strcmp(name, "pids")) meter_pids(value);
}

static void obey(char *text) {
    struct Command k = {.seconds = 2, .warm = 0.5, .rate = 200, .conns = 32, .chunks = 128, .count = 10, .gap_ms = 5, .size = 1024, .kind = -1};
    char *save, *word = strtok_r(text, " ", &save), *phase = word ? word : "";
    while ((word = strtok_r(NULL, " ", &save))) {
        char *equal = strchr(word, '=');
        if (!equal) continue;
        *equal = 0;
        put(&k, word, equal + 1);
    }
    fprintf(out, "{\"phase\":\"%s\",\"spin_ns\":%lu,", phase, spin_ns());
    if (!k.mode[0]) snprintf(k.mode, sizeof k.mode, "%s", phase);
    if (!strcmp(phase, "sat")) phase_closed(&k);
    else if (!strcmp(phase, "credit") || !strcmp(phase, "flood")) {
        k.stream = 1;
        phase_closed(&k);
    } else if (!strcmp(phase, "many")) phase_many(&k);
    else if (!strcmp(phase, "rate")) phase_rate(&k);
    else if (!strcmp(phase, "ttft")) {
        k.stream = 1;
        phase_rate(&k);
    } else if (!strcmp(phase, "large")) phase_large(&k);
    else if (!strcmp(phase, "cancel")) phase_cancel(&k);
    else if (!strcmp(phase, "hostile")) phase_hostile(&k);
    else if (!strcmp(phase, "wait")) loop_until(NULL, now_ns() + (uint64_t)(k.seconds * 1e9));
    else if (strcmp(phase, "set") && strcmp(phase, "spin")) fprintf(out, "\"unknown\":true,");
    fprintf(out, "\"ended\":true}\n");
    fflush(out);
    loop_until(NULL, now_ns() + 50000000u); /* closes reach the gateway and its engine connections */
}

int main(int argc, char **argv) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    out = stdout;
    for (int i = 1; i < argc; i++) engine_listen(atoi(argv[i]));
    struct Io commands = {.fd = 0, .ready = stdin_ready};
    io_add(&commands, EPOLLIN);
    printf("{\"ready\":true}\n");
    fflush(out);
    while (!stdin_ended) {
        loop_until(line_or_end, UINT64_MAX);
        if (!line_whole) continue;
        line_whole = 0;
        line_size = 0;
        obey(line);
        io_want(&commands, EPOLLIN);
    }
    return 0;
}
