C     A Fortran program that starts its nodes itself (the -lnx form), as
C     many as NX_DFLT_SIZE or its launcher says.
      PROGRAM NFORK
      INCLUDE 'fnx.h'
      INTEGER N, K, IALL, NODES(16), IPIDS(16), I, ISUM, IWORK
      N = NX_INITVE(' ', 0, ' ')
      IF (N .LT. 1) STOP 1
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
