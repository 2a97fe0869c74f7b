/* A line between clients and a local port: every byte arrives half a round trip after it was sent.
 *
 * usage: line TARGET_PORT ROUND_TRIP_MS [BYTES_PER_SECOND]
 *
 * It listens on a free port of 127.0.0.1, prints that port, and ends when its standard input does. However many bytes
 * are on their way, they do not wait for each other, unless there is a rate: all connections share it. Opening costs
 * what it would cost: the far side hears of a client after one and a half round trips.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 256, STAMPS = 1 << 16, MOST_AT_ONCE = 1 << 20, LEAST_AT_ONCE = 16 << 10, SLOW_BUFFER = 64 << 10 };
#define IN_FLIGHT (64u << 20)
#define MS INT64_C(1000000)
#define NEVER INT64_MAX
/* Bytes that come so close together leave together: fewer wake-ups, and about what a wake-up is late. */
#define GRAIN (MS / 10)
/* With a rate: what the queue in front of the line holds before senders must wait. */
#define QUEUE (50 * MS)

/* Bytes before `end` arrive at `due`. */
typedef struct {
	int64_t due;
	uint64_t end;
} Stamp;

/* One direction of a connection: a ring of bytes, of which those before `ready` have arrived. */
typedef struct {
	int from, to;
	char *ring;
	Stamp *stamps;
	uint64_t head, ready, tail;
	uint32_t first, last;
	int64_t ends_at;
	int finished;
	int64_t *line_free_at;
} Way;

typedef struct {
	int near, far;
	int64_t dials_at;
	Way ways[2];
} Connection;

static Connection connections[CONNECTIONS];
static int count;
static struct sockaddr_in target = {.sin_family = AF_INET};
static int64_t half;
static double ns_per_byte;
static int64_t line_free_at[2];

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 * MS + t.tv_nsec;
}

static void sooner(int64_t *next, int64_t when)
{
	if (when < *next)
		*next = when;
}

static void *pages(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		_exit(1);
	return memory;
}

static void open_way(Way *way, int direction)
{
	*way = (Way){.from = -1, .to = -1, .ends_at = NEVER, .line_free_at = &line_free_at[direction]};
	way->ring = pages(IN_FLIGHT);
	way->stamps = pages(STAMPS * sizeof(Stamp));
}

static void close_way(Way *way)
{
	munmap(way->ring, IN_FLIGHT);
	munmap(way->stamps, STAMPS * sizeof(Stamp));
}

/* The ring's bytes from one position to another, in at most two pieces. */
static int pieces(const Way *way, uint64_t from, uint64_t to, struct iovec *out)
{
	size_t start = from % IN_FLIGHT, size = to - from, straight = IN_FLIGHT - start;
	out[0] = (struct iovec){way->ring + start, size < straight ? size : straight};
	out[1] = (struct iovec){way->ring, size < straight ? 0 : size - straight};
	return out[1].iov_len ? 2 : 1;
}

static void stamp(Way *way, int64_t due)
{
	Stamp *last = &way->stamps[(way->last - 1) % STAMPS];
	if (way->first != way->last && due - last->due < GRAIN)
		last->end = way->head;
	else
		way->stamps[way->last++ % STAMPS] = (Stamp){due, way->head};
}

/* Whether anything more may be put on its way; where only the rate forbids it, `next` is when that ends. */
static int has_room(const Way *way, int64_t t, int64_t *next)
{
	if (way->ends_at != NEVER || way->head - way->tail == IN_FLIGHT || way->last - way->first == STAMPS)
		return 0;
	if (ns_per_byte && *way->line_free_at - t > QUEUE) {
		sooner(next, *way->line_free_at - QUEUE);
		return 0;
	}
	return 1;
}

/* Put on its way what the sender has for us. Returns whether the connection is still good. */
static int receive(Way *way, int64_t t)
{
	struct iovec iov[2];
	uint64_t room = IN_FLIGHT - (way->head - way->tail), most = ns_per_byte ? LEAST_AT_ONCE : MOST_AT_ONCE;
	ssize_t n = readv(way->from, iov, pieces(way, way->head, way->head + (room < most ? room : most), iov));
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	int64_t leaves = t;
	if (ns_per_byte) {
		leaves = *way->line_free_at > t ? *way->line_free_at : t;
		leaves += (int64_t)(n * ns_per_byte);
		*way->line_free_at = leaves;
	}
	way->head += n;
	if (n)
		stamp(way, leaves + half);
	else
		way->ends_at = leaves + half;
	return 1;
}

/* Hand over everything whose time has come. Returns whether the connection is still good. */
static int deliver(Way *way, int64_t t)
{
	while (way->first != way->last && way->stamps[way->first % STAMPS].due <= t)
		way->ready = way->stamps[way->first++ % STAMPS].end;
	while (way->tail < way->ready) {
		struct iovec iov[2];
		ssize_t n = writev(way->to, iov, pieces(way, way->tail, way->ready, iov));
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		way->tail += n;
	}
	if (way->tail < way->head)
		return 1;
	/* Empty: begin again with the memory that is warm. */
	way->head = way->ready = way->tail = 0;
	if (way->ends_at <= t && !way->finished) {
		way->finished = 1;
		shutdown(way->to, SHUT_WR);
	}
	return 1;
}

/* What waits in the kernel would be one more queue in front of a slow line. */
static void keep_queue_short(int fd)
{
	int small = SLOW_BUFFER;
	if (ns_per_byte)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
}

static void send_at_once(int fd)
{
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void accept_one(int listener, int64_t t)
{
	int near = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (near < 0)
		return;
	if (count == CONNECTIONS) {
		close(near);
		return;
	}
	Connection *c = &connections[count++];
	*c = (Connection){.near = near, .far = -1, .dials_at = t + 3 * half};
	send_at_once(near);
	open_way(&c->ways[0], 0);
	open_way(&c->ways[1], 1);
	c->ways[0].from = c->ways[1].to = near;
}

static int dial(Connection *c)
{
	c->dials_at = NEVER;
	c->far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->far < 0)
		return 0;
	keep_queue_short(c->far);
	/* To this machine itself: it is connected at once, or not at all. */
	if (connect(c->far, (struct sockaddr *)&target, sizeof target))
		return 0;
	fcntl(c->far, F_SETFL, O_NONBLOCK);
	send_at_once(c->far);
	c->ways[0].to = c->ways[1].from = c->far;
	return 1;
}

/* Everything that is due on a connection. Returns whether it goes on. */
static int advance(Connection *c, int64_t t)
{
	if (c->dials_at <= t && !dial(c))
		return 0;
	if (c->far < 0)
		return 1;
	return deliver(&c->ways[0], t) && deliver(&c->ways[1], t) && !(c->ways[0].finished && c->ways[1].finished);
}

static void drop(int index)
{
	Connection *c = &connections[index];
	close(c->near);
	if (c->far >= 0)
		close(c->far);
	close_way(&c->ways[0]);
	close_way(&c->ways[1]);
	*c = connections[--count];
}

/* What to wait for on behalf of one direction. */
static void wish(const Way *way, int64_t t, struct pollfd *from, struct pollfd *to, int64_t *next)
{
	if (way->from >= 0 && has_room(way, t, next))
		from->events |= POLLIN;
	if (way->to < 0)
		return;
	if (way->tail < way->ready)
		to->events |= POLLOUT;
	else if (way->first != way->last)
		sooner(next, way->stamps[way->first % STAMPS].due);
	else if (!way->finished)
		sooner(next, way->ends_at);
}

static struct pollfd wished(struct pollfd end, int fd)
{
	/* A socket of which nothing is wanted would still tell of its end, over and over. */
	end.fd = end.events ? fd : -1;
	return end;
}

static void collect_wishes(Connection *c, int64_t t, struct pollfd *ends, int64_t *next)
{
	struct pollfd near = {0}, far = {0};
	sooner(next, c->dials_at);
	wish(&c->ways[0], t, &near, &far, next);
	wish(&c->ways[1], t, &far, &near, next);
	ends[0] = wished(near, c->near);
	ends[1] = wished(far, c->far);
}

static int hear(Connection *c, const struct pollfd *ends, int64_t t)
{
	for (int i = 0; i < 2; i++)
		if (ends[i].events & POLLIN && ends[i].revents && !receive(&c->ways[i], t))
			return 0;
	return 1;
}

static int listen_somewhere(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	keep_queue_short(fd);
	if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, CONNECTIONS))
		return -1;
	getsockname(fd, (struct sockaddr *)&address, &size);
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	return fd;
}

static void serve(int listener)
{
	static struct pollfd fds[2 + 2 * CONNECTIONS];
	for (;;) {
		int64_t t = now(), next = NEVER;
		for (int i = count; i-- > 0;)
			if (!advance(&connections[i], t))
				drop(i);
		fds[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
		fds[1] = (struct pollfd){.fd = listener, .events = POLLIN};
		for (int i = 0; i < count; i++)
			collect_wishes(&connections[i], t, fds + 2 + 2 * i, &next);
		int64_t left = next == NEVER ? 0 : next - now();
		left = left > 0 ? left : 0;
		struct timespec wait = {left / (1000 * MS), left % (1000 * MS)};
		if (ppoll(fds, 2 + 2 * count, next == NEVER ? NULL : &wait, NULL) <= 0)
			continue;
		if (fds[0].revents)
			return;
		t = now();
		for (int i = count; i-- > 0;)
			if (!hear(&connections[i], fds + 2 + 2 * i, t))
				drop(i);
		if (fds[1].revents)
			accept_one(listener, t);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	target.sin_port = htons(atoi(argv[1]));
	target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	half = (int64_t)(atof(argv[2]) * MS / 2);
	double rate = argc > 3 ? atof(argv[3]) : 0;
	ns_per_byte = rate > 0 ? 1000 * MS / rate : 0;
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_TIMERSLACK, 1);
	int listener = listen_somewhere();
	if (listener < 0)
		return 1;
	serve(listener);
	return 0;
}
