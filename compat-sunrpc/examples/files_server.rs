//! A small NFS version 3 server in Rust: one directory of files that live in memory, over TCP and rings. The
//! procedures are those of `tests/peers/nfs3.x`. Others' NFS clients are tried against it.
//!
//! ```text
//! cargo run -p compat-sunrpc --example files_server [-- --register]
//! ```
//!
//! Prints its port; ends when its standard input does. With `--register` rpcbind knows it meanwhile.

use rpc_idl_tests::nfs3::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard};
use vrpc::rpcbind::{Portmapper, Protocol};
use vrpc::server::Context;
use vrpc::xdr::rpc::Failed;
use vrpc::{Client, Server};

/// What is exported.
const PATH: &str = "/files";
/// Number of the directory; files have higher ones.
const ROOT: u64 = 1;
/// Longest file.
const MOST: usize = 16 << 20;
/// Longest piece that is read at once.
const MOST_READ: usize = 1 << 20;

#[derive(Default)]
struct Directory {
    files: BTreeMap<u64, File>,
    created: u64,
}

struct File {
    name: String,
    bytes: Vec<u8>,
}

#[derive(Clone, Default)]
struct Files(Arc<Mutex<Directory>>);

impl Files {
    fn open(&self) -> MutexGuard<'_, Directory> {
        self.0.lock().unwrap_or_else(|it| it.into_inner())
    }
}

fn handle(number: u64) -> NfsFh3 {
    NfsFh3 { data: number.to_be_bytes().to_vec() }
}

fn number(handle: &NfsFh3) -> Result<u64, Nfsstat3> {
    let bytes = handle.data.as_slice().try_into().map_err(|_| Nfsstat3::Nfs3errBadhandle)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The handle must be the directory's.
fn is_root(handle: &NfsFh3) -> Result<(), Nfsstat3> {
    if number(handle)? == ROOT { Ok(()) } else { Err(Nfsstat3::Nfs3errNotdir) }
}

impl Directory {
    fn attributes(&self, number: u64) -> Result<Fattr3, Nfsstat3> {
        let (kind, mode, size) = if number == ROOT {
            (Ftype3::Nf3dir, 0o755, self.files.len() as u64)
        } else {
            let file = self.files.get(&number).ok_or(Nfsstat3::Nfs3errBadhandle)?;
            (Ftype3::Nf3reg, 0o644, file.bytes.len() as u64)
        };
        let time = Nfstime3 { seconds: 1_000_000_000, nseconds: 0 };
        Ok(Fattr3 {
            r#type: kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            size,
            used: size,
            rdev: Specdata3 { major: 0, minor: 0 },
            fsid: 1,
            fileid: number,
            atime: time,
            mtime: time,
            ctime: time,
        })
    }

    fn after(&self, handle: &NfsFh3) -> PostOpAttr {
        let attributes = number(handle).and_then(|number| self.attributes(number));
        attributes.map_or(PostOpAttr::False, PostOpAttr::True)
    }

    fn change(&self, handle: &NfsFh3) -> WccData {
        WccData { before: PreOpAttr::False, after: self.after(handle) }
    }

    fn named(&self, name: &str) -> Option<u64> {
        self.files.iter().find(|(_, file)| file.name == name).map(|(&number, _)| number)
    }

    fn file(&mut self, handle: &NfsFh3) -> Result<&mut File, Nfsstat3> {
        match number(handle)? {
            ROOT => Err(Nfsstat3::Nfs3errIsdir),
            number => self.files.get_mut(&number).ok_or(Nfsstat3::Nfs3errBadhandle),
        }
    }

    fn lookup(&self, what: &Diropargs3) -> Result<Lookup3resok, Nfsstat3> {
        is_root(&what.dir)?;
        let object = handle(self.named(&what.name).ok_or(Nfsstat3::Nfs3errNoent)?);
        let (attributes, dir) = (self.after(&object), self.after(&what.dir));
        Ok(Lookup3resok { object, attributes, dir })
    }

    fn read(&mut self, what: &Read3args) -> Result<Read3resok, Nfsstat3> {
        let bytes = &self.file(&what.file)?.bytes;
        let from = usize::try_from(what.offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = bytes.len().min(from + (what.count as usize).min(MOST_READ));
        let (data, eof) = (bytes[from..end].to_vec(), end == bytes.len());
        let count = data.len() as u32;
        Ok(Read3resok { attributes: self.after(&what.file), count, eof, data })
    }

    fn write(&mut self, what: &Write3args) -> Result<Write3resok, Nfsstat3> {
        let file = self.file(&what.file)?;
        let data = &what.data[..what.data.len().min(what.count as usize)];
        let from = usize::try_from(what.offset).unwrap_or(usize::MAX);
        let end = from.checked_add(data.len()).filter(|&end| end <= MOST);
        let end = end.ok_or(Nfsstat3::Nfs3errFbig)?;
        file.bytes.resize(file.bytes.len().max(end), 0);
        file.bytes[from..end].copy_from_slice(data);
        let (wcc, count) = (self.change(&what.file), data.len() as u32);
        Ok(Write3resok { wcc, count, committed: StableHow::FileSync, verf: *b"in store" })
    }

    fn create(&mut self, what: &Create3args) -> Result<Create3resok, Nfsstat3> {
        is_root(&what.r#where.dir)?;
        let name = &what.r#where.name;
        let number = match (self.named(name), &what.how) {
            (_, Createhow3::Exclusive(_)) => return Err(Nfsstat3::Nfs3errNotsupp),
            (Some(_), Createhow3::Guarded(_)) => return Err(Nfsstat3::Nfs3errExist),
            (Some(number), Createhow3::Unchecked(_)) => number,
            (None, _) => {
                self.created += 1;
                let number = ROOT + self.created;
                self.files.insert(number, File { name: name.clone(), bytes: Vec::new() });
                number
            }
        };
        let (object, dir) = (handle(number), self.change(&what.r#where.dir));
        let attributes = self.after(&object);
        Ok(Create3resok { object: PostOpFh3::True(object), attributes, dir })
    }

    fn remove(&mut self, what: &Diropargs3) -> Result<(), Nfsstat3> {
        is_root(&what.dir)?;
        let number = self.named(&what.name).ok_or(Nfsstat3::Nfs3errNoent)?;
        self.files.remove(&number);
        Ok(())
    }

    /// All at once from the cookie on, which is the number of the last one seen.
    fn list(&self, what: &Readdir3args) -> Result<Readdir3resok, Nfsstat3> {
        is_root(&what.dir)?;
        let files = self.files.range(what.cookie.saturating_add(1)..);
        let entries = files.map(|(&number, file)| Entry3 {
            fileid: number,
            name: file.name.clone(),
            cookie: number,
        });
        let reply = Dirlist3 { entries: entries.collect(), eof: true };
        Ok(Readdir3resok { dir: self.after(&what.dir), cookieverf: [0; 8], reply })
    }
}

impl NfsV3<Context> for Files {
    fn nfsproc3_null(&self, _: &Context) -> Result<(), Failed> {
        Ok(())
    }

    fn nfsproc3_getattr(&self, _: &Context, arg: NfsFh3) -> Result<Getattr3res, Failed> {
        let attributes = number(&arg).and_then(|number| self.open().attributes(number));
        Ok(attributes.map_or_else(Getattr3res::Default, Getattr3res::Nfs3Ok))
    }

    fn nfsproc3_lookup(&self, _: &Context, arg: Diropargs3) -> Result<Lookup3res, Failed> {
        let directory = self.open();
        let failed = |status| Lookup3res::Default(status, directory.after(&arg.dir));
        Ok(directory.lookup(&arg).map_or_else(failed, Lookup3res::Nfs3Ok))
    }

    fn nfsproc3_access(&self, _: &Context, arg: Access3args) -> Result<Access3res, Failed> {
        Ok(match self.open().after(&arg.object) {
            PostOpAttr::False => Access3res::Default(Nfsstat3::Nfs3errBadhandle, PostOpAttr::False),
            attributes => Access3res::Nfs3Ok(Access3resok { attributes, access: arg.access }),
        })
    }

    fn nfsproc3_read(&self, _: &Context, arg: Read3args) -> Result<Read3res, Failed> {
        let mut directory = self.open();
        let read = directory.read(&arg);
        let failed = |status| Read3res::Default(status, directory.after(&arg.file));
        Ok(read.map_or_else(failed, Read3res::Nfs3Ok))
    }

    fn nfsproc3_write(&self, _: &Context, arg: Write3args) -> Result<Write3res, Failed> {
        let mut directory = self.open();
        let written = directory.write(&arg);
        let failed = |status| Write3res::Default(status, directory.change(&arg.file));
        Ok(written.map_or_else(failed, Write3res::Nfs3Ok))
    }

    fn nfsproc3_create(&self, _: &Context, arg: Create3args) -> Result<Create3res, Failed> {
        let mut directory = self.open();
        let created = directory.create(&arg);
        let failed = |status| Create3res::Default(status, directory.change(&arg.r#where.dir));
        Ok(created.map_or_else(failed, Create3res::Nfs3Ok))
    }

    fn nfsproc3_remove(&self, _: &Context, arg: Diropargs3) -> Result<Remove3res, Failed> {
        let mut directory = self.open();
        let removed = directory.remove(&arg);
        let change = directory.change(&arg.dir);
        Ok(match removed {
            Ok(()) => Remove3res::Nfs3Ok(change),
            Err(status) => Remove3res::Default(status, change),
        })
    }

    fn nfsproc3_readdir(&self, _: &Context, arg: Readdir3args) -> Result<Readdir3res, Failed> {
        let directory = self.open();
        let failed = |status| Readdir3res::Default(status, directory.after(&arg.dir));
        Ok(directory.list(&arg).map_or_else(failed, Readdir3res::Nfs3Ok))
    }
}

impl MountV3<Context> for Files {
    fn mountproc3_null(&self, _: &Context) -> Result<(), Failed> {
        Ok(())
    }

    fn mountproc3_mnt(&self, _: &Context, arg: Dirpath) -> Result<Mountres3, Failed> {
        if arg != PATH {
            return Ok(Mountres3::Default(Mountstat3::Mnt3errNoent));
        }
        let fhandle = handle(ROOT).data;
        // AUTH_SYS and AUTH_NONE.
        Ok(Mountres3::Mnt3Ok(Mountres3Ok { fhandle, auth_flavors: vec![1, 0] }))
    }

    /// Who has it is not written down.
    fn mountproc3_dump(&self, _: &Context) -> Result<Mountlist, Failed> {
        Ok(Mountlist::new())
    }

    fn mountproc3_umnt(&self, _: &Context, _: Dirpath) -> Result<(), Failed> {
        Ok(())
    }

    fn mountproc3_export(&self, _: &Context) -> Result<Exports, Failed> {
        Ok(vec![Exportnode { dir: PATH.into(), groups: Vec::new() }])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let files = Files::default();
    let server = Server::builder()
        .program(NfsV3Program(files.clone()))
        .program(MountV3Program(files))
        .tcp("127.0.0.1:0")
        .start()?;
    let port = server.tcp_address().map_or(0, |it| it.port());
    let registers = std::env::args().any(|it| it == "--register");
    let programs = [(nfs_v3::PROGRAM, nfs_v3::VERSION), (mount_v3::PROGRAM, mount_v3::VERSION)];
    let rpcbind = registers.then(|| Client::tcp("127.0.0.1:111")).transpose()?;
    if let Some(client) = &rpcbind {
        for (program, version) in programs {
            if !Portmapper(client).set(program, version, Protocol::Tcp, port)? {
                return Err(format!("rpcbind does not take program {program}").into());
            }
        }
    }
    println!("{port}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    if let Some(client) = &rpcbind {
        for (program, version) in programs {
            Portmapper(client).unset(program, version)?;
        }
    }
    server.stop();
    Ok(())
}
