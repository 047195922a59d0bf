/*
 * mesh.h: the NX calls, by the name that programs for the Delta include.
 */
#ifndef NX_MESH_H
#define NX_MESH_H
#include <nx.h>
#endif
