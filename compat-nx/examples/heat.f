C     heat: the steady temperature of a square plate by Jacobi iteration.
C
C     The plate is cut into rectangles, one for each node, as square as
C     the number of nodes allows. In each step a node sends its edges to
C     its neighbours, receives theirs, and averages. Every 50 steps all
C     nodes agree on the largest change.
C
C     The temperature on the rim is x*x - y*y, which is also the exact
C     answer inside, and is exact for the five-point average too: so the
C     result is checked against it, whatever the number of nodes.
C
C     gfortran -o heat heat.f -lnx;   shrimp run -n 4 -- ./heat
C
      PROGRAM HEAT
      INCLUDE 'fnx.h'
      INTEGER NG, NMAX, MAXIT
      PARAMETER (NG = 48, NMAX = NG + 2, MAXIT = 20000)
      DOUBLE PRECISION U(NMAX, NMAX), V(NMAX, NMAX)
      DOUBLE PRECISION DIFF, ERR, WORK, X, Y, T0, TCOMM, T1, TOL
      DOUBLE PRECISION SBUF(NMAX), RBUF(NMAX)
      PARAMETER (TOL = 1D-10)
      INTEGER ME, N, NPX, NPY, IPX, IPY, I0, J0, NI, NJ, I, J, IT
      INTEGER IWEST, IEAST, ISOUTH, INORTH
      ME = MYNODE()
      N = NUMNODES()
C     the most square factors of n
      NPX = INT(SQRT(DBLE(N)))
   10 IF (MOD(N, NPX) .NE. 0) THEN
         NPX = NPX - 1
         GO TO 10
      END IF
      NPY = N / NPX
      IPX = MOD(ME, NPX)
      IPY = ME / NPX
      I0 = IPX * NG / NPX
      NI = (IPX + 1) * NG / NPX - I0
      J0 = IPY * NG / NPY
      NJ = (IPY + 1) * NG / NPY - J0
      IWEST = -1
      IEAST = -1
      ISOUTH = -1
      INORTH = -1
      IF (IPX .GT. 0) IWEST = ME - 1
      IF (IPX .LT. NPX - 1) IEAST = ME + 1
      IF (IPY .GT. 0) ISOUTH = ME - NPX
      IF (IPY .LT. NPY - 1) INORTH = ME + NPX
C     zero inside, the exact answer on the rim of the whole plate
      DO 30 J = 0, NJ + 1
         DO 20 I = 0, NI + 1
            X = DBLE(I0 + I) / (NG + 1)
            Y = DBLE(J0 + J) / (NG + 1)
            U(I + 1, J + 1) = 0
            IF (I0 + I .EQ. 0 .OR. I0 + I .EQ. NG + 1 .OR.
     +          J0 + J .EQ. 0 .OR. J0 + J .EQ. NG + 1)
     +         U(I + 1, J + 1) = X * X - Y * Y
            V(I + 1, J + 1) = U(I + 1, J + 1)
   20    CONTINUE
   30 CONTINUE
      T0 = DCLOCK()
      TCOMM = 0
      DO 100 IT = 1, MAXIT
         T1 = DCLOCK()
C        rows are contiguous, columns are packed
         IF (INORTH .GE. 0) CALL CSEND(1, U(2, NJ + 1), 8 * NI,
     +      INORTH, 0)
         IF (ISOUTH .GE. 0) CALL CSEND(2, U(2, 2), 8 * NI, ISOUTH, 0)
         IF (IEAST .GE. 0) THEN
            DO 40 J = 1, NJ
   40       SBUF(J) = U(NI + 1, J + 1)
            CALL CSEND(3, SBUF, 8 * NJ, IEAST, 0)
         END IF
         IF (IWEST .GE. 0) THEN
            DO 50 J = 1, NJ
   50       SBUF(J) = U(2, J + 1)
            CALL CSEND(4, SBUF, 8 * NJ, IWEST, 0)
         END IF
         IF (ISOUTH .GE. 0) CALL CRECV(1, U(2, 1), 8 * NI)
         IF (INORTH .GE. 0) CALL CRECV(2, U(2, NJ + 2), 8 * NI)
         IF (IWEST .GE. 0) THEN
            CALL CRECV(3, RBUF, 8 * NJ)
            DO 60 J = 1, NJ
   60       U(1, J + 1) = RBUF(J)
         END IF
         IF (IEAST .GE. 0) THEN
            CALL CRECV(4, RBUF, 8 * NJ)
            DO 70 J = 1, NJ
   70       U(NI + 2, J + 1) = RBUF(J)
         END IF
         TCOMM = TCOMM + DCLOCK() - T1
         DIFF = 0
         DO 80 J = 2, NJ + 1
            DO 80 I = 2, NI + 1
               V(I, J) = 0.25D0 * (U(I - 1, J) + U(I + 1, J)
     +            + U(I, J - 1) + U(I, J + 1))
               DIFF = MAX(DIFF, ABS(V(I, J) - U(I, J)))
   80    CONTINUE
         DO 90 J = 2, NJ + 1
            DO 90 I = 2, NI + 1
               U(I, J) = V(I, J)
   90    CONTINUE
         IF (MOD(IT, 50) .EQ. 0) THEN
            CALL GDHIGH(DIFF, 1, WORK)
            IF (DIFF .LT. TOL) GO TO 110
         END IF
  100 CONTINUE
  110 ERR = 0
      DO 120 J = 1, NJ
         DO 120 I = 1, NI
            X = DBLE(I0 + I) / (NG + 1)
            Y = DBLE(J0 + J) / (NG + 1)
            ERR = MAX(ERR, ABS(U(I + 1, J + 1) - (X * X - Y * Y)))
  120 CONTINUE
      CALL GDHIGH(ERR, 1, WORK)
      CALL GDSUM(TCOMM, 1, WORK)
      IF (ME .EQ. 0) THEN
         WRITE (*, 130) NPX, NPY, IT, ERR
         WRITE (*, 140) DCLOCK() - T0, 100 * TCOMM / N / (DCLOCK() - T0)
         IF (ERR .GT. 1D-6) THEN
            WRITE (*, *) 'heat: WRONG'
            CALL KILLPROC(-1, -1)
         END IF
         WRITE (*, *) 'heat: right'
      END IF
  130 FORMAT ('heat: ', I2, ' x ', I2, ' nodes, ', I6, ' steps, error ',
     +   1PE9.2)
  140 FORMAT ('heat: ', F8.3, ' s, ', F5.1, ' % communication')
      CALL GSYNC()
      END
