C     Entries that the other programs here do not call. Without an argument
C     those that refuse; with one the call of that number, which ends all.
      PROGRAM REST
      INCLUDE 'fnx.h'
      CHARACTER*8 TEXT
      INTEGER I, IBUF(4), NO(12)
      IF (IARGC() .EQ. 0) THEN
         NO(1) = NX_MKPART('here', 2, 0)
         NO(2) = NX_MKPART_RECT('here', 1, 2, 0)
         NO(3) = NX_MKPART_MAP('here', 1, IBUF, 0)
         NO(4) = NX_MKPART_ATTR('here', 1, 0)
         NO(5) = NX_RMPART('here', 0, 0)
         NO(6) = NX_CHPART_EPL('here', 1)
         NO(7) = NX_CHPART_MOD('here', 1)
         NO(8) = NX_CHPART_NAME('here', 'there')
         NO(9) = NX_CHPART_OWNER('here', 1, 1)
         NO(10) = NX_CHPART_RQ('here', 1)
         NO(11) = NX_CHPART_SCHED('here', 1)
         NO(12) = NX_PSPART('here', IBUF, I)
         DO 10 I = 1, 12
            IF (NO(I) .NE. -1) STOP 1
   10    CONTINUE
         WRITE (*, *) 'rest: all good'
         STOP
      END IF
      CALL GETARG(1, TEXT)
      READ (TEXT, '(I8)') I
      IF (I .EQ. 1) CALL CREAD(3, IBUF, 4)
      IF (I .EQ. 2) CALL CWRITE(3, IBUF, 4)
      IF (I .EQ. 3) IBUF(1) = IREAD(3, IBUF, 4)
      IF (I .EQ. 4) IBUF(1) = IWRITE(3, IBUF, 4)
      IF (I .EQ. 5) CALL GOPEN(3, '/no/such/directory/file', 0)
      IF (I .EQ. 6) IBUF(1) = IODONE(1)
      IF (I .EQ. 7) CALL IOWAIT(1)
      IF (I .EQ. 8) IBUF(1) = ISEOF(3)
      IF (I .EQ. 9) IBUF(1) = LSIZE(3, 0, 0)
      IF (I .EQ. 10) CALL ESIZE(3, IBUF, 0, IBUF)
      IF (I .EQ. 11) CALL ESEEK(3, IBUF, 0, IBUF)
      IF (I .EQ. 12) CALL SETIOMODE(3, 0)
      IF (I .EQ. 13) IBUF(1) = IOMODE(3)
      IF (I .EQ. 14) IBUF(1) = LSEEK(3, 0, 0)
      IF (I .EQ. 15) CALL READOFF(3, IBUF, IBUF, 4)
      IF (I .EQ. 16) CALL WRITEOFF(3, IBUF, IBUF, 4)
      IF (I .EQ. 17) IBUF(1) = IREADOFF(3, IBUF, IBUF, 4)
      IF (I .EQ. 18) IBUF(1) = IWRITEOFF(3, IBUF, IBUF, 4)
      IF (I .EQ. 19) CALL GOPEN(3, '/dev/null', 9)
      IF (I .EQ. 20) CALL KILLCUBE(-1, -1)
      IF (I .EQ. 21) CALL ESTAT('here', IBUF)
      IF (I .EQ. 22) CALL FESTAT(3, IBUF)
      IF (I .EQ. 23) CALL LESTAT('here', IBUF)
      IF (I .EQ. 24) CALL STATPFS('here', IBUF, IBUF, 4)
      IF (I .EQ. 25) CALL FSTATPFS(3, IBUF, IBUF, 4)
      IF (I .EQ. 26) CALL GETPFSINFO(IBUF)
      IF (I .EQ. 27) CALL RESTRICTVOL(3, 1, IBUF)
      WRITE (*, *) 'goes on'
      END
