C     I/O modes of units: what all nodes write is where the mode has it.
C     The argument is a directory; node 0 looks at the files through READ.
      PROGRAM MODES
      INCLUDE 'fnx.h'
      INTEGER ME, N, I, J, K, NSEEN(64), IREC(25), IGOT(400), LEN1
      CHARACTER*200 DIR, NAME
      ME = MYNODE()
      N = NUMNODES()
      CALL GETARG(1, DIR)
C     Records of 100 bytes, then of 40, behind a word of node 0's.
      NAME = DIR(1:LEN_TRIM(DIR)) // '/frecord'
      CALL GOPEN(12, NAME, M_UNIX)
      IGOT(1) = 4711
      IF (ME .EQ. 0) CALL CWRITE(12, IGOT, 4)
      CALL SETIOMODE(12, M_RECORD)
      DO 10 I = 1, 25
   10 IREC(I) = 1000 * ME + I
      CALL CWRITE(12, IREC, 100)
      CALL IOWAIT(IWRITE(12, IREC, 40))
      CALL GSYNC()
      IF (ME .EQ. 0) THEN
         OPEN (20, FILE=NAME, FORM='UNFORMATTED', ACCESS='STREAM')
         READ (20) K
         CALL CHECK(K .EQ. 4711, 'the head')
         DO 30 J = 0, N - 1
            DO 20 I = 1, 25
               READ (20) K
   20       CALL CHECK(K .EQ. 1000 * J + I, 'records')
   30    CONTINUE
         DO 50 J = 0, N - 1
            DO 40 I = 1, 10
               READ (20) K
   40       CALL CHECK(K .EQ. 1000 * J + I, 'shorter records')
   50    CONTINUE
         READ (20, END=60) K
         CALL CHECK(.FALSE., 'nothing more')
   60    CLOSE (20)
      END IF
      CALL CHECK(LSEEK(12, 4, 0) .EQ. 4, 'lseek')
      CALL CREAD(12, IGOT, 100)
      CALL CHECK(IGOT(1) .EQ. 1000 * ME + 1, 'first')
      CALL CHECK(IGOT(25) .EQ. 1000 * ME + 25, 'last')
      CALL IOWAIT(IREAD(12, IGOT, 40))
      CALL CHECK(IGOT(10) .EQ. 1000 * ME + 10, 'iread')
      CALL CHECK(ISEOF(12) .EQ. 1, 'at the end')
      CALL GSYNC()
C     By the same unit, of all nodes in turn: as many words as the node.
      NAME = DIR(1:LEN_TRIM(DIR)) // '/fsync'
      CALL GOPEN(12, NAME, M_SYNC)
      DO 70 I = 1, 2
   70 CALL CWRITE(12, IREC, 4 * ME + 4)
      CALL CHECK(LSEEK(12, 0, 1) .EQ. 4 * N * (N + 1), 'a pointer')
      CALL CHECK(LSEEK(12, 0, 0) .EQ. 0, 'rewound')
      CALL CREAD(12, IGOT, 4 * ME + 4)
      CALL CHECK(IGOT(ME + 1) .EQ. 1000 * ME + ME + 1, 'in turn')
C     What is left, for all.
      CALL SETIOMODE(12, M_GLOBAL)
      LEN1 = 2 * N * (N + 1)
      CALL CREAD(12, IGOT, LEN1)
      K = 1
      DO 90 J = 0, N - 1
         DO 80 I = 1, J + 1
            CALL CHECK(IGOT(K) .EQ. 1000 * J + I, 'for all')
   80    K = K + 1
   90 CONTINUE
      CALL CHECK(ISEOF(12) .EQ. 1, 'nothing is left')
C     A log, by a unit of OPEN.
      NAME = DIR(1:LEN_TRIM(DIR)) // '/flog'
      OPEN (13, FILE=NAME, FORM='UNFORMATTED', ACCESS='STREAM')
      CALL SETIOMODE(13, M_LOG)
      CALL CHECK(IOMODE(13) .EQ. M_LOG, 'iomode')
      DO 100 I = 1, 20
         IREC(1) = ME
         IREC(2) = I
  100 CALL CWRITE(13, IREC, 8)
      CALL GSYNC()
      CALL CHECK(LSIZE(13, 0, 2) .EQ. 160 * N, 'nothing is lost')
      CALL CHECK(LSEEK(13, 0, 0) .EQ. 0, 'all seek')
      CALL GSYNC()
      IF (ME .EQ. N - 1) THEN
         DO 110 J = 1, N
  110    NSEEN(J) = 0
         DO 120 I = 1, 20 * N
            CALL CREAD(13, IGOT, 8)
            J = IGOT(1) + 1
            NSEEN(J) = NSEEN(J) + 1
  120    CALL CHECK(IGOT(2) .EQ. NSEEN(J), 'the order of each')
      END IF
      CALL GSYNC()
      CALL CHECK(ISEOF(13) .EQ. 1, 'one pointer')
      CLOSE (13)
      CALL GSYNC()
      IF (ME .EQ. 0) WRITE (*, *) 'modes: all good'
      END

      SUBROUTINE CHECK(TRUTH, WHAT)
      LOGICAL TRUTH
      CHARACTER*(*) WHAT
      IF (TRUTH) RETURN
      WRITE (*, *) 'node ', MYNODE(), ': ', WHAT
      CALL FLUSH(6)
      CALL EXIT(1)
      END
