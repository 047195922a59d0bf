C     A Fortran program that loads another one onto a rectangle of nodes.
      PROGRAM LOAD
      INCLUDE 'fnx.h'
      CHARACTER*256 PATH
      INTEGER N, I, NODES(16), IPIDS(16)
      CALL GETARG(1, PATH)
      N = NX_INITVE_RECT(' ', -1, 2, 3, ' ')
      IF (N .NE. 6) STOP 1
      DO 10 I = 1, N
         NODES(I) = I - 1
   10 CONTINUE
      IF (NX_LOAD(NODES, N, 0, IPIDS, PATH) .NE. 6) STOP 2
      IF (NX_WAITALL() .NE. 0) STOP 3
      END
