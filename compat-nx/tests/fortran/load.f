C     A Fortran program that loads another one onto a rectangle of nodes;
C     its arguments are that one, rows, and columns.
      PROGRAM LOAD
      INCLUDE 'fnx.h'
      CHARACTER*256 PATH
      CHARACTER*8 TEXT
      INTEGER N, I, NROWS, NCOLS, KROWS, KCOLS, NODES(16), IPIDS(16)
      CALL GETARG(1, PATH)
      CALL GETARG(2, TEXT)
      READ (TEXT, '(I8)') NROWS
      CALL GETARG(3, TEXT)
      READ (TEXT, '(I8)') NCOLS
      N = NX_INITVE_RECT(' ', -1, NROWS, NCOLS, ' ')
      IF (N .NE. NROWS * NCOLS) STOP 1
      IF (NX_APP_RECT(KROWS, KCOLS) .NE. 0) STOP 4
      IF (KROWS .NE. NROWS .OR. KCOLS .NE. NCOLS) STOP 5
      IF (MYPART(KROWS, KCOLS) .NE. 0) STOP 6
      IF (KROWS .NE. NROWS .OR. KCOLS .NE. NCOLS) STOP 7
      DO 10 I = 1, N
         NODES(I) = I - 1
   10 CONTINUE
      IF (NX_LOAD(NODES, N, 0, IPIDS, PATH) .NE. N) STOP 2
      IF (NX_WAITALL() .NE. 0) STOP 3
      END
