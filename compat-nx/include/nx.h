/*
 * nx.h: the Intel NX calls, as programs for the iPSC and the Paragon include them.
 *
 * Link with -lnx. Each call `name` ends the application on an error; `_name` returns -1 with errno.
 *
 * On today's machines long has 64 bits, int has 32. Programs that pass int arrays where long
 * arrays are declared compile with -DNX_INT_ARRAYS: the calls with arrays then take int. Files that do
 * not include this one need -include nx.h as well.
 */
#ifndef NX_H
#define NX_H

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments of handlers and of gopf may be declared in any way: old C calls them unprototyped. */
#if defined(__cplusplus)
typedef void (*nx_handler_t)(long, long, long, long);
typedef void (*nx_xhandler_t)(long, long, long, long, long);
typedef long (*nx_combine_t)(void *, void *);
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
typedef void *nx_handler_t;
typedef void *nx_xhandler_t;
typedef void *nx_combine_t;
#else
typedef void (*nx_handler_t)();
typedef void (*nx_xhandler_t)();
typedef long (*nx_combine_t)();
#endif

#ifdef NX_INT_ARRAYS
typedef int nx_int_t;
#define NX_ARRAYS(name) nx32_##name
#define NX_ARRAYS_(name) _nx32_##name
#else
typedef long nx_int_t;
#define NX_ARRAYS(name) name
#define NX_ARRAYS_(name) _##name
#endif

/* A 64-bit size in two words. */
typedef struct s_size {
	unsigned int slow;
	int shigh;
} esize_t;
typedef int *nx_nodes_t;

/* ---- constants ---- */

#define FORCE_TYPE 0x40000000
#define INVALID_PTYPE (-1)
#define HOST (myhost())
#define HWHZ 10000000

#define NX_ATTR_END (-1)
#define NX_ATTR_SZ 1
#define NX_ATTR_RECT 2
#define NX_ATTR_MAP 3
#define NX_ATTR_ANCHOR 4
#define NX_ATTR_SCHED 5
#define NX_ATTR_RELAXED 6
#define NX_ATTR_EPL 7
#define NX_ATTR_RQ 8
#define NX_ATTR_MOD 9
#define NX_ATTR_SEL 10
#define NX_ATTR_PRI 11
#define NX_ATTR_PKT 12
#define NX_ATTR_MBF 13
#define NX_ATTR_MEX 14
#define NX_ATTR_MEA 15
#define NX_ATTR_NOC 16
#define NX_ATTR_STH 17
#define NX_ATTR_SCT 18
#define NX_ATTR_GTH 19
#define NX_ATTR_PLK 20
#define NX_ATTR_ACCT 21
#define NX_ATTR_GUEST 22

#define NX_STD 0
#define NX_GANG 1
#define NX_SPS 2

#define M_UNIX 0
#define M_LOG 1
#define M_SYNC 2
#define M_RECORD 3
#define M_GLOBAL 4
#define M_ASYNC 5

#define SIZE_SET 0
#define SIZE_CUR 1
#define SIZE_END 2

/* ---- errno ---- */

#define EQPBUF 151     /* bad buffer */
#define EQBLEN 152     /* bad buffer length */
#define EQLEN 153      /* bad length */
#define EQTIME 154     /* time limit */
#define EQMSGLONG 155  /* message too long for the buffer */
#define EQPID 156      /* bad process type */
#define EQNODE 157     /* bad node number */
#define EQTYPE 158     /* bad message type */
#define EQMID 159      /* bad message id */
#define EQHND 160      /* bad handler */
#define EQNOPROC 161   /* no such process */
#define EQUSEPID 162   /* process type in use */
#define EQNOACT 163    /* not active */
#define EQBADFIL 164   /* bad file */
#define EQPARAM 165    /* bad parameter */
#define EQPRIV 170     /* not permitted */
#define EQMEM 171      /* no memory */
#define EQNOMID 174    /* too many requests */
#define EQSET 175      /* process type is set already */
#define EQNOSET 176    /* process type is not set */
#define EQBADNODE 199  /* bad node */
#define EQMSGSHORT 202 /* message too short */

/* ---- who and where ---- */

extern long mynode(void), _mynode(void);
extern long numnodes(void), _numnodes(void);
extern long myhost(void), _myhost(void);
extern long myptype(void), _myptype(void);
extern long mypid(void), _mypid(void);
extern void setptype(long ptype);
extern long _setptype(long ptype);
extern void setpid(long pid);
extern long _setpid(long pid);
extern long nodedim(void), _nodedim(void);
extern long gray(long number), _gray(long number);
extern long ginv(long code), _ginv(long code);
extern void killcube(long node, long pid);
extern long _killcube(long node, long pid);
extern void killproc(long node, long pid);
extern long _killproc(long node, long pid);
extern void flick(void);
extern long _flick(void);
extern void led(long state);
extern long _led(long state);
extern long _myphysnode(void), _mydirect(void);
extern long mcmsg_wire();
extern long NX_ARRAYS(mypart)(nx_int_t *rows, nx_int_t *cols);
extern long NX_ARRAYS_(mypart)(nx_int_t *rows, nx_int_t *cols);

/* ---- messages ---- */

extern void csend(long type, void *buf, long count, long node, long ptype);
extern long _csend(long type, void *buf, long count, long node, long ptype);
extern void crecv(long typesel, void *buf, long count);
extern long _crecv(long typesel, void *buf, long count);
extern long csendrecv(long type, void *sbuf, long scount, long node, long ptype, long typesel,
    void *rbuf, long rcount);
extern long _csendrecv(long type, void *sbuf, long scount, long node, long ptype, long typesel,
    void *rbuf, long rcount);
extern void cprobe(long typesel);
extern long _cprobe(long typesel);
extern long iprobe(long typesel), _iprobe(long typesel);
extern long isend(long type, void *buf, long count, long node, long ptype);
extern long _isend(long type, void *buf, long count, long node, long ptype);
extern long irecv(long typesel, void *buf, long count);
extern long _irecv(long typesel, void *buf, long count);
extern long isendrecv(long type, void *sbuf, long scount, long node, long ptype, long typesel,
    void *rbuf, long rcount);
extern long _isendrecv(long type, void *sbuf, long scount, long node, long ptype, long typesel,
    void *rbuf, long rcount);
extern void msgwait(long mid);
extern long _msgwait(long mid);
extern long msgdone(long mid), _msgdone(long mid);
extern void msgcancel(long mid);
extern long _msgcancel(long mid);
extern void msgignore(long mid);
extern long _msgignore(long mid);
extern long msgmerge(long mid1, long mid2), _msgmerge(long mid1, long mid2);
extern void flushmsg(long typesel, long node, long ptype);
extern long _flushmsg(long typesel, long node, long ptype);

extern void NX_ARRAYS(crecvx)(long typesel, void *buf, long count, long nodesel, long ptypesel,
    nx_int_t info[8]);
extern long NX_ARRAYS_(crecvx)(long typesel, void *buf, long count, long nodesel, long ptypesel,
    nx_int_t info[8]);
extern long NX_ARRAYS(irecvx)(long typesel, void *buf, long count, long nodesel, long ptypesel,
    nx_int_t info[8]);
extern long NX_ARRAYS_(irecvx)(long typesel, void *buf, long count, long nodesel, long ptypesel,
    nx_int_t info[8]);
extern void NX_ARRAYS(cprobex)(long typesel, long nodesel, long ptypesel, nx_int_t info[8]);
extern long NX_ARRAYS_(cprobex)(long typesel, long nodesel, long ptypesel, nx_int_t info[8]);
extern long NX_ARRAYS(iprobex)(long typesel, long nodesel, long ptypesel, nx_int_t info[8]);
extern long NX_ARRAYS_(iprobex)(long typesel, long nodesel, long ptypesel, nx_int_t info[8]);

extern nx_int_t NX_ARRAYS(msginfo)[8];
extern long infocount(void), _infocount(void);
extern long infonode(void), _infonode(void);
extern long infoptype(void), _infoptype(void);
extern long infopid(void), _infopid(void);
extern long infotype(void), _infotype(void);

/* ---- handlers ---- */

extern void hsend(long type, void *buf, long count, long node, long ptype, nx_handler_t handler);
extern long _hsend(long type, void *buf, long count, long node, long ptype, nx_handler_t handler);
extern void hrecv(long typesel, void *buf, long count, nx_handler_t handler);
extern long _hrecv(long typesel, void *buf, long count, nx_handler_t handler);
extern void hsendrecv(long type, void *sbuf, long scount, long node, long ptype, long typesel,
    void *rbuf, long rcount, nx_handler_t handler);
extern long _hsendrecv(long type, void *sbuf, long scount, long node, long ptype, long typesel,
    void *rbuf, long rcount, nx_handler_t handler);
extern void hsendx(long type, void *buf, long count, long node, long ptype, nx_xhandler_t handler,
    long hparam);
extern long _hsendx(long type, void *buf, long count, long node, long ptype, nx_xhandler_t handler,
    long hparam);
extern void hrecvx(long typesel, void *buf, long count, long nodesel, long ptypesel,
    nx_xhandler_t handler, long hparam);
extern long _hrecvx(long typesel, void *buf, long count, long nodesel, long ptypesel,
    nx_xhandler_t handler, long hparam);
extern long masktrap(long state), _masktrap(long state);

/* ---- global operations: every node calls ---- */

extern void gsync(void);
extern long _gsync(void);

#define NX_REDUCTION(name, type)                     \
	extern void name(type *x, long n, type *work); \
	extern long _##name(type *x, long n, type *work)
NX_REDUCTION(gdsum, double);
NX_REDUCTION(gdprod, double);
NX_REDUCTION(gdhigh, double);
NX_REDUCTION(gdlow, double);
NX_REDUCTION(gssum, float);
NX_REDUCTION(gsprod, float);
NX_REDUCTION(gshigh, float);
NX_REDUCTION(gslow, float);
#undef NX_REDUCTION

#define NX_REDUCTION(name)                                              \
	extern void NX_ARRAYS(name)(nx_int_t *x, long n, nx_int_t *work); \
	extern long NX_ARRAYS_(name)(nx_int_t *x, long n, nx_int_t *work)
NX_REDUCTION(gisum);
NX_REDUCTION(giprod);
NX_REDUCTION(gihigh);
NX_REDUCTION(gilow);
NX_REDUCTION(giand);
NX_REDUCTION(gior);
NX_REDUCTION(gixor);
NX_REDUCTION(gland);
NX_REDUCTION(glor);
NX_REDUCTION(glxor);
#undef NX_REDUCTION

extern void gopf(void *x, long xlen, void *work, nx_combine_t function);
extern long _gopf(void *x, long xlen, void *work, nx_combine_t function);
extern void NX_ARRAYS(gcol)(void *x, long xlen, void *y, long ylen, nx_int_t *ncnt);
extern long NX_ARRAYS_(gcol)(void *x, long xlen, void *y, long ylen, nx_int_t *ncnt);
extern void NX_ARRAYS(gcolx)(void *x, nx_int_t *xlens, void *y);
extern long NX_ARRAYS_(gcolx)(void *x, nx_int_t *xlens, void *y);
extern void NX_ARRAYS(gsendx)(long type, void *buf, long count, nx_int_t *nodes, long nnodes);
extern long NX_ARRAYS_(gsendx)(long type, void *buf, long count, nx_int_t *nodes, long nnodes);

/* ---- applications ---- */

extern long nx_initve(char *partition, long size, char *account, int *argc, char **argv);
extern long nx_initve_rect(char *partition, long anchor, long rows, long cols, char *account,
    int *argc, char **argv);
extern long nx_initve_attr(char *partition, int *argc, char **argv, ...);
extern long nx_waitall(void);
extern long nx_pri(long group, long priority);
extern void nx_perror(char *text);
extern long nx_app_nodes(pid_t pid, nx_nodes_t *list, unsigned long *count);
#ifdef NX_INT_ARRAYS
#define nx_nfork nx32_nx_nfork
#define nx_load nx32_nx_load
#define nx_loadve nx32_nx_loadve
#define nx_app_rect nx32_nx_app_rect
#endif
extern long nx_nfork(nx_int_t *nodes, long nnodes, long ptype, nx_int_t *pids);
extern long nx_load(nx_int_t *nodes, long nnodes, long ptype, nx_int_t *pids, char *path);
extern long nx_loadve(nx_int_t *nodes, long nnodes, long ptype, nx_int_t *pids, char *path,
    char **argv, char **envp);
extern long nx_app_rect(nx_int_t *rows, nx_int_t *cols);

/* Partitions: there are none; -1 with ENOSYS. */
#if !defined(__cplusplus) && !(defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
extern long nx_mkpart(), nx_mkpart_rect(), nx_mkpart_map(), nx_mkpart_attr(), nx_rmpart();
extern long nx_chpart_epl(), nx_chpart_mod(), nx_chpart_name(), nx_chpart_owner();
extern long nx_chpart_rq(), nx_chpart_sched(), nx_pspart();
#else
extern long nx_mkpart(...), nx_mkpart_rect(...), nx_mkpart_map(...), nx_mkpart_attr(...);
extern long nx_rmpart(...), nx_chpart_epl(...), nx_chpart_mod(...), nx_chpart_name(...);
extern long nx_chpart_owner(...), nx_chpart_rq(...), nx_chpart_sched(...), nx_pspart(...);
#endif

/* ---- clocks ---- */

extern double dclock(void), _dclock(void);
extern unsigned long mclock(void), _mclock(void);
extern void hwclock(esize_t *time);
extern long _hwclock(esize_t *time);

/* ---- parallel I/O over ordinary files ---- */

extern int gopen(const char *path, int flags, int iomode, mode_t mode);
extern int _gopen(const char *path, int flags, int iomode, mode_t mode);
extern void setiomode(long fd, long iomode);
extern long _setiomode(long fd, long iomode);
extern long iomode(long fd), _iomode(long fd);
extern long cread(long fd, void *buf, long count), _cread(long fd, void *buf, long count);
extern long cwrite(long fd, void *buf, long count), _cwrite(long fd, void *buf, long count);
extern long iread(long fd, void *buf, long count), _iread(long fd, void *buf, long count);
extern long iwrite(long fd, void *buf, long count), _iwrite(long fd, void *buf, long count);
extern long creadv(long fd, void *iov, long count), _creadv(long fd, void *iov, long count);
extern long cwritev(long fd, void *iov, long count), _cwritev(long fd, void *iov, long count);
extern long ireadv(long fd, void *iov, long count), _ireadv(long fd, void *iov, long count);
extern long iwritev(long fd, void *iov, long count), _iwritev(long fd, void *iov, long count);
#define NX_AT_OFFSET(name)                                                \
	extern long name(int fd, esize_t offset, void *buf, int count); \
	extern long _##name(int fd, esize_t offset, void *buf, int count)
NX_AT_OFFSET(readoff);
NX_AT_OFFSET(writeoff);
NX_AT_OFFSET(readvoff);
NX_AT_OFFSET(writevoff);
NX_AT_OFFSET(ireadoff);
NX_AT_OFFSET(iwriteoff);
NX_AT_OFFSET(ireadvoff);
NX_AT_OFFSET(iwritevoff);
#undef NX_AT_OFFSET
extern long iodone(long id), _iodone(long id);
extern void iowait(long id);
extern long _iowait(long id);
extern long iseof(long fd), _iseof(long fd);
extern long lsize(long fd, long offset, long whence), _lsize(long fd, long offset, long whence);
extern esize_t esize(int fd, esize_t offset, int whence), _esize(int fd, esize_t offset, int whence);
extern esize_t eseek(int fd, esize_t offset, int whence), _eseek(int fd, esize_t offset, int whence);
extern long estat(void *path, void *buf), _estat(void *path, void *buf);
extern long festat(long fd, void *buf), _festat(long fd, void *buf);
extern long lestat(void *path, void *buf), _lestat(void *path, void *buf);
extern long statpfs(void *path, void *buf, void *attr, long len);
extern long _statpfs(void *path, void *buf, void *attr, long len);
extern long fstatpfs(long fd, void *buf, void *attr, long len);
extern long _fstatpfs(long fd, void *buf, void *attr, long len);
extern long getpfsinfo(void *buf), _getpfsinfo(void *buf);
extern long restrictvol(long fd, long count, void *list), _restrictvol(long fd, long count, void *list);

/* ---- extended arithmetic ---- */

extern esize_t eadd(esize_t a, esize_t b), esub(esize_t a, esize_t b);
extern esize_t eadd1(esize_t a, long n), esub1(esize_t a, long n), emul(esize_t a, long n);
extern long ediv(esize_t a, long n), emod(esize_t a, long n), ecmp(esize_t a, esize_t b);
extern void etos(esize_t a, char *text);
extern long stoe(char *text, esize_t *result);

#ifdef NX_INT_ARRAYS
#define mypart nx32_mypart
#define _mypart _nx32_mypart
#define crecvx nx32_crecvx
#define _crecvx _nx32_crecvx
#define irecvx nx32_irecvx
#define _irecvx _nx32_irecvx
#define cprobex nx32_cprobex
#define _cprobex _nx32_cprobex
#define iprobex nx32_iprobex
#define _iprobex _nx32_iprobex
#define msginfo nx32_msginfo
#define gisum nx32_gisum
#define _gisum _nx32_gisum
#define giprod nx32_giprod
#define _giprod _nx32_giprod
#define gihigh nx32_gihigh
#define _gihigh _nx32_gihigh
#define gilow nx32_gilow
#define _gilow _nx32_gilow
#define giand nx32_giand
#define _giand _nx32_giand
#define gior nx32_gior
#define _gior _nx32_gior
#define gixor nx32_gixor
#define _gixor _nx32_gixor
#define gland nx32_gland
#define _gland _nx32_gland
#define glor nx32_glor
#define _glor _nx32_glor
#define glxor nx32_glxor
#define _glxor _nx32_glxor
#define gcol nx32_gcol
#define _gcol _nx32_gcol
#define gcolx nx32_gcolx
#define _gcolx _nx32_gcolx
#define gsendx nx32_gsendx
#define _gsendx _nx32_gsendx
#endif

#ifdef __cplusplus
}
#endif

#endif /* NX_H */
