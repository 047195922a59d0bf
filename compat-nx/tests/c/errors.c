/* Bad input for every call. Without an argument: each _ form answers -1 (or its like) with errno.
 * With the number of a case: its plain form, which does not return. With "count": how many. */
#include "check.h"

static char buf[64], work[64];
static nx_int_t info[8];
static void handler() {}
#define H ((nx_handler_t)handler)

#define CASES                                                                             \
	/* type, node, ptype, length, buffer of every send */                             \
	SENDS(csend, , ) SENDS(isend, , ) SENDS(hsend, COMMA H, ) SENDS(hsendx, COMMA H COMMA 1, ) \
	RECVS(crecv, , ) RECVS(irecv, , )                                                 \
	CASE(hrecv, (1, buf, -1, H), EQLEN) CASE(hrecv, (1, NULL, 8, H), EQPBUF)          \
	CASE(hrecv, (1, buf, 8, 0), EQHND)                                                \
	XRECVS(crecvx, COMMA info) XRECVS(irecvx, COMMA info) XRECVS(hrecvx, COMMA H COMMA 1) \
	CASE(hrecvx, (1, buf, 8, 0, 0, 0, 1), EQHND)                                      \
	CASE(hsend, (1, buf, 8, 0, 0, 0), EQHND) CASE(hsendx, (1, buf, 8, 0, 0, 0, 1), EQHND) \
	BOTH(csendrecv, ) BOTH(isendrecv, ) BOTH(hsendrecv, COMMA H)                      \
	CASE(hsendrecv, (1, buf, 8, 0, 0, 1, work, 8, 0), EQHND)                          \
	CASE(cprobex, (1, 99, 0, info), EQNODE) CASE(iprobex, (1, 99, 0, info), EQNODE)   \
	CASE(cprobex, (1, 0, -2, info), EQPID) CASE(iprobex, (1, 0, -2, info), EQPID)     \
	CASE(crecvx, (at_self(), buf, 8, -1, -1, NULL), EQPBUF) CASE(irecvx, (at_self(), buf, 8, -1, -1, NULL), EQPBUF) \
	CASE(cprobex, (at_self(), -1, -1, NULL), EQPBUF) CASE(iprobex, (at_self(), -1, -1, NULL), EQPBUF) \
	CASE(cprobe, (1000000000), EQTYPE) CASE(iprobe, (2000000000), EQTYPE)             \
	CASE(cprobex, (1073741823, -1, -1, info), EQTYPE) CASE(iprobex, (1000000000, -1, -1, info), EQTYPE) \
	CASE(flushmsg, (1000000000, -1, -1), EQTYPE)                                      \
	CASE(msgwait, (12345), EQMID) CASE(msgdone, (12345), EQMID)                       \
	CASE(msgcancel, (12345), EQMID) CASE(msgignore, (12345), EQMID)                   \
	CASE(msgmerge, (12345, -1), EQMID) CASE(msgmerge, (-1, 12345), EQMID)             \
	CASE(msgwait, (0), EQMID) CASE(msgwait, (-2), EQMID)                              \
	CASE(flushmsg, (1, 99, 0), EQNODE) CASE(flushmsg, (1, 0, -2), EQPID)              \
	CASE(setptype, (-1), EQPID) CASE(setpid, (-5), EQPID)                             \
	CASE(killcube, (99, 0), EQNODE) CASE(killproc, (-2, 0), EQNODE)                   \
	CASE(mypart, (NULL, NULL), EQPBUF) CASE(mypart, (NULL, info), EQPBUF) CASE(mypart, (info, NULL), EQPBUF) \
	CASE(hwclock, (NULL), EQPBUF)                                                     \
	REDUCE(gdsum) REDUCE(gdprod) REDUCE(gdhigh) REDUCE(gdlow)                         \
	REDUCE(gssum) REDUCE(gsprod) REDUCE(gshigh) REDUCE(gslow)                         \
	REDUCE(gisum) REDUCE(giprod) REDUCE(gihigh) REDUCE(gilow)                         \
	REDUCE(giand) REDUCE(gior) REDUCE(gixor) REDUCE(gland) REDUCE(glor) REDUCE(glxor) \
	CASE(gopf, (buf, -1, work, (nx_combine_t)handler), EQLEN)                         \
	CASE(gopf, (NULL, 8, work, (nx_combine_t)handler), EQPBUF)                        \
	CASE(gopf, (buf, 8, work, 0), EQHND)                                              \
	CASE(gcol, (buf, -1, work, 8, info), EQLEN) CASE(gcol, (NULL, 8, work, 8, info), EQPBUF) \
	CASE(gcol, (buf, 8, NULL, 8, info), EQPBUF) CASE(gcol, (buf, 8, work, 8, NULL), EQPBUF) \
	CASE(gcol, (buf, 8, work, -8, info), EQLEN) CASE(gopf, (buf, 8, NULL, (nx_combine_t)handler), EQPBUF) \
	CASE(gcolx, (buf, NULL, work), EQPBUF) CASE(gcolx, (NULL, eights, work), EQPBUF)  \
	CASE(gcolx, (buf, eights, NULL), EQPBUF) CASE(gcolx, (buf, below, work), EQLEN)   \
	CASE(gsendx, (1, NULL, 8, good_nodes, 1), EQPBUF) CASE(gsendx, (1, buf, 8, good_nodes, -1), EQLEN) \
	CASE(gsendx, (1, buf, 8, below, 1), EQNODE)                                       \
	CASE(gsendx, (1, buf, 8, NULL, 2), EQPBUF) CASE(gsendx, (1, buf, 8, bad_nodes, 1), EQNODE) \
	CASE(gsendx, (-1, buf, 8, good_nodes, 1), EQTYPE) CASE(gsendx, (1, buf, -1, good_nodes, 1), EQLEN) \
	CASE(setiomode, (-1, 0), EBADF) CASE(iowait, (4), EQMID) CASE(iodone, (4), EQMID) \
	CASE(iseof, (-1), EBADF) CASE(lsize, (-1, 0, 0), EBADF)                           \
	FILES(cread) FILES(cwrite) FILES(iread) FILES(iwrite)                             \
	FILES(creadv) FILES(cwritev) FILES(ireadv) FILES(iwritev)                         \
	OFFS(readoff) OFFS(writeoff) OFFS(ireadoff) OFFS(iwriteoff)                       \
	OFFS(readvoff) OFFS(writevoff) OFFS(ireadvoff) OFFS(iwritevoff)                   \
	CASE(iomode, (-1), EBADF) CASE(gopen, ("/no/such/file", 0, 0, 0), ENOENT)         \
	CASE(gopen, (NULL, 0, 0, 0), EFAULT)                                              \
	CASE(esize, (-1, at_0, 0), EBADF) CASE(eseek, (-1, at_0, 0), EBADF)               \
	CASE(estat, ("x", buf), ENOSYS) CASE(festat, (0, buf), ENOSYS)                    \
	CASE(lestat, ("x", buf), ENOSYS) CASE(statpfs, ("x", buf, buf, 8), ENOSYS)        \
	CASE(fstatpfs, (0, buf, buf, 8), ENOSYS) CASE(getpfsinfo, (buf), ENOSYS)          \
	CASE(restrictvol, (0, 1, buf), ENOSYS)                                            \
	/* A message longer than the room. */                                             \
	CASE(crecv, (longer(), buf, 8), EQMSGLONG)                                        \
	CASE(crecvx, (longer(), buf, 8, -1, -1, info), EQMSGLONG)                         \
	CASE(msgwait, (_irecv(longer(), buf, 8)), EQMSGLONG)                              \
	CASE(msgdone, (_irecv(longer(), buf, 8)), EQMSGLONG)                              \
	CASE(msgwait, (_irecvx(longer(), buf, 8, -1, -1, info)), EQMSGLONG)               \
	CASE(csendrecv, (2, work, 32, mynode(), 0, 2, buf, 8), EQMSGLONG)                 \
	CASE(msgwait, (_isendrecv(2, work, 32, mynode(), 0, 2, buf, 8)), EQMSGLONG)       \
	CASE(gcol, (buf, 8, work, 7, info), EQMSGLONG)                                    \
	/* No id is left (2.3). */                                                        \
	CASE(isend, (all_ids(), buf, 8, mynode(), 0), EQNOMID) CASE(irecv, (all_ids(), buf, 8), EQNOMID) \
	CASE(irecvx, (all_ids(), buf, 8, -1, -1, info), EQNOMID)                          \
	CASE(isendrecv, (all_ids(), buf, 8, mynode(), 0, 1, work, 8), EQNOMID)

#define COMMA ,
#define SENDS(name, more, x)                                                               \
	CASE(name, (-5, buf, 8, 0, 0 more), EQTYPE) CASE(name, (1000000000, buf, 8, 0, 0 more), EQTYPE) \
	CASE(name, (2000000000, buf, 8, 0, 0 more), EQTYPE)                                \
	CASE(name, (1, buf, 8, 99, 0 more), EQNODE) CASE(name, (1, buf, 8, -2, 0 more), EQNODE) \
	CASE(name, (1, buf, 8, 0, -1 more), EQPID) CASE(name, (1, buf, -1, 0, 0 more), EQLEN) \
	CASE(name, (1, NULL, 8, 0, 0 more), EQPBUF)
#define RECVS(name, more, x)                                                               \
	CASE(name, (1000000000, buf, 8 more), EQTYPE) CASE(name, (2000000000, buf, 8 more), EQTYPE) \
	CASE(name, (1, buf, -1 more), EQLEN) CASE(name, (1, NULL, 8 more), EQPBUF)
#define XRECVS(name, more)                                                                 \
	CASE(name, (1000000000, buf, 8, 0, 0 more), EQTYPE)                                \
	CASE(name, (1, buf, -1, 0, 0 more), EQLEN) CASE(name, (1, NULL, 8, 0, 0 more), EQPBUF) \
	CASE(name, (1, buf, 8, 99, 0 more), EQNODE) CASE(name, (1, buf, 8, 0, -2 more), EQPID)
#define BOTH(name, more)                                                                   \
	CASE(name, (1, buf, 8, 0, 0, 1000000000, work, 8 more), EQTYPE)                    \
	CASE(name, (1, buf, 8, 0, -1, 1, work, 8 more), EQPID)                             \
	CASE(name, (1, buf, -8, 0, 0, 1, work, 8 more), EQLEN)                             \
	CASE(name, (-5, buf, 8, 0, 0, 1, work, 8 more), EQTYPE)                            \
	CASE(name, (1, buf, 8, 99, 0, 1, work, 8 more), EQNODE)                            \
	CASE(name, (1, NULL, 8, 0, 0, 1, work, 8 more), EQPBUF)                            \
	CASE(name, (1, buf, 8, 0, 0, 1, NULL, 8 more), EQPBUF)                             \
	CASE(name, (1, buf, 8, 0, 0, 1, work, -8 more), EQLEN)
#define REDUCE(name)                                                                       \
	CASE(name, ((void *)buf, -1, (void *)work), EQLEN)                                 \
	CASE(name, (NULL, 2, (void *)work), EQPBUF) CASE(name, ((void *)buf, 2, NULL), EQPBUF)
#define FILES(name) CASE(name, (-1, (void *)buf, 1), EBADF)
#define OFFS(name) CASE(name, (-1, at_0, (void *)buf, 1), EBADF)
static const esize_t at_0;
/* These answer two words, both -1. */
#define _esize(fd, at, whence) ((int)(_esize)(fd, at, whence).slow)
#define _eseek(fd, at, whence) ((int)(_eseek)(fd, at, whence).slow)

static nx_int_t bad_nodes[1] = { 99 }, good_nodes[1] = { 0 }, eights[8] = { 8, 8, 8, 8, 8, 8, 8, 8 }, below[8] = { -1 };

/* A message is here, which what is wrong with the rest must not take. Returns its type. */
static long at_self(void)
{
	if (!_iprobe(9))
		_csend(9, buf, 8, mynode(), 0);
	return 9;
}

/* Sends this node more than is received; returns its type. */
static long longer(void)
{
	_csend(2, work, 32, mynode(), 0);
	return 2;
}

static long mids[1200], held;

/* Takes all ids; returns a type. */
static long all_ids(void)
{
	while ((mids[held] = _irecv(5, buf, 8)) > 0)
		held++;
	CHECK(held >= 950 && held < 1200);
	return 3;
}

static void under_forms(void)
{
	int number = 0;

#define CASE(name, args, expected)                                                             \
	errno = 0;                                                                             \
	if (_##name args != -1 || errno != (expected)) {                                       \
		fprintf(stderr, "case %d: _%s%s: errno %d, not %d\n", number, #name, #args,    \
		    errno, (expected));                                                        \
		_exit(1);                                                                      \
	}                                                                                      \
	while (held > 0)                                                                       \
		CHECK(_msgcancel(mids[--held]) == 0);                                          \
	number++;
	CASES
#undef CASE
}

static int plain_form(int wanted)
{
	int number = 0;

#define CASE(name, args, expected)                                                             \
	if (wanted == number++) {                                                              \
		printf("%s %d\n", #name, (int)(expected));                                     \
		fflush(stdout);                                                                \
		name args;                                                                     \
		return 0;                                                                      \
	}
	CASES
#undef CASE
	return number;
}

/* Messages that are too long for a handler: the call has long returned, and the program computes. */
#define LATER                                                                                  \
	CASE(hrecv, (longer(), buf, 8, H)) CASE(hrecvx, (longer(), buf, 8, -1, -1, H, 1))      \
	CASE(hsendrecv, (2, work, 32, mynode(), 0, 2, buf, 8, H))

static int later_form(int wanted)
{
	int number = 0;

#define CASE(name, args)                                                                       \
	if (wanted == number++) {                                                              \
		printf("%s\n", #name);                                                         \
		fflush(stdout);                                                                \
		name args;                                                                     \
		for (;;)                                                                       \
			;                                                                      \
	}                                                                                      \
	if (wanted == number++) {                                                              \
		printf("%s\n", #name);                                                         \
		fflush(stdout);                                                                \
		CHECK(_##name args == 0);                                                      \
		for (;;)                                                                       \
			;                                                                      \
	}
	LATER
#undef CASE
	return number;
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "alone") == 0) {
		if (mynode() == 1)
			plain_form(atoi(argv[2]));
		for (;;)
			;
	}
	if (argc > 2) {
		printf("%d\n", later_form(strcmp(argv[2], "count") == 0 ? -1 : atoi(argv[2])));
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "count") == 0) {
		printf("%d\n", plain_form(-1));
		return 0;
	}
	if (argc > 1) {
		plain_form(atoi(argv[1]));
		return 0;
	}
	under_forms();
	CHECK(_msgcancel(mids[0]) == -1 && errno == EQMID);
	CHECK(_crecv(9, buf, 8) == 0);
	printf("errors: all good\n");
	return 0;
}
