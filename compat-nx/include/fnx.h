!
!     fnx.h: the NX calls for Fortran programs of the Paragon. Fixed form,
!     legal in free form too:  include 'fnx.h'
!
      INTEGER FORCE_TYPE, INVALID_PTYPE, HWHZ
      PARAMETER (FORCE_TYPE = 1073741824)
      PARAMETER (INVALID_PTYPE = -1, HWHZ = 10000000)
      INTEGER M_UNIX, M_LOG, M_SYNC, M_RECORD, M_GLOBAL, M_ASYNC
      PARAMETER (M_UNIX = 0, M_LOG = 1, M_SYNC = 2)
      PARAMETER (M_RECORD = 3, M_GLOBAL = 4, M_ASYNC = 5)
!     functions
      INTEGER mynode, numnodes, myhost, myptype, mypid, nodedim, gray
      INTEGER ginv, mypart, csendrecv, isend, irecv, irecvx
      INTEGER isendrecv, iprobe, iprobex, msgdone, msgmerge
      INTEGER infocount, infonode, infoptype, infopid, infotype
      INTEGER masktrap, mclock, iomode, nx_initve, nx_initve_rect
      INTEGER nx_nfork, nx_load, nx_waitall, nx_pri, nx_app_rect
      INTEGER ecmp, ediv, emod
      DOUBLE PRECISION dclock
      EXTERNAL mynode, numnodes, myhost, myptype, mypid, nodedim
      EXTERNAL gray, ginv, mypart, csendrecv, isend, irecv, irecvx
      EXTERNAL isendrecv, iprobe, iprobex, msgdone, msgmerge
      EXTERNAL infocount, infonode, infoptype, infopid, infotype
      EXTERNAL masktrap, mclock, iomode, nx_initve, nx_initve_rect
      EXTERNAL nx_nfork, nx_load, nx_waitall, nx_pri, nx_app_rect
      EXTERNAL ecmp, ediv, emod, dclock
      INTEGER iread, iwrite, ireadoff, iwriteoff, iodone, iseof, lsize
      INTEGER lseek
      EXTERNAL iread, iwrite, ireadoff, iwriteoff, iodone, iseof, lsize
      EXTERNAL lseek
!     subroutines
      EXTERNAL setptype, setpid, killcube, killproc, flick, led
      EXTERNAL csend, crecv, crecvx, cprobe, cprobex, msgwait
      EXTERNAL msgcancel, msgignore, flushmsg, hsend, hrecv
      EXTERNAL hsendrecv, hsendx, hrecvx, gsync, gdsum, gdprod
      EXTERNAL gdhigh, gdlow, gssum, gsprod, gshigh, gslow, gisum
      EXTERNAL giprod, gihigh, gilow, giand, gior, gixor, gland, glor
      EXTERNAL glxor, gcol, gcolx, gopf, gsendx, hwclock, setiomode
      EXTERNAL gopen, cread, cwrite, readoff, writeoff, iowait
      EXTERNAL eseek, esize
      EXTERNAL nx_perror, eadd, esub, eadd1, esub1, emul
