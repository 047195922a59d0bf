/* Every call of tables 1.2, 1.3 and 1.5, both forms, with contents checked. */
#include "check.h"

static long me, n, right, left;
static const long sizes[] = { 0, 1, 7, 8, 100, 101, 4096, 5000, 70000, 1 << 20 };
#define SIZES ((long)(sizeof sizes / sizeof *sizes))
static char *out, *in;

/* csend, crecv and their _ forms, all sizes, info*(). */
static void synchronous(void)
{
	long i, len, type;

	for (i = 0; i < SIZES; i++) {
		len = sizes[i];
		type = 10 + i;
		fill(out, len, me, type);
		if (i % 2)
			csend(type, out, len, right, 0);
		else
			CHECK(_csend(type, out, len, right, 0) == 0);
		memset(in, 0, len + 1);
		if (i % 2)
			crecv(type, in, len + 100);
		else
			CHECK(_crecv(type, in, len + 100) == 0);
		CHECK(filled(in, len, left, type));
		CHECK(infocount() == len && _infocount() == len);
		CHECK(infonode() == left && _infonode() == left);
		CHECK(infotype() == type && _infotype() == type);
		CHECK(infoptype() == 0 && _infoptype() == 0);
		CHECK(infopid() == 0 && _infopid() == 0);
	}
}

/* Both partners send first (corner 2), to 1 MiB; and to self (13); and nothing to nowhere (3). */
static void head_to_head(void)
{
	long partner = me ^ 1, len;

	for (len = 1024; len <= 1 << 20; len *= 8) {
		if (partner < n) {
			fill(out, len, me, 50);
			csend(50, out, len, partner, 0);
			crecv(50, in, len);
			CHECK(filled(in, len, partner, 50));
		}
		fill(out, len, me, 51);
		csend(51, out, len, me, 0);
		memset(out, 0, len);
		crecv(51, in, len);
		CHECK(filled(in, len, me, 51) && infonode() == me);
	}
	csend(52, NULL, 0, right, 0);
	crecv(52, NULL, 0);
	CHECK(infocount() == 0 && infonode() == left);
	csend(53, (void *)1, 0, right, 0);
	memset(in, 'x', 8);
	crecv(53, in, 8);
	CHECK(infocount() == 0 && in[0] == 'x');
}

/* csend to -1 skips the sender (1); types carry node numbers in high bits, and 0 is one (4). */
static void broadcast(void)
{
	long root, from;

	for (root = 0; root < n; root++) {
		long type = root << 20;

		if (me == root) {
			fill(out, 3000, me, 1);
			csend(type, out, 3000, -1, 0);
		} else {
			crecv(type, in, 3000);
			CHECK(infonode() == root && infotype() == type && filled(in, 3000, root, 1));
		}
	}
	gsync();
	CHECK(iprobe(-1) == 0);
	for (from = 0; from < n; from++)
		CHECK(_iprobe(from << 20) == 0);
}

/* Types that differ in their high bits only, up to the last one, are different ones, and 0 is none of them (4). */
static void high_bits(void)
{
	enum { KINDS = 31 };
	long types[KINDS], values[KINDS], mids[KINDS], i, value;
	int posted;

	for (i = 0; i < KINDS - 1; i++)
		types[i] = i << 25; /* 0 to 29 * 2^25, below 10^9 */
	types[KINDS - 1] = 999999999;
	for (posted = 0; posted < 2; posted++) {
		/* The last ones first: what is taken is not what came first. */
		for (i = KINDS - 1; posted && i >= 0; i--)
			mids[i] = irecv(types[i], &values[i], sizeof value);
		gsync();
		for (i = KINDS - 1; i > 0; i--) {
			value = me * 1000 + i;
			csend(types[i], &value, sizeof value, right, 0);
		}
		csend(KINDS, NULL, 0, right, 0);
		crecv(KINDS, NULL, 0); /* all others are here */
		CHECK(iprobe(0) == 0);
		if (posted)
			CHECK(msgdone(mids[0]) == 0);
		gsync();
		value = me * 1000;
		csend(0, &value, sizeof value, right, 0);
		for (i = 0; i < KINDS; i++) {
			if (posted) {
				msgwait(mids[i]);
				value = values[i];
			} else {
				cprobe(types[i]);
				CHECK(infotype() == types[i]);
				crecv(types[i], &value, sizeof value);
			}
			CHECK(infotype() == types[i] && value == left * 1000 + i);
		}
	}
	gsync();
	CHECK(iprobe(-1) == 0);
}

/* Types are taken in any order (5); equal ones in the order sent. */
static void order(void)
{
	long type, i, value;

	for (i = 0; i < 5; i++)
		for (type = 100; type < 110; type++) {
			value = i * 1000 + type;
			csend(type, &value, sizeof value, right, 0);
		}
	for (type = 109; type >= 100; type--)
		for (i = 0; i < 5; i++) {
			crecv(type, &value, sizeof value);
			CHECK(value == i * 1000 + type);
		}
}

/* The x-calls: by source; msginfo and own arrays (7); masks (15); -1. */
static void selective(void)
{
	long from, value, i, mids[16], all = -1;
	nx_int_t info[8];
	static long values[16];

	for (from = 0; from < n; from++) {
		value = me * 100 + from;
		csend(60, &value, sizeof value, from, 0);
		csend(61, &value, sizeof value, from, 0);
		csend(62, &value, sizeof value, from, 0);
		csend(63, &value, sizeof value, from, 0);
	}
	for (from = n - 1; from >= 0; from--) {
		crecvx(60, &value, sizeof value, from, 0, msginfo);
		CHECK(value == from * 100 + me && infonode() == from && infotype() == 60);
		CHECK(infocount() == sizeof value && infoptype() == 0 && msginfo[2] == from);
		memset(info, 0, sizeof info);
		CHECK(_crecvx(61, &value, sizeof value, from, -1, info) == 0);
		CHECK(info[0] == 61 && info[1] == sizeof value && info[2] == from && info[3] == 0);
		CHECK(infotype() == 60);
		cprobex(62, from, 0, info);
		CHECK(info[0] == 62 && info[2] == from);
		CHECK(_cprobex(62, from, -1, info) == 0);
		while (!iprobex(62, from, 0, info))
			flick();
		CHECK(_iprobex(62, from, 0, info) == 1 && _iprobex(64, from, 0, info) == 0);
		crecvx(62, &value, sizeof value, info[2], info[3], info);
		CHECK(value == from * 100 + me);
	}
	/* Many irecvx with one array: the last writer wins. */
	for (from = 0; from < n; from++) {
		mids[from] = from % 2 ? irecvx(63, &values[from], sizeof value, from, 0, msginfo)
				      : _irecvx(63, &values[from], sizeof value, from, -1, msginfo);
		CHECK(mids[from] > 0 && mids[from] == (int)mids[from]);
		all = msgmerge(all, mids[from]);
		CHECK(all > 0);
	}
	msgwait(all);
	CHECK(infotype() == 63);
	for (i = 0; i < n; i++)
		CHECK(values[i] == i * 100 + me);

	gsync();
	for (i = 0; i < 5; i++)
		csend(i, &i, sizeof i, right, 0);
	for (i = 0; i < 3; i++) {
		cprobe(0x80000007);
		CHECK(infotype() <= 2 && infocount() == sizeof value);
		crecv(0x80000007, &value, sizeof value);
		CHECK(value == i && infotype() == i);
	}
	CHECK(_iprobe(0x80000007) == 0);
	CHECK(_cprobe(-1) == 0);
	CHECK(iprobe(-1) == 1 && infotype() == 3);
	crecv(-1, &value, sizeof value);
	CHECK(value == 3);
	crecv(-1, &value, sizeof value);
	CHECK(value == 4);
	/* Force types are not taken by -1 (16). */
	csend(FORCE_TYPE | 5, &value, sizeof value, right, 0);
	gsync();
	CHECK(iprobe(-1) == 0 && iprobe(5) == 0);
	crecv(FORCE_TYPE | 5, &value, sizeof value);
	CHECK(infotype() == (FORCE_TYPE | 5));
}

/* isend, irecv, msgwait, msgdone, msgmerge, msgignore, msgcancel, flushmsg (8, 9). */
static void asynchronous(void)
{
	enum { MANY = 950 };
	static int values[MANY], sent[MANY];
	long i, mid, other, chain, first;

	chain = -1;
	for (i = 0; i < MANY; i++) {
		mid = i % 2 ? irecv(1000 + i, &values[i], sizeof(int))
			    : _irecv(1000 + i, &values[i], sizeof(int));
		CHECK(mid > 0);
		chain = i % 2 ? msgmerge(chain, mid) : _msgmerge(chain, mid);
	}
	CHECK(_msgdone(chain) == 0);
	gsync();
	for (i = MANY - 1; i >= 0; i--) {
		sent[i] = me * 10000 + i;
		mid = i % 2 ? isend(1000 + i, &sent[i], sizeof(int), right, 0)
			    : _isend(1000 + i, &sent[i], sizeof(int), right, 0);
		CHECK(mid > 0);
		if (i % 3 == 0)
			msgwait(mid);
		else if (i % 3 == 1)
			CHECK(_msgwait(mid) == 0);
		else
			while (!msgdone(mid))
				flick();
	}
	CHECK(_msgwait(chain) == 0);
	for (i = 0; i < MANY; i++)
		CHECK(values[i] == left * 10000 + i);
	CHECK(_msgwait(chain) == -1 && errno == EQMID);
	CHECK(_msgdone(mid) == -1 && errno == EQMID);

	/* Ids are used again and again. */
	for (i = 0; i < 5000; i++) {
		long value = i, got = -1;

		mid = irecv(70, &got, sizeof got);
		other = isend(70, &value, sizeof value, me, 0);
		msgwait(msgmerge(mid, other));
		CHECK(got == i);
	}
	/* A cancelled receive takes nothing; its buffer is ours at once. */
	first = -7;
	mid = irecv(71, &first, sizeof first);
	msgcancel(mid);
	mid = irecv(71, &first, sizeof first);
	CHECK(_msgcancel(mid) == 0 && _msgcancel(mid) == -1 && errno == EQMID);
	i = 5;
	csend(71, &i, sizeof i, me, 0);
	CHECK(first == -7);
	crecv(71, &first, sizeof first);
	CHECK(first == 5);
	/* An ignored one completes by itself. */
	msgignore(irecv(72, &first, sizeof first));
	i = 6;
	CHECK(_msgignore(isend(72, &i, sizeof i, me, 0)) == 0);
	csend(73, &i, sizeof i, me, 0);
	crecv(73, &i, sizeof i);
	CHECK(first == 6);
	/* Flushed messages are gone, others are not. */
	for (i = 74; i < 77; i++)
		csend(i, &i, sizeof i, me, 0);
	flushmsg(74, -1, -1);
	CHECK(_flushmsg(75, me, 0) == 0);
	CHECK(iprobe(74) == 0 && iprobe(75) == 0 && iprobe(76) == 1);
	crecv(76, &i, sizeof i);
}

/* csendrecv and isendrecv. */
static void both_ways(void)
{
	long len = 9000, got, mid;

	fill(out, len, me, 80);
	got = csendrecv(80, out, len, right, 0, 80, in, len + 50);
	CHECK(got == len && filled(in, len, left, 80) && infocount() == len);
	got = _csendrecv(81, out, 0, right, 0, 81, in, 8);
	CHECK(got == 0 && infonode() == left);
	fill(out, len, me, 82);
	mid = isendrecv(82, out, len, right, 0, 82, in, len);
	CHECK(mid > 0);
	msgwait(mid);
	CHECK(filled(in, len, left, 82) && infonode() == left);
	mid = _isendrecv(83, out, 100, right, 0, 83, in, len);
	while (!msgdone(mid))
		flick();
	CHECK(infocount() == 100 && filled(in, 100, left, 82));
}

/* A message too long: an error, and the full length is told (2.7). */
static void truncation(void)
{
	long mid;
	nx_int_t info[8];

	fill(out, 100, me, 90);
	csend(90, out, 100, me, 0);
	CHECK(_crecv(90, in, 10) == -1 && errno == EQMSGLONG && infocount() == 100);
	csend(90, out, 100, me, 0);
	CHECK(_crecvx(90, in, 10, -1, -1, info) == -1 && errno == EQMSGLONG && info[1] == 100);
	mid = irecv(90, in, 10);
	csend(90, out, 100, me, 0);
	CHECK(_msgwait(mid) == -1 && errno == EQMSGLONG && infocount() == 100);
	CHECK(_csendrecv(91, out, 100, me, 0, 91, in, 10) == -1 && errno == EQMSGLONG);
	/* The next ones are not disturbed. */
	csend(92, out, 100, me, 0);
	crecv(92, in, 100);
	CHECK(filled(in, 100, me, 90));
}

/* Probe, look how long it is, make room, receive (6). */
static void sized(void)
{
	long from, seen;

	for (from = 0; from < n; from++)
		if (from != me) {
			fill(out, 10 + me * 1000, me, 95);
			csend(95, out, 10 + me * 1000, from, 0);
		}
	for (seen = 1; seen < n; seen++) {
		char *room;

		cprobe(-1);
		from = infonode();
		CHECK(infocount() == 10 + from * 1000);
		room = malloc(infocount());
		crecvx(infotype(), room, infocount(), from, -1, msginfo);
		CHECK(filled(room, infocount(), from, 95));
		free(room);
	}
}

int main(void)
{
	me = mynode();
	n = numnodes();
	right = (me + 1) % n;
	left = (me + n - 1) % n;
	out = malloc((1 << 20) + 200);
	in = malloc((1 << 20) + 200);
	synchronous();
	head_to_head();
	broadcast();
	gsync();
	high_bits();
	gsync();
	order();
	gsync();
	selective();
	gsync();
	asynchronous();
	gsync();
	both_ways();
	truncation();
	gsync();
	sized();
	gsync();
	if (me == 0)
		printf("messages: all good on %ld nodes\n", n);
	return 0;
}
