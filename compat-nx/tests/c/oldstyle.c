/* As it was written in 1988: no header, no prototypes, implicit int, int where long is
 * meant, its own functions with common names. */
extern double dclock();
int work[4];

led() { return 17; }
load(x) { return x + 1; }

gray_done(type, count, node, ptype)
{
	work[3] = node;
}

main(argc, argv)
char **argv;
{
	int me, n, left, x, mid, big;
	double d, dw;
	char b[64];

	me = mynode();
	n = numnodes();
	left = (me + n - 1) % n;
	if (led() != 17 || load(1) != 2)
		abort();
	big = me;
	mid = irecv(3, &x, sizeof x);
	csend(3, &big, sizeof big, (me + 1) % n, 0);
	msgwait(mid);
	if (x != left || infonode() != left || infocount() != sizeof x)
		abort();
	if (n > 1) {
		if (me == 0)
			csend(4, &big, sizeof big, -1, mypid());
		else
			crecv(4, &x, sizeof x);
	}
	crecvx_test(me, n, left);
	work[3] = -1;
	hrecv(5, &work[0], sizeof(int), gray_done);
	gsync();
	csend(5, &big, sizeof big, (me + 1) % n, 0);
	while (work[3] != left)
		flick();
	hrecv(6, b, sizeof b, gray_done);
	hrecv(6, 0, 0, 0);
	d = me;
	gdsum(&d, 1, &dw);
	if (d != n * (n - 1) / 2)
		abort();
	if (iprobe(-1) != 0 || iprobe(0x80000007) != 0)
		abort();
	gsync();
	if (me == 0)
		printf("oldstyle: all good on %d nodes\n", n);
	exit(0);
}

crecvx_test(me, n, left)
{
	int x = 0;
	long info[8];

	csend(9, &me, sizeof me, (me + 1) % n, 0);
	crecvx(9, &x, sizeof x, left, -1, info);
	if (x != left || info[2] != left)
		abort();
}
