/* Every call of table 1.6 in both forms, with arrays of long, or of int (-DNX_INT_ARRAYS). */
#include "check.h"

static long me, n;
#define COUNTS ((long)(sizeof counts / sizeof *counts))
static const long counts[] = { 0, 1, 2, 3, 17, 1000, 20000 };

/* Small values: exact in every type and order. */
static long own(long node, long at) { return (node * 3 + at * 7) % 5 + 1; }

#define FLOATS(type, sum, prod, high, low)                                                      \
	static void test_##type(void)                                                           \
	{                                                                                       \
		static type x[20000], work[20000];                                              \
		long c, i, node;                                                                \
		for (c = 0; c < COUNTS; c++) {                                                  \
			long count = counts[c], op;                                             \
			for (op = 0; op < 8; op++) {                                            \
				for (i = 0; i < count; i++)                                     \
					x[i] = op % 4 == 1 ? 1 + own(me, i) % 2 : own(me, i) - 3; \
				switch (op) {                                                   \
				case 0: sum(x, count, work); break;                             \
				case 1: prod(x, count, work); break;                            \
				case 2: high(x, count, work); break;                            \
				case 3: low(x, count, work); break;                             \
				case 4: CHECK(_##sum(x, count, work) == 0); break;              \
				case 5: CHECK(_##prod(x, count, work) == 0); break;             \
				case 6: CHECK(_##high(x, count, work) == 0); break;             \
				case 7: CHECK(_##low(x, count, work) == 0); break;              \
				}                                                               \
				for (i = 0; i < count; i++) {                                   \
					type want = op % 4 == 1 ? 1 : own(0, i) - 3;            \
					for (node = op % 4 == 1 ? 0 : 1; node < n; node++) {    \
						type v = op % 4 == 1 ? 1 + own(node, i) % 2     \
								     : own(node, i) - 3;        \
						if (op % 4 == 0) want += v;                     \
						if (op % 4 == 1) want *= v;                     \
						if (op % 4 == 2 && v > want) want = v;          \
						if (op % 4 == 3 && v < want) want = v;          \
					}                                                       \
					CHECK(x[i] == want);                                    \
				}                                                               \
			}                                                                       \
		}                                                                               \
	}
FLOATS(double, gdsum, gdprod, gdhigh, gdlow)
FLOATS(float, gssum, gsprod, gshigh, gslow)

typedef void (*plain_t)(nx_int_t *, long, nx_int_t *);
typedef long (*under_t)(nx_int_t *, long, nx_int_t *);
static const struct {
	plain_t plain;
	under_t under;
} ints[] = {
	{ gisum, _gisum }, { giprod, _giprod }, { gihigh, _gihigh }, { gilow, _gilow },
	{ giand, _giand }, { gior, _gior }, { gixor, _gixor }, { gland, _gland },
	{ glor, _glor }, { glxor, _glxor },
};

static nx_int_t combine(long op, nx_int_t a, nx_int_t b)
{
	switch (op) {
	case 0: return a + b;
	case 1: return a * b;
	case 2: return a > b ? a : b;
	case 3: return a < b ? a : b;
	case 4: return a & b;
	case 5: return a | b;
	case 6: return a ^ b;
	case 7: return a && b;
	case 8: return a || b;
	default: return !a != !b;
	}
}

static nx_int_t start(long op, long node, long i)
{
	long v = own(node, i);

	if (op == 1)
		return v % 3 - 1;
	if (op >= 7)
		return v % 2 ? 0 : v;
	return op >= 4 ? v * 0x101 : v - 3;
}

static void test_ints(void)
{
	static nx_int_t x[20000], work[20000];
	long op, c, i, node;

	for (op = 0; op < 10; op++)
		for (c = 0; c < 2 * COUNTS; c++) {
			long count = counts[c / 2];

			for (i = 0; i < count; i++)
				x[i] = start(op, me, i);
			if (c % 2)
				ints[op].plain(x, count, work);
			else
				CHECK(ints[op].under(x, count, work) == 0);
			for (i = 0; i < count; i++) {
				nx_int_t want = start(op, 0, i);

				if (op >= 7 && n == 1)
					continue;
				for (node = 1; node < n; node++)
					want = combine(op, want, start(op, node, i));
				CHECK(op >= 7 ? !x[i] == !want : x[i] == want);
			}
		}
}

/* A user operation that does not know the length: it is in a global. */
static long op_count;

static long smaller_sum(void *x, void *y)
{
	long i;

	for (i = 0; i < op_count; i++)
		((long *)x)[i] += ((long *)y)[i];
	return 0;
}

static void test_gopf(void)
{
	long x[100], work[100], i;

	for (op_count = 1; op_count <= 100; op_count += 33) {
		for (i = 0; i < op_count; i++)
			x[i] = me + i;
		if (op_count % 2)
			gopf(x, op_count * sizeof(long), work, (nx_combine_t)smaller_sum);
		else
			CHECK(_gopf(x, op_count * sizeof(long), work, (nx_combine_t)smaller_sum) == 0);
		for (i = 0; i < op_count; i++)
			CHECK(x[i] == n * (n - 1) / 2 + n * i);
	}
}

static void test_collect(void)
{
	static char x[16 * 100], y[16 * 1600 + 1];
	nx_int_t lens[16], total;
	long form, node, at;

	for (form = 0; form < 4; form++) {
		long own_len = me * 100 % 700;

		fill(x, own_len, me, form);
		memset(y, 0, sizeof y);
		for (node = 0, at = 0; node < n; node++) {
			lens[node] = node * 100 % 700;
			at += lens[node];
		}
		total = -1;
		if (form == 0)
			gcol(x, own_len, y, sizeof y, &total);
		else if (form == 1)
			CHECK(_gcol(x, own_len, y, sizeof y, &total) == 0);
		else if (form == 2)
			gcolx(x, lens, y);
		else
			CHECK(_gcolx(x, lens, y) == 0);
		CHECK(form >= 2 || total == at);
		for (node = 0, at = 0; node < n; at += lens[node++])
			CHECK(filled(y + at, lens[node], node, form));
	}
}

static void test_gsendx(void)
{
	nx_int_t list[16];
	long count, i, value;

	/* Node 0 sends to every second node. */
	for (count = 0, i = 0; i < n; i += 2)
		list[count++] = i;
	if (me == 0) {
		value = 4711;
		gsendx(5, &value, sizeof value, list, count);
		CHECK(_gsendx(6, &value, sizeof value, list, count) == 0);
		gsendx(7, &value, sizeof value, list, 0);
	}
	if (me % 2 == 0) {
		crecv(5, &value, sizeof value);
		crecv(6, &value, sizeof value);
		CHECK(value == 4711);
	}
	gsync();
	CHECK(iprobe(-1) == 0);
	gsync();
}

int main(void)
{
	long i, value = 0;

	me = mynode();
	n = numnodes();
	test_double();
	test_float();
	test_ints();
	test_gopf();
	test_collect();
	test_gsendx();
	/* User messages do not disturb them, nor they user receives of any type (2.8). */
	for (i = 0; i < n; i++)
		csend(i, &me, sizeof me, i, 0);
	for (i = 0; i < 20; i++)
		CHECK(_gsync() == 0);
	for (i = 0; i < n; i++) {
		crecv(-1, &value, sizeof value);
		CHECK(infotype() == me);
	}
	CHECK(iprobe(-1) == 0);
	gsync();
	if (me == 0)
		printf("globals: all good on %ld nodes\n", n);
	return 0;
}
