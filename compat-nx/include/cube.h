/*
 * cube.h: the NX calls, by the name that programs for the iPSC/2 and iPSC/860 include.
 */
#ifndef NX_CUBE_H
#define NX_CUBE_H
#include <nx.h>
#endif
