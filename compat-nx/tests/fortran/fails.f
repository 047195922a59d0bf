C     A call that fails after output that is still in the buffers: outside of a WRITE statement, or, with an
C     argument, inside one, whose unit is locked then.
      PROGRAM FAILS
      INCLUDE 'fnx.h'
      INTEGER I
      OPEN (9, FILE='/dev/stdout')
      WRITE (9, *) 'printed to a file'
      WRITE (*, *) 'printed before'
      IF (IARGC() .GT. 0) WRITE (*, *) 'within', MSGDONE(12345)
      CALL MSGWAIT(12345)
      END
