"""pyNfsClient (PyPI) against examples/files_server.rs, found through rpcbind: prints what it saw."""
import logging
from pyNfsClient import (FILE_SYNC, GUARDED, MNT3ERR_NOENT, MOUNT_PROGRAM, MOUNT_V3, NFS3ERR_EXIST,
                         NFS3ERR_NOENT, NFS3_OK, NFS_PROGRAM, NFS_V3, Mount, NFSv3, Portmap, UNSTABLE)

# What it does not understand it only logs.
trouble = []
handler = logging.Handler(logging.ERROR)
handler.emit = lambda record: trouble.append(record.getMessage())
logging.getLogger("pyNfsClient").addHandler(handler)

HOST = "127.0.0.1"
auth = {"flavor": 1, "machine_name": "elsewhere", "uid": 0, "gid": 0, "aux_gid": [7, 8]}


def ok(answer, status=NFS3_OK):
    assert answer["status"] == status, answer
    return answer.get("resok")


portmap = Portmap(HOST, timeout=60)
portmap.connect()
mount_port = portmap.getport(MOUNT_PROGRAM, MOUNT_V3)
nfs_port = portmap.getport(NFS_PROGRAM, NFS_V3)
known = {(entry["program"], entry["port"]) for entry in portmap.dump()}
assert {(MOUNT_PROGRAM, mount_port), (NFS_PROGRAM, nfs_port)} <= known, known
portmap.disconnect()

mount = Mount(HOST, mount_port, 60, auth)
mount.connect()
mount.null()
exports = mount.export()
assert [(one.ex_dir, one.ex_groups, one.ex_next) for one in exports] == [(b"/files", [], [])], exports
ok(mount.mnt("/nowhere"), MNT3ERR_NOENT)
root = mount.mnt("/files")
assert root["mountinfo"]["auth_flavors"] == [1, 0], root
root = root["mountinfo"]["fhandle"]

nfs = NFSv3(HOST, nfs_port, 60, auth)
nfs.connect()
nfs.null()
assert nfs.getattr(root)["attributes"]["type"] == 2
ok(nfs.lookup(root, "none"), NFS3ERR_NOENT)
ok(nfs.create(root, "file", GUARDED, mode=0o644))
ok(nfs.create(root, "file", GUARDED, mode=0o644), NFS3ERR_EXIST)
file = ok(nfs.lookup(root, "file"))["object"]["data"]
# It sends the UTF-8 of a string.
text = "".join(chr(32 + i * 7 % 91) for i in range(300_001))
written = ok(nfs.write(file, 0, len(text), text, UNSTABLE))
assert (written["count"], written["committed"]) == (len(text), FILE_SYNC), written
read = ok(nfs.read(file, 0, len(text) + 1))
assert (read["count"], read["eof"], read["data"]) == (len(text), True, text.encode())
read = ok(nfs.read(file, 299_990, 5))
assert (read["count"], read["eof"], read["data"]) == (5, False, text[299_990:299_995].encode())
assert ok(nfs.access(file, 1))["access"] == 1
names = []
entry = ok(nfs.readdir(root))["reply"]["entries"]
while entry:
    names.append(entry[0]["name"])
    entry = entry[0]["nextentry"]
assert names == [b"file"], names
ok(nfs.remove(root, "file"))
ok(nfs.lookup(root, "file"), NFS3ERR_NOENT)
assert not trouble, trouble
# What the server does not have: PROC_UNAVAIL, which this client logs.
try:
    nfs.fsinfo(root)
except Exception:
    pass
assert trouble == ["RPC protocol error"], trouble
mount.umnt()
nfs.disconnect()
mount.disconnect()
print("all as expected")
