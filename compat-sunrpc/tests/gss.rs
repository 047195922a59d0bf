//! RPCSEC_GSS by Kerberos, four ways, with a key distribution center of the test's own: libtirpc's code on our
//! handles says what it says on its own.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Daemon, Process, Side, finish, line};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A realm with one service and one user.
struct Realm {
    center: Child,
    dir: tempfile::TempDir,
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.center.kill();
        let _ = self.center.wait();
    }
}

impl Realm {
    fn start() -> Realm {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        configure(dir.path());
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(format!("/usr/sbin/{program}"));
            command.args(arguments).envs(environment(dir.path())).stdout(Stdio::null());
            let done = command.status().unwrap_or_else(|error| {
                panic!("{program}: {error}; install krb5-kdc, krb5-admin-server and libkrb5-dev")
            });
            assert!(done.success(), "{command:?}");
        };
        run("kdb5_util", &["create", "-s", "-P", "nobody's", "-r", "TEST"]);
        for (principal, keys) in [("test/localhost", "service"), ("user", "user")] {
            run("kadmin.local", &["-q", &format!("add_principal -randkey {principal}")]);
            run("kadmin.local", &["-q", &format!("ktadd -k {at}/{keys} {principal}")]);
        }
        let begun = Instant::now();
        let center = loop {
            if let Some(center) = serve(dir.path(), begun) {
                break center;
            }
            // Somebody else has taken its port meanwhile, perhaps.
            configure(dir.path());
        };
        Realm { center, dir }
    }

    /// `gss.c`, as the service or as the user.
    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.dir.path().join("gss"));
        command.args(arguments).envs(environment(self.dir.path()));
        command
    }
}

/// Writes what says where all is, with a port for the center that is free just now.
fn configure(dir: &Path) {
    let at = dir.display();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // The host's name is what the test says, whatever the machine appends to short ones.
    let client = format!(
        "[libdefaults]\ndefault_realm = TEST\ndns_lookup_kdc = false\ndns_canonicalize_hostname = false\n\
         rdns = false\nqualify_shortname = \"\"\n[realms]\nTEST = {{\nkdc = 127.0.0.1:{port}\n}}\n\
         [domain_realm]\nlocalhost = TEST\n"
    );
    let center = format!(
        "[realms]\nTEST = {{\ndatabase_name = {at}/principal\nkey_stash_file = {at}/stash\n\
         kdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n}}\n[logging]\nkdc = FILE:{at}/log\n"
    );
    std::fs::write(dir.join("krb5.conf"), client).unwrap();
    std::fs::write(dir.join("kdc.conf"), center).unwrap();
}

/// The center, once it says that it serves; a connection might be to another's port. `None` when it has ended.
fn serve(dir: &Path, begun: Instant) -> Option<Child> {
    let log = dir.join("log");
    let _ = std::fs::remove_file(&log);
    let mut command = Command::new("/usr/sbin/krb5kdc");
    command.args(["-n", "-r", "TEST"]).envs(environment(dir)).env("LC_ALL", "C");
    let mut center = command.stdout(Stdio::null()).spawn().unwrap();
    loop {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if said.contains("commencing operation") {
            return Some(center);
        }
        if begun.elapsed() >= common::WATCHDOG {
            let _ = center.kill();
            panic!("krb5kdc does not serve: {:?}: {said}", center.wait());
        }
        if center.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Where everything of the realm is, in `dir`.
fn environment(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    let files = [
        ("KRB5_CONFIG", "krb5.conf"),
        ("KRB5_KDC_PROFILE", "kdc.conf"),
        ("KRB5_KTNAME", "service"),
        ("KRB5_CLIENT_KTNAME", "user"),
        ("KRB5CCNAME", "tickets"),
        ("KRB5RCACHEDIR", ""),
    ];
    files.map(|(name, file)| (name, dir.join(file))).to_vec()
}

fn compile(dir: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gss/gss.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Werror", "-I/usr/include/tirpc", "-o"]).arg(dir.join("gss"));
    assert!(cc.arg(source).arg("-ltirpc").status().unwrap().success(), "{cc:?}");
}

/// What is sent there and back.
const LENGTHS: [&str; 4] = ["0", "5", "1000", "60000"];
/// Of many rings: libtirpc alone, whose wrapping goes back in a buffer that was written out, fails to sign them.
const LONG: [&str; 2] = ["300000", "1000003"];

/// Who the server takes the client for, and records of many lengths, each plain, signed and sealed.
#[test]
fn kerberos_says_the_same_four_ways() {
    let daemon = Daemon::start();
    let realm = Realm::start();
    compile(realm.dir.path());
    let mut expected = None;
    for server_side in [Side::Stock, Side::Ours] {
        for client_side in [Side::Stock, Side::Ours] {
            let way = format!("{server_side:?}/{client_side:?}");
            let mut server = Process::start(&mut realm.program(&["server"]), server_side, &daemon);
            let port = line(&mut server);
            let rings = (server_side, client_side) == (Side::Ours, Side::Ours);
            let mut command = realm.program(&["client", &port]);
            command.args(LENGTHS).args(if rings { &LONG[..] } else { &[] });
            let (said, counted) = finish(Process::start(&mut command, client_side, &daemon), &way);
            let (_, served) = finish(server, &way);
            for service in 1..=3 {
                assert!(
                    said.contains(&format!("user@TEST by service {service}\n")),
                    "{way}: {said}"
                );
            }
            assert!(said.starts_with("plainly: RPC: Authentication error\n"), "{way}: {said}");
            let same = if rings { LENGTHS.len() + LONG.len() } else { LENGTHS.len() };
            let came_back = said.matches(" bytes: RPC: Success same\n").count();
            assert_eq!(came_back, 3 * same, "{way}: {said}");
            assert!(said.ends_with("quit: RPC: Success\n"), "{way}: {said}");
            let is_long = |line: &&str| LONG.iter().any(|long| line.starts_with(long));
            let said: Vec<String> =
                said.lines().filter(|line| !is_long(line)).map(str::to_owned).collect();
            assert_eq!(*expected.get_or_insert_with(|| said.clone()), said, "{way}");
            assert_eq!(counted.get("calls_ring") > 20, rings, "{way}: {counted:?}");
            assert_eq!(served.get("served_ring") > 20, rings, "{way}: {served:?}");
        }
    }
}
