// An open-loop HTTP/1.1 load generator: requests of three classes leave at random times that are fixed beforehand.
//
//   load PORT SECONDS WARM_UP_S RATE DEADLINE_MS SHARED CONNECTIONS REQUEST SHARE CONNECTIONS REQUEST SHARE ...
//
// RATE: requests per second of all classes (Poisson arrivals); 0: a closed loop of all connections of the first class.
// SHARED: 1 where all classes use the connections of the first, 0 where each has its own.
// For each class: its connections, a file with one whole request, and its share of the rate.
//
// A latency counts from the moment when the request was due, waiting for a free connection included, to the last byte.
// Written in C since a generator in Python takes as much of a core per request as the server that it measures.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { CLASSES = 3, ROOM = 1 << 16, EVENTS = 256 };

typedef struct {
    double due;
    int class;
} Arrival;

typedef struct Connection {
    int fd, class, busy;
    size_t sent, read;
    double due;
    char buffer[ROOM];
    struct Connection *next;  // of those that are free
} Connection;

typedef struct {
    Connection *free;
    Arrival *queue;  // those that are due and wait for a connection
    size_t head, tail, room;
} Pool;

typedef struct {
    char *request;
    size_t length;
    double share;
    long offered, good, in_time, full, late_504, other, failed;
    float *latencies;
    size_t room;
} Class;

static Class classes[CLASSES];
static Pool pools[CLASSES];
static int port, shared, epoll;
static double deadline_s, from, until;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void open_connection(Connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &wanted)) die("epoll_ctl");
}

static Pool *pool_of(int class) { return &pools[shared ? 0 : class]; }

static void release(Connection *c, int pool) {
    c->busy = 0;
    c->next = pools[pool].free;
    pools[pool].free = c;
}

static int transmit(Connection *c) {
    Class *of = &classes[c->class];
    while (c->sent < of->length) {
        ssize_t n = write(c->fd, of->request + c->sent, of->length - c->sent);
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        c->sent += n;
    }
    return 0;
}

static void note(Connection *c, int status, double at) {
    Class *of = &classes[c->class];
    if (c->due < from) return;
    if (status == 429 || status == 503) of->full++;
    else if (status == 504) of->late_504++;
    else if (status != 200) of->other++;
    else {
        if ((size_t)of->good == of->room && !(of->latencies = realloc(of->latencies, (of->room = 2 * of->room + 4096) * sizeof(float))))
            die("realloc");
        of->latencies[of->good++] = at - c->due;
        of->in_time += at - c->due <= deadline_s;
    }
}

// The status of a whole answer; 0: more is to come; -1: the connection is broken.
static int receive(Connection *c) {
    for (;;) {
        if (c->read >= ROOM - 1) return -1;
        ssize_t n = read(c->fd, c->buffer + c->read, ROOM - 1 - c->read);
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        if (n == 0) return -1;
        c->read += n;
        c->buffer[c->read] = 0;
        char *end = strstr(c->buffer, "\r\n\r\n"), *field = strcasestr(c->buffer, "\r\ncontent-length:");
        if (end && (!field || field > end)) return -1;
        if (end && c->read >= (size_t)(end + 4 - c->buffer) + atol(field + 17)) return atoi(c->buffer + 9);
    }
}

static void restart(Connection *c, int pool) {
    if (c->busy && c->due >= from) classes[c->class].failed++;
    close(c->fd);
    open_connection(c);
    release(c, pool);
}

static void begin(int pool, Arrival a) {
    Connection *c = pools[pool].free;
    pools[pool].free = c->next;
    c->busy = 1, c->class = a.class, c->due = a.due, c->sent = c->read = 0;
    if (transmit(c)) restart(c, pool);
}

static void wait_for_connection(Pool *p, Arrival a) {
    if (p->tail == p->room && !(p->queue = realloc(p->queue, (p->room = 2 * p->room + 4096) * sizeof(Arrival)))) die("realloc");
    p->queue[p->tail++] = a;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double quantile(Class *of, double part) { return of->good ? 1e3 * of->latencies[(long)(part * (of->good - 1))] : 0; }

int main(int count, char **given) {
    if (count != 7 + 3 * CLASSES) return fprintf(stderr, "see the head of the source\n"), 2;
    port = atoi(given[1]), deadline_s = atof(given[5]) / 1e3, shared = atoi(given[6]);
    double seconds = atof(given[2]), warm_up_s = atof(given[3]), rate = atof(given[4]), total = 0, worst_s = 0;
    epoll = epoll_create1(0);
    for (int k = 0; k < CLASSES; k++) {
        char **of = given + 7 + 3 * k;
        FILE *file = fopen(of[1], "rb");
        if (!file) die(of[1]);
        fseek(file, 0, SEEK_END);
        classes[k].length = ftell(file), rewind(file);
        classes[k].request = malloc(classes[k].length);
        if (fread(classes[k].request, 1, classes[k].length, file) != classes[k].length) die("fread");
        fclose(file);
        total += classes[k].share = atof(of[2]);
        for (int i = atoi(of[0]); i > 0 && !(shared && k); i--) {
            Connection *c = calloc(1, sizeof *c);
            open_connection(c), release(c, k);
        }
    }
    srand48(11);
    from = now() + 0.1 + warm_up_s, until = from + seconds;
    double next = from - warm_up_s;
    for (double t; (t = now()) < until + (rate > 0);) {
        for (; rate > 0 && next <= t && next < until; next -= log(1 - drand48()) / rate) {
            double pick = drand48() * total;
            Arrival a = {next, pick < classes[0].share ? 0 : pick < classes[0].share + classes[1].share ? 1 : 2};
            if (next >= from) classes[a.class].offered++, worst_s = fmax(worst_s, t - next);
            wait_for_connection(pool_of(a.class), a);
        }
        for (int k = 0; k < CLASSES; k++)
            while (pools[k].free && pools[k].head < pools[k].tail) begin(k, pools[k].queue[pools[k].head++]);
        double pause = fmin(0.01, rate > 0 && next < until ? fmax(next - now(), 1e-4) : 0.01);
        struct timespec longest = {0, (long)(1e9 * pause)};
        struct epoll_event events[EVENTS];
        int ready = epoll_pwait2(epoll, events, EVENTS, &longest, NULL);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            int pool = (int)(pool_of(c->class) - pools), status;
            char none;
            if (!c->busy) {
                if (recv(c->fd, &none, 1, MSG_PEEK) == 0) close(c->fd), open_connection(c);
                continue;
            }
            if ((events[i].events & EPOLLOUT) && transmit(c)) restart(c, pool);
            else if ((status = receive(c)) < 0) restart(c, pool);
            else if (status) {
                double at = now();
                note(c, status, at);
                if (rate == 0 && at >= from && at < until) classes[0].offered++;
                if (c->sent < classes[c->class].length) restart(c, pool);
                else release(c, pool);
            }
        }
        while (rate == 0 && pools[0].free && now() < until) begin(0, (Arrival){now(), 0});
    }
    printf("{\"generator_late_ms\":%.2f,\"classes\":[", 1e3 * worst_s);
    for (int k = 0; k < CLASSES; k++) {
        Class *of = &classes[k];
        qsort(of->latencies, of->good, sizeof(float), ascending);
        printf("%s{\"offered\":%ld,\"good\":%ld,\"in_time\":%ld,\"full\":%ld,\"expired\":%ld,\"other\":%ld,\"failed\":%ld,"
               "\"p50_ms\":%.2f,\"p99_ms\":%.2f,\"max_ms\":%.2f}",
               k ? "," : "", of->offered, of->good, of->in_time, of->full, of->late_504, of->other, of->failed,
               quantile(of, 0.5), quantile(of, 0.99), quantile(of, 1));
    }
    printf("]}\n");
    return 0;
}
