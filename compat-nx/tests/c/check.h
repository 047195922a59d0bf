/* A failed check names itself and the node, and ends the application. */
#include <errno.h>
#include <nx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: node %ld: not true: %s\n", __FILE__, __LINE__,  \
			    mynode(), #condition);                                              \
			_exit(1);                                                               \
		}                                                                               \
	} while (0)

/* Contents that differ with everything. */
static unsigned char pattern(long from, long type, long at)
{
	return (unsigned char)(from * 31 + type * 7 + at * 13 + (at >> 8));
}

static void fill(void *buf, long len, long from, long type)
{
	long at;

	for (at = 0; at < len; at++)
		((unsigned char *)buf)[at] = pattern(from, type, at);
}

static int filled(const void *buf, long len, long from, long type)
{
	long at;

	for (at = 0; at < len; at++)
		if (((const unsigned char *)buf)[at] != pattern(from, type, at))
			return 0;
	return 1;
}

/* As ps(1) shows it: 'T' of a process that is stopped. */
static inline char state_of(long pid)
{
	char path[40], state = 0;
	FILE *stat;

	snprintf(path, sizeof path, "/proc/%ld/stat", pid);
	stat = fopen(path, "r");
	CHECK(stat != NULL && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
	fclose(stat);
	return state;
}
