!
!     fcube.h: the NX calls for Fortran programs of the iPSC/860: the same
!     as the Paragon's. Fixed form, legal in free form too:
!     include 'fcube.h'
!
      include 'fnx.h'
