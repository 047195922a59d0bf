//! Nodes that Slurm starts: `srun --mpi=pmi2`, on one host and on two. A Slurm of its own, with a key of its own, runs for
//! each test as long as that: both its hosts are this machine, with a vmmcd of a cluster each.

mod build;
#[path = "../../vmmc/tests/support/cluster.rs"]
mod cluster;
#[path = "../../vmmc/tests/common/mod.rs"]
mod common;

use build::{Done, Options, compile, compile_text, nobody_is_left};
use cluster::Place;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The hosts, and the nodes of the cluster, by name.
const HOSTS: [&str; 2] = ["a", "b"];

/// A running Slurm, and what its jobs need.
struct Slurm {
    /// In the order of their end.
    servers: Vec<Child>,
    _places: (Place, Place),
    dir: tempfile::TempDir,
}

impl Slurm {
    fn start() -> Slurm {
        build::target(); // the daemon too
        let dir = tempfile::tempdir().unwrap();
        let places = cluster::pair();
        for place in [&places.0, &places.1] {
            symlink(place.daemon.socket(), dir.path().join(&place.name)).unwrap();
        }
        let mut slurm = Slurm { servers: Vec::new(), _places: places, dir };
        slurm.write("key", &cluster::KEY.repeat(4), 0o600);
        // Each rank finds the daemon of its host, as it would on a machine of its own.
        let enter = format!(
            "#!/bin/sh\nexport VMMC_SOCKET={}/$SLURMD_NODENAME NX_HOST=$SLURMD_NODENAME\nexec \"$@\"\n",
            slurm.dir.path().display()
        );
        slurm.write("enter", &enter, 0o700);
        let conf = slurm.conf();
        slurm.write("slurm.conf", &conf, 0o600);
        let file = |name: &str| slurm.path(name).display().to_string();
        let mut munged = slurm.server("munged");
        munged.args(["--foreground", "--force", "--key-file", &file("key")]);
        munged.args(["--socket", &file("munge"), "--pid-file", &file("munge.pid")]);
        munged.args(["--log-file", &file("munge.log"), "--seed-file", &file("munge.seed")]);
        let mut controller = slurm.server("slurmctld");
        controller.arg("-D");
        let hosts = HOSTS.map(|host| {
            let mut server = slurm.server("slurmd");
            server.args(["-D", "-N", host]);
            server
        });
        for mut server in [munged, controller].into_iter().chain(hosts) {
            let child = server.spawn();
            let child = child.unwrap_or_else(|error| {
                panic!("{server:?}: {error}; ci/deps installs what tests need")
            });
            slurm.servers.insert(0, child);
            if slurm.servers.len() == 1 {
                common::until("munged listens", || slurm.path("munge").exists());
            }
        }
        common::until("both hosts are idle", || {
            let mut ask = slurm.command("sinfo");
            ask.args(["--noheader", "--Node", "--format=%T"]);
            build::run(&mut ask).out == "idle\nidle\n"
        });
        slurm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(mode)).unwrap();
    }

    fn conf(&self) -> String {
        // All are free at the same time.
        let ports = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [controller, a, b] = ports.each_ref().map(|it| it.local_addr().unwrap().port());
        let uname = rustix::system::uname();
        let this = uname.nodename().to_str().unwrap().split('.').next().unwrap();
        let dir = self.dir.path().display();
        format!(
            "ClusterName=test\nSlurmctldHost={this}(127.0.0.1)\nSlurmctldPort={controller}\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/munge\nCredType=cred/munge\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={dir}\n\
             SlurmctldPidFile={dir}/slurmctld.pid\nSlurmctldLogFile={dir}/slurmctld.log\n\
             SlurmdSpoolDir={dir}/%n.spool\nSlurmdPidFile={dir}/%n.pid\nSlurmdLogFile={dir}/%n.log\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             SelectType=select/cons_tres\nReturnToService=2\n\
             NodeName=a NodeHostname={this} NodeAddr=127.0.0.1 Port={a} CPUs=2\n\
             NodeName=b NodeHostname={this} NodeAddr=127.0.0.1 Port={b} CPUs=2\n\
             PartitionName=all Nodes=a,b Default=YES State=UP OverSubscribe=FORCE:8\n"
        )
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VMMC_", "NX_", "PMI", "SLURM"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("SLURM_CONF", self.path("slurm.conf"));
        command
    }

    fn server(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// `srun --mpi=pmi2` on the first so many hosts.
    #[track_caller]
    fn srun(&self, hosts: usize, ranks: &str, program: &Path, arguments: &[&str]) -> Done {
        let mut command = self.command("srun");
        command.args(["--mpi=pmi2", "--overcommit", "-N", &hosts.to_string(), "-n", ranks]);
        command.arg("-w").arg(HOSTS[..hosts].join(","));
        command.arg(self.path("enter")).arg(program).args(arguments);
        command.env("VMMC_DAEMON", "none").env("LD_LIBRARY_PATH", build::target());
        build::run(&mut command)
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["slurmctld.log", "a.log", "b.log", "munge.log"] {
                let text = std::fs::read_to_string(self.path(log)).unwrap_or_default();
                eprintln!("--- {log}\n{text}");
            }
        }
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn ranks_of_srun_are_nodes_on_one_host_and_on_two() {
    let slurm = Slurm::start();
    let (globals, traffic) =
        (compile("globals.c", Options::default()), compile("traffic.c", Options::default()));
    for (hosts, ranks) in [(1, "1"), (1, "4"), (2, "2"), (2, "5")] {
        let done = slurm.srun(hosts, ranks, &globals, &[]);
        assert_eq!(done.code, Some(0), "{ranks} on {hosts}: {done}");
        assert!(done.out.contains("globals: all good"), "{ranks} on {hosts}: {done}");
    }
    for hosts in [1, 2] {
        let done = slurm.srun(hosts, "4", &traffic, &["100"]);
        assert_eq!(done.code, Some(0), "{hosts}: {done}");
        assert!(done.out.contains("all good"), "{hosts}: {done}");
    }
}

#[test]
fn srun_says_where_ranks_are_and_how_they_end() {
    let slurm = Slurm::start();
    let text = "#include \"check.h\"
        int main(void) {
            printf(\"%ld of %ld on %s\\n\", mynode(), numnodes(), getenv(\"NX_HOST\"));
            gsync();
            return mynode() == 1 ? 7 : 0; }";
    let program = compile_text("where.c", text, Options { flags: &["-w"], libraries: &[] });
    let done = slurm.srun(2, "2", &program, &[]);
    assert_eq!(done.code, Some(7), "{done}");
    for line in ["0 of 2 on a", "1 of 2 on b"] {
        assert!(done.out.contains(line), "{done}");
    }
    let program = compile("dying.c", Options { flags: &["-w"], libraries: &[] });
    for (hosts, how) in [(1, "9"), (2, "9"), (1, "k"), (2, "s")] {
        let done = slurm.srun(hosts, "3", &program, &[how]);
        assert_ne!(done.code, Some(0), "{how} on {hosts}: {done}");
        nobody_is_left(&program);
    }
}
