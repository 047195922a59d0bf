C     Parallel I/O of units: opened by GOPEN and by OPEN. The argument is
C     a directory.
      PROGRAM UNITS
      INCLUDE 'fnx.h'
      INTEGER ME, N, I, ID, OTHER, IREC(25), IGOT(25), IPOS(2), IRES(2)
      INTEGER ISTART(2), LENGTH
      CHARACTER*200 DIR, NAME
      CHARACTER*8 WORD
      ME = MYNODE()
      N = NUMNODES()
      CALL GETARG(1, DIR)
      LENGTH = 100
C     One file of all nodes, each with a pointer of its own.
      NAME = DIR(1:LEN_TRIM(DIR)) // '/all'
      CALL GOPEN(12, NAME, M_UNIX)
      CALL CHECK(IOMODE(12) .EQ. M_UNIX, 'iomode')
      CALL SETIOMODE(12, M_ASYNC)
      CALL CHECK(IOMODE(12) .EQ. M_ASYNC, 'setiomode')
      DO 10 I = 1, 25
   10 IREC(I) = 1000 * ME + I
      CALL CHECK(LSEEK(12, LENGTH * ME, 0) .EQ. LENGTH * ME, 'lseek')
      CALL CWRITE(12, IREC, LENGTH)
      CALL GSYNC()
      CALL CHECK(LSIZE(12, 0, 1) .GE. LENGTH * (ME + 1), 'lsize')
      CALL CHECK(LSEEK(12, 0, 0) .EQ. 0, 'rewound')
      DO 20 OTHER = 0, N - 1
         CALL CHECK(ISEOF(12) .EQ. 0, 'not at the end')
         CALL CREAD(12, IGOT, LENGTH)
         CALL CHECK(IGOT(1) .EQ. 1000 * OTHER + 1, 'first')
         CALL CHECK(IGOT(25) .EQ. 1000 * OTHER + 25, 'last')
   20 CONTINUE
      CALL CHECK(ISEOF(12) .EQ. 1, 'at the end')
C     The same by ids, and at offsets of two words.
      CALL CHECK(LSEEK(12, LENGTH * ME, 0) .GE. 0, 'back')
      ID = IREAD(12, IGOT, LENGTH)
      CALL CHECK(ID .GT. 0, 'iread')
      CALL IOWAIT(ID)
      CALL CHECK(IGOT(25) .EQ. 1000 * ME + 25, 'iread: contents')
      CALL GSYNC()
      CALL CHECK(LSEEK(12, LENGTH * (N + ME), 0) .GE. 0, 'on')
      ID = IWRITE(12, IREC, LENGTH)
      CALL CHECK(IODONE(ID) .EQ. 1, 'iodone')
      ISTART(1) = LENGTH * (N + ME)
      ISTART(2) = 0
      CALL READOFF(12, ISTART, IGOT, LENGTH)
      CALL CHECK(IGOT(1) .EQ. 1000 * ME + 1, 'readoff')
      IREC(1) = -ME
      CALL WRITEOFF(12, ISTART, IREC, LENGTH)
      ID = IREADOFF(12, ISTART, IGOT, LENGTH)
      CALL IOWAIT(ID)
      CALL CHECK(IGOT(1) .EQ. -ME, 'writeoff, ireadoff')
      CALL IOWAIT(IWRITEOFF(12, ISTART, IREC, LENGTH))
      IPOS(1) = 8
      IPOS(2) = 0
      CALL ESEEK(12, IPOS, 0, IRES)
      CALL CHECK(IRES(1) .EQ. 8 .AND. IRES(2) .EQ. 0, 'eseek')
      CALL CREAD(12, IGOT, 4)
      CALL CHECK(IGOT(1) .EQ. 3, 'eseek: contents')
      CALL GSYNC()
C     Longer than 4 GiB, and empty for most of it.
      IPOS(1) = 0
      IPOS(2) = 1
      CALL ESIZE(12, IPOS, 0, IRES)
      CALL CHECK(IRES(1) .EQ. 0 .AND. IRES(2) .EQ. 1, 'esize')
C     A unit of the program's own OPEN; what it has written comes first.
      WRITE (WORD, '(I4.4)') ME
      NAME = DIR(1:LEN_TRIM(DIR)) // '/own' // WORD
      OPEN (13, FILE=NAME, FORM='UNFORMATTED', ACCESS='STREAM')
      WRITE (13) 77
      CALL CWRITE(13, IREC(2), 8)
      CALL CHECK(LSEEK(13, 0, 0) .EQ. 0, 'lseek of OPEN')
      CALL CREAD(13, IGOT, 12)
      CALL CHECK(IGOT(1) .EQ. 77, 'WRITE and CREAD')
      CALL CHECK(IGOT(3) .EQ. 1000 * ME + 3, 'CWRITE and CREAD')
      CALL CHECK(ISEOF(13) .EQ. 1, 'end of OPEN')
      CLOSE (13)
C     Another file by the same unit.
      NAME = DIR(1:LEN_TRIM(DIR)) // '/again' // WORD
      CALL GOPEN(12, NAME, M_UNIX)
      CALL CHECK(LSIZE(12, 0, 0) .EQ. 0, 'a new file')
      CALL CHECK(IOMODE(12) .EQ. M_UNIX, 'of a mode of its own')
C     Units that are always open.
      CALL CWRITE(6, 'from all nodes' // CHAR(10), 15)
      CALL GSYNC()
      IF (ME .EQ. 0) WRITE (*, *) 'units: all good'
      END

      SUBROUTINE CHECK(TRUTH, WHAT)
      LOGICAL TRUTH
      CHARACTER*(*) WHAT
      IF (TRUTH) RETURN
      WRITE (*, *) 'node ', MYNODE(), ': ', WHAT
      CALL FLUSH(6)
      CALL EXIT(1)
      END
