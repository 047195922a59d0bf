C     Every call from FORTRAN 77: integers by reference, 32 bits wide.
      PROGRAM CALLS
      INCLUDE 'fnx.h'
      INTEGER ME, N, IRIGHT, ILEFT
      COMMON /WHO/ ME, N, IRIGHT, ILEFT
      ME = MYNODE()
      N = NUMNODES()
      IRIGHT = MOD(ME + 1, N)
      ILEFT = MOD(ME + N - 1, N)
      CALL WHOAMI
      CALL SYNCM
      CALL ASYNC
      CALL HANDL
      CALL GLOBAL
      CALL REST
      CALL GSYNC()
      IF (ME .EQ. 0) WRITE (*, 10) N
   10 FORMAT ('fortran: all good on ', I3, ' nodes')
      END

      SUBROUTINE CHECK(OK, WHAT)
      LOGICAL OK
      CHARACTER*(*) WHAT
      INTEGER MYNODE
      IF (.NOT. OK) THEN
         WRITE (*, *) 'node', MYNODE(), ' not true: ', WHAT
         CALL ABORT
      END IF
      END

      SUBROUTINE WHOAMI
      INCLUDE 'fnx.h'
      INTEGER ME, N, IRIGHT, ILEFT, I, IROWS, ICOLS
      COMMON /WHO/ ME, N, IRIGHT, ILEFT
      CALL CHECK(MYHOST() .EQ. N, 'myhost')
      CALL CHECK(MYPTYPE() .EQ. 0, 'myptype')
      CALL CHECK(MYPID() .EQ. 0, 'mypid')
      CALL SETPTYPE(4)
      CALL CHECK(MYPTYPE() .EQ. 4, 'setptype')
      CALL SETPID(0)
      CALL CHECK(MYPID() .EQ. 0, 'setpid')
      CALL CHECK(2**NODEDIM() .GE. N, 'nodedim')
      DO 10 I = 0, 40
         CALL CHECK(GINV(GRAY(I)) .EQ. I, 'gray')
   10 CONTINUE
      CALL CHECK(MYPART(IROWS, ICOLS) .GE. 0, 'mypart')
      CALL CHECK(IROWS * ICOLS .EQ. N, 'rectangle')
      CALL CHECK(NX_APP_RECT(IROWS, ICOLS) .EQ. 0, 'nx_app_rect')
      CALL FLICK()
      CALL LED(1)
      END

      SUBROUTINE SYNCM
      INCLUDE 'fnx.h'
      INTEGER ME, N, IRIGHT, ILEFT, I, INFO(8), IOUT(3000), IN(3000)
      COMMON /WHO/ ME, N, IRIGHT, ILEFT
      INTEGER LEN
      DO 10 I = 1, 3000
         IOUT(I) = ME * 10000 + I
   10 CONTINUE
      CALL CSEND(1, IOUT, 12000, IRIGHT, 0)
      CALL CRECV(1, IN, 12000)
      CALL CHECK(IN(3000) .EQ. ILEFT * 10000 + 3000, 'crecv')
      CALL CHECK(INFOCOUNT() .EQ. 12000, 'infocount')
      CALL CHECK(INFONODE() .EQ. ILEFT, 'infonode')
      CALL CHECK(INFOTYPE() .EQ. 1, 'infotype')
      CALL CHECK(INFOPTYPE() .EQ. 0, 'infoptype')
      CALL CHECK(INFOPID() .EQ. 0, 'infopid')
      CALL CSEND(2, IOUT, 8, IRIGHT, 0)
      CALL CPROBE(2)
      CALL CHECK(INFOCOUNT() .EQ. 8, 'cprobe')
      CALL CPROBEX(2, ILEFT, 0, INFO)
      CALL CHECK(INFO(1) .EQ. 2 .AND. INFO(2) .EQ. 8, 'cprobex')
      CALL CHECK(IPROBE(2) .EQ. 1 .AND. IPROBE(3) .EQ. 0, 'iprobe')
      CALL CHECK(IPROBEX(-1, ILEFT, -1, INFO) .EQ. 1, 'iprobex')
      CALL CRECVX(-1, IN, 8, ILEFT, 0, INFO)
      CALL CHECK(INFO(3) .EQ. ILEFT .AND. INFO(4) .EQ. 0, 'crecvx')
      LEN = CSENDRECV(4, IOUT, 400, IRIGHT, 0, 4, IN, 12000)
      CALL CHECK(LEN .EQ. 400 .AND. IN(1) .EQ. IOUT(1) + (ILEFT - ME)
     +    * 10000, 'csendrecv')
      IF (ME .EQ. 0) THEN
         CALL CSEND(5, IOUT, 4, -1, 0)
      ELSE
         CALL CRECV(5, IN, 4)
         CALL CHECK(INFONODE() .EQ. 0 .AND. IN(1) .EQ. 1, 'broadcast')
      END IF
      CALL GSYNC()
      END

      SUBROUTINE ASYNC
      INCLUDE 'fnx.h'
      INTEGER ME, N, IRIGHT, ILEFT, I, IV, IW, MID, MID2, INFO(8)
      COMMON /WHO/ ME, N, IRIGHT, ILEFT
      MID = IRECV(10, IV, 4)
      CALL CHECK(MSGDONE(MID) .EQ. 0, 'msgdone')
      CALL GSYNC()
      MID2 = ISEND(10, ME, 4, IRIGHT, 0)
      CALL MSGWAIT(MSGMERGE(MSGMERGE(-1, MID), MID2))
      CALL CHECK(IV .EQ. ILEFT, 'msgmerge')
      MID = IRECVX(11, IV, 4, ILEFT, -1, INFO)
      CALL CSEND(11, ME, 4, IRIGHT, 0)
   10 IF (MSGDONE(MID) .EQ. 0) GO TO 10
      CALL CHECK(INFO(1) .EQ. 11 .AND. INFO(3) .EQ. ILEFT, 'irecvx')
      MID = ISENDRECV(12, ME, 4, IRIGHT, 0, 12, IW, 4)
      CALL MSGWAIT(MID)
      CALL CHECK(IW .EQ. ILEFT, 'isendrecv')
      CALL MSGCANCEL(IRECV(13, IV, 4))
      CALL MSGIGNORE(ISEND(13, ME, 4, ME, 0))
      CALL CRECV(13, IV, 4)
      CALL CSEND(14, ME, 4, ME, 0)
      CALL FLUSHMSG(14, -1, -1)
      CALL CHECK(IPROBE(14) .EQ. 0, 'flushmsg')
      DO 20 I = 1, 5
         CALL CSEND(15, I, 4, ME, 0)
   20 CONTINUE
      DO 30 I = 1, 5
         CALL CRECV(15, IV, 4)
         CALL CHECK(IV .EQ. I, 'order')
   30 CONTINUE
      CALL GSYNC()
      END

      SUBROUTINE HANDL
      INCLUDE 'fnx.h'
      EXTERNAL ONMSG, ONXMSG
      INTEGER ME, N, IRIGHT, ILEFT, IV, I, IOLD
      COMMON /WHO/ ME, N, IRIGHT, ILEFT
      INTEGER NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      COMMON /SEEN/ NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      NRUNS = 0
      CALL HRECV(20, IV, 4, ONMSG)
      CALL GSYNC()
      CALL CSEND(20, ME, 4, IRIGHT, 0)
      CALL WAITFR(1)
      CALL CHECK(IV .EQ. ILEFT .AND. INODE .EQ. ILEFT, 'hrecv')
      CALL CHECK(ITYPE .EQ. 20 .AND. ICOUNT .EQ. 4, 'hrecv args')
      CALL HRECVX(21, IV, 4, ILEFT, 0, ONXMSG, 99)
      CALL CSEND(21, ME, 4, IRIGHT, 0)
      CALL WAITFR(2)
      CALL CHECK(IPARAM .EQ. 99 .AND. ITYPE .EQ. 21, 'hrecvx')
      CALL HSEND(22, ME, 4, IRIGHT, 0, ONMSG)
      CALL WAITFR(3)
      CALL HSENDX(22, ME, 4, IRIGHT, 0, ONXMSG, 98)
      CALL WAITFR(4)
      CALL CHECK(IPARAM .EQ. 98, 'hsendx')
      CALL CRECV(22, IV, 4)
      CALL CRECV(22, IV, 4)
      CALL HSENDRECV(23, ME, 4, IRIGHT, 0, 23, IV, 4, ONMSG)
      CALL WAITFR(5)
      CALL CHECK(IV .EQ. ILEFT .AND. ITYPE .EQ. 23, 'hsendrecv')
      IOLD = MASKTRAP(1)
      CALL CHECK(IOLD .EQ. 0, 'masktrap')
      CALL HRECV(24, IV, 4, ONMSG)
      CALL CSEND(24, ME, 4, ME, 0)
      DO 10 I = 1, 20
         CALL FLICK()
   10 CONTINUE
      CALL CHECK(NRUNS .EQ. 5, 'masked')
      CALL CHECK(MASKTRAP(IOLD) .EQ. 1, 'masktrap back')
      CALL WAITFR(6)
C     Without a handler: taken back.
      CALL HRECV(25, IV, 4, ONMSG)
      CALL HRECV(25, 0, 0, 0)
      CALL CSEND(25, ME, 4, ME, 0)
      CALL CRECV(25, IV, 4)
      CALL CHECK(IV .EQ. ME .AND. NRUNS .EQ. 6, 'hrecv taken back')
      CALL GSYNC()
      END

      SUBROUTINE WAITFR(NWANT)
      INTEGER NWANT
      INTEGER NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      COMMON /SEEN/ NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
   10 CALL FLICK()
      IF (NRUNS .LT. NWANT) GO TO 10
      CALL CHECK(NRUNS .EQ. NWANT, 'one run each')
      END

      SUBROUTINE ONMSG(KTYPE, KCOUNT, KNODE, KPTYPE)
      INTEGER KTYPE, KCOUNT, KNODE, KPTYPE
      INTEGER NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      COMMON /SEEN/ NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      ITYPE = KTYPE
      ICOUNT = KCOUNT
      INODE = KNODE
      IPTYPE = KPTYPE
      NRUNS = NRUNS + 1
      END

      SUBROUTINE ONXMSG(KTYPE, KCOUNT, KNODE, KPTYPE, KPARAM)
      INTEGER KTYPE, KCOUNT, KNODE, KPTYPE, KPARAM
      INTEGER NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      COMMON /SEEN/ NRUNS, ITYPE, ICOUNT, INODE, IPTYPE, IPARAM
      IPARAM = KPARAM
      CALL ONMSG(KTYPE, KCOUNT, KNODE, KPTYPE)
      END

      SUBROUTINE GLOBAL
      INCLUDE 'fnx.h'
      EXTERNAL IADD
      INTEGER ME, N, IRIGHT, ILEFT, I, IX(3), IW(3), LENS(64), NCNT
      COMMON /WHO/ ME, N, IRIGHT, ILEFT
      INTEGER IY(64), NODES(64)
      DOUBLE PRECISION DX(2), DW(2)
      REAL SX(2), SW(2)
      LOGICAL LX(1), LW(1)
      DX(1) = ME
      DX(2) = -ME
      CALL GDSUM(DX, 2, DW)
      CALL CHECK(DX(1) .EQ. N * (N - 1) / 2, 'gdsum')
      DX(1) = ME
      CALL GDHIGH(DX, 1, DW)
      CALL CHECK(DX(1) .EQ. N - 1, 'gdhigh')
      DX(1) = ME
      CALL GDLOW(DX, 1, DW)
      CALL CHECK(DX(1) .EQ. 0, 'gdlow')
      DX(1) = 2
      CALL GDPROD(DX, 1, DW)
      CALL CHECK(DX(1) .EQ. 2D0**N, 'gdprod')
      SX(1) = ME
      CALL GSSUM(SX, 1, SW)
      CALL CHECK(SX(1) .EQ. N * (N - 1) / 2, 'gssum')
      SX(1) = ME
      CALL GSHIGH(SX, 1, SW)
      CALL CHECK(SX(1) .EQ. N - 1, 'gshigh')
      SX(1) = ME
      CALL GSLOW(SX, 1, SW)
      CALL CHECK(SX(1) .EQ. 0, 'gslow')
      SX(1) = 2
      CALL GSPROD(SX, 1, SW)
      CALL CHECK(SX(1) .EQ. 2.0**N, 'gsprod')
      IX(1) = ME
      IX(2) = 7
      IX(3) = -1
      CALL GISUM(IX, 2, IW)
      CALL CHECK(IX(1) .EQ. N*(N-1)/2 .AND. IX(2) .EQ. 7*N, 'gisum')
      CALL CHECK(IX(3) .EQ. -1, 'gisum is 32 bits wide')
      IX(1) = 1
      CALL GIPROD(IX, 1, IW)
      CALL CHECK(IX(1) .EQ. 1, 'giprod')
      IX(1) = ME
      CALL GIHIGH(IX, 1, IW)
      CALL CHECK(IX(1) .EQ. N - 1, 'gihigh')
      IX(1) = ME
      CALL GILOW(IX, 1, IW)
      CALL CHECK(IX(1) .EQ. 0, 'gilow')
      IX(1) = 6 + MOD(ME, 2)
      CALL GIAND(IX, 1, IW)
      CALL CHECK(IX(1) .EQ. 6, 'giand')
      IX(1) = 2**MOD(ME, 30)
      CALL GIOR(IX, 1, IW)
      CALL CHECK(IX(1) .EQ. 2**N - 1, 'gior')
      IX(1) = 5
      CALL GIXOR(IX, 1, IW)
      CALL CHECK(IX(1) .EQ. 5 * MOD(N, 2), 'gixor')
      LX(1) = .TRUE.
      CALL GLAND(LX, 1, LW)
      CALL CHECK(LX(1), 'gland')
      LX(1) = ME .EQ. N - 1
      CALL GLOR(LX, 1, LW)
      CALL CHECK(LX(1), 'glor')
      LX(1) = .TRUE.
      CALL GLXOR(LX, 1, LW)
      CALL CHECK(LX(1) .EQV. MOD(N, 2) .EQ. 1, 'glxor')
      IX(1) = ME
      CALL GOPF(IX, 4, IW, IADD)
      CALL CHECK(IX(1) .EQ. N * (N - 1) / 2, 'gopf')
      CALL GCOL(ME, 4, IY, 256, NCNT)
      CALL CHECK(NCNT .EQ. 4 * N .AND. IY(N) .EQ. N - 1, 'gcol')
      DO 10 I = 1, N
         LENS(I) = 4
         NODES(I) = I - 1
         IY(I) = -1
   10 CONTINUE
      CALL GCOLX(ME, LENS, IY)
      CALL CHECK(IY(1) .EQ. 0 .AND. IY(N) .EQ. N - 1, 'gcolx')
      IF (ME .EQ. 0) CALL GSENDX(30, N, 4, NODES, N)
      CALL CRECV(30, I, 4)
      CALL CHECK(I .EQ. N, 'gsendx')
      END

      INTEGER FUNCTION IADD(IX, IY)
      INTEGER IX, IY
      IX = IX + IY
      IADD = 0
      END

      SUBROUTINE REST
      INCLUDE 'fnx.h'
      INTEGER IT(2), IU(2), MCLK
      DOUBLE PRECISION D
      D = DCLOCK()
      CALL CHECK(DCLOCK() .GE. D, 'dclock')
      MCLK = MCLOCK()
      CALL CHECK(MCLOCK() .GE. MCLK, 'mclock')
      CALL HWCLOCK(IT)
      CALL EADD1(IT, 5, IU)
      CALL CHECK(ECMP(IU, IT) .EQ. 1, 'ecmp')
      CALL ESUB(IU, IT, IU)
      CALL CHECK(EDIV(IU, 5) .EQ. 1 .AND. EMOD(IU, 3) .EQ. 2, 'ediv')
      CALL EMUL(IU, 4, IU)
      CALL ESUB1(IU, 20, IU)
      CALL EADD(IU, IT, IU)
      CALL CHECK(ECMP(IU, IT) .EQ. 0, 'eadd')
      CALL SETIOMODE(6, M_UNIX)
      CALL CHECK(IOMODE(6) .EQ. M_UNIX, 'iomode')
      CALL NX_PERROR('nx_perror from Fortran')
      CALL CHECK(NX_PRI(0, 1) .EQ. 0, 'nx_pri')
      CALL CHECK(NX_WAITALL() .EQ. -1, 'nx_waitall')
      END
