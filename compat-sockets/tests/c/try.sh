#!/bin/sh
# usage: try.sh prog [case]
cd "$(dirname "$0")"; mkdir -p /tmp/st; p=$1
cc -D_GNU_SOURCE -O1 -g -Wall -Wextra -pthread $p.c semantics.c -o /tmp/st/$p || exit 1
for c in ${2:-$(/tmp/st/$p list)}; do
  out=$(/tmp/st/$p $c </dev/null 2>&1); rc=$?
  n=$(echo "$out" | grep -c '^ok')
  if [ $rc != 0 ] || echo "$out" | grep -qv '^\(ok\|#\)'; then echo "== $c rc=$rc"; echo "$out" | grep -v '^ok'; else echo "   $c $n"; fi
done
