C     A Fortran program that starts its nodes itself (the -lnx form), as
C     many as NX_DFLT_SIZE or its launcher says.
      PROGRAM NFORK
      INCLUDE 'fnx.h'
      INTEGER N, K, IALL, NODES(16), IPIDS(16), I, ISUM, IWORK
C     Wrong arguments are -1, and change nothing.
      IF (NX_WAITALL() .NE. -1) STOP 6
      IF (NX_NFORK(NODES, -1, 0, IPIDS) .NE. -1) STOP 7
      IF (NX_INITVE(' ', -2, ' ') .NE. -1) STOP 8
      IF (NX_INITVE_RECT(' ', 0, 2, -2, ' ') .NE. -1) STOP 9
      N = NX_INITVE(' ', 0, ' ')
      IF (N .LT. 1) STOP 1
      IF (NX_INITVE(' ', N + 1, ' ') .NE. -1) STOP 10
      IF (NX_NFORK(NODES, 0, 0, IPIDS) .NE. -1) STOP 11
      IF (NX_NFORK(NODES, -1, -4, IPIDS) .NE. -1) STOP 12
      IF (NX_LOAD(NODES, -1, 0, IPIDS, '/no/such/program  ') .NE. -1)
     &   STOP 13
      IF (NX_LOAD(NODES, -1, 0, IPIDS, ' ') .NE. -1) STOP 14
      IF (NX_PRI(0, -1) .NE. -1) STOP 15
      IALL = N * (N - 1) / 2
      WRITE (*, *) 'controlling process'
      K = NX_NFORK(NODES, -1, 0, IPIDS)
      IF (K .EQ. 0) THEN
         ISUM = MYNODE()
         CALL GISUM(ISUM, 1, IWORK)
         IF (ISUM .NE. IALL) STOP 2
         CALL CSEND(1, ISUM, 4, MYHOST(), 1)
         WRITE (*, *) 'node', MYNODE(), ' done'
      ELSE IF (K .EQ. N) THEN
         CALL SETPTYPE(1)
         DO 10 I = 1, N
            CALL CRECV(1, ISUM, 4)
            IF (ISUM .NE. IALL) STOP 3
   10    CONTINUE
         IF (NX_WAITALL() .NE. 0) STOP 4
         WRITE (*, *) 'nfork: all good'
      ELSE
         STOP 5
      END IF
      END
