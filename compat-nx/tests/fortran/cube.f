C     A program of the iPSC/860: the other include file, the iPSC's names.
      program cube
      include 'fcube.h'
      if (HWHZ .ne. 10000000 .or. mypid() .ne. 0) stop 1
      if (2 ** nodedim() .lt. numnodes()) stop 2
      call gsync
      if (mynode() .eq. 0) print *, 'cube: all good'
      end
