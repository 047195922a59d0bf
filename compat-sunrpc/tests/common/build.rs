//! Makes the library, the daemon, and the C programs of `tests/c` with rpcgen and cc.

#[path = "../../../vmmc/tests/cargo/mod.rs"]
mod cargo;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// What we build, of the profile the tests have.
pub struct Artefacts {
    pub library: PathBuf,
    pub daemon: PathBuf,
    /// Where the programs of `examples/` are.
    pub examples: PathBuf,
}

/// Builds the library and the daemon if they are not up to date: `cargo test` of this package
/// alone builds neither as a file to run.
pub fn artefacts() -> &'static Artefacts {
    static ARTEFACTS: OnceLock<Artefacts> = OnceLock::new();
    ARTEFACTS.get_or_init(|| {
        once_a_run(|| {
            cargo::build(&["-p", "compat-sunrpc", "--lib", "--bins", "--examples"]);
        });
        let dir = cargo::profile();
        Artefacts {
            library: dir.join("libvrpc.so"),
            daemon: dir.join("vmmcd"),
            examples: dir.join("examples"),
        }
    })
}

/// Does so once for all tests of a run, where each is a process (nextest): the sources do not change
/// meanwhile.
fn once_a_run(make: impl FnOnce()) {
    let Ok(run) = std::env::var("NEXTEST_RUN_ID") else { return make() };
    let done = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rpc-artefacts-of-run");
    let lock = std::fs::File::create(done.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if std::fs::read_to_string(&done).ok().as_ref() != Some(&run) {
        make();
        std::fs::write(&done, run).unwrap();
    }
}

const IN_PLACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include/vrpc_in_place.h");

/// How rpcgen makes the stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Default,
    /// `-M`: results where the caller says.
    MtSafe,
    /// `-N`: arguments by value.
    NewStyle,
    /// `-N -M`.
    Both,
    /// `-I`: a server that inetd starts.
    Inetd,
    /// `-M`, and `vrpc_in_place.h` before the XDR procedures.
    InPlace,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::MtSafe => "M",
            Mode::NewStyle => "N",
            Mode::Both => "NM",
            Mode::Inetd => "I",
            Mode::InPlace => "in-place",
        }
    }

    fn rpcgen(self) -> &'static [&'static str] {
        match self {
            Mode::Default => &[],
            Mode::MtSafe => &["-M"],
            Mode::NewStyle => &["-N", "-DNEWSTYLE"],
            Mode::Both => &["-N", "-M", "-DNEWSTYLE"],
            Mode::Inetd => &["-I"],
            Mode::InPlace => &["-M", "-DIN_PLACE"],
        }
    }

    fn cc(self) -> &'static [&'static str] {
        match self {
            Mode::Default => &[],
            Mode::MtSafe => &["-DMODE_M"],
            Mode::NewStyle => &["-DNEWSTYLE"],
            Mode::Both => &["-DMODE_M", "-DNEWSTYLE"],
            Mode::Inetd => &["-DRPCGEN_MAIN"],
            Mode::InPlace => &["-DMODE_M", "-DIN_PLACE", "-include", IN_PLACE],
        }
    }
}

fn succeed(command: &mut Command, package: &str) {
    let by_hand = format!("{command:?}");
    match command.status() {
        Ok(status) => assert!(status.success(), "failed ({package} installed?): {by_hand}"),
        Err(error) => panic!("{by_hand}: {error}; install the Debian package {package}"),
    }
}

/// Compiles the programs of one mode unless they are there, of these sources, and returns the directory
/// that they are in; they stay in the target directory to be run by hand. Who comes while another test
/// (another process, it may be) compiles them waits for it.
pub fn programs(mode: Mode) -> PathBuf {
    static MADE: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    made.entry(mode.name()).or_insert_with(|| compile_once(mode)).clone()
}

fn compile_once(mode: Mode) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.push(IN_PLACE.into());
    let of: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rpc-{}", mode.name()));
    std::fs::create_dir_all(&dir).unwrap();
    let lock = std::fs::File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let made_of = dir.join("made-of");
    if std::fs::read_to_string(&made_of).is_ok_and(|made_of| made_of == of) {
        return dir;
    }
    // Without it a compilation that fails is begun anew.
    let _ = std::fs::remove_file(&made_of);
    compile(mode, &sources, &dir);
    std::fs::write(&made_of, of).unwrap();
    dir
}

fn compile(mode: Mode, sources: &Path, dir: &Path) {
    std::fs::copy(sources.join("types.x"), dir.join("types.x")).unwrap();
    let kinds =
        [("-h", "types.h"), ("-l", "types_clnt.c"), ("-m", "types_svc.c"), ("-c", "types_xdr.c")];
    for made in ["server", "client", "differ"].iter().chain(kinds.iter().map(|(_, made)| made)) {
        let _ = std::fs::remove_file(dir.join(made)); // rpcgen does not replace a file
    }
    if mode == Mode::Inetd {
        // The server's main is made only when everything is.
        let mut rpcgen = Command::new("rpcgen");
        succeed(rpcgen.args(mode.rpcgen()).arg("types.x").current_dir(dir), "rpcsvc-proto");
    } else {
        for (kind, output) in kinds {
            let mut rpcgen = Command::new("rpcgen");
            rpcgen.args(mode.rpcgen()).args([kind, "-o", output, "types.x"]).current_dir(dir);
            succeed(&mut rpcgen, "rpcsvc-proto");
        }
    }
    let programs =
        [("server", &["types_svc.c"][..]), ("client", &["types_clnt.c"]), ("differ", &[])];
    for (program, stubs) in programs {
        let mut cc = Command::new("cc");
        // The generated code has unused variables and casts of function types.
        cc.args(["-D_GNU_SOURCE", "-O1", "-g", "-w", "-I/usr/include/tirpc", "-I."])
            .args(mode.cc())
            .arg("-I")
            .arg(sources)
            .args(["-o", program])
            .arg(sources.join(format!("{program}.c")))
            .args(stubs)
            .args(["types_xdr.c", "-ltirpc", "-pthread"])
            .current_dir(dir);
        succeed(&mut cc, "libtirpc-dev");
    }
}
