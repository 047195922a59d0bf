C     Implicit types throughout, no include file; names upper and lower.
      me = mynode()
      n = NUMNODES()
      mid = irecv(7, k, 4)
      call csend(7, me, 4, mod(me + 1, n), mypid())
      call msgwait(mid)
      if (k .ne. mod(me + n - 1, n) .or. infocount() .ne. 4) stop 1
      call csend(8, 0, 0, me, 0)
      call crecv(8, 0, 0)
      call gisum(k, 1, iwork)
      if (k .ne. n * (n - 1) / 2) stop 2
      if (me .eq. 0) print *, 'implicit: all good on', n, ' nodes'
      end
